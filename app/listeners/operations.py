"""What listeners request: register, send heartbeats, rotate the secret, leave."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from app.engine.list_view import ListView
from app.listeners.replication import ListenerReader, PushOwnership, UnsavedReports
from app.listeners.reports import ERROR, ListenerQuota, ReportsTooLargeError, TooManyListenersError, part_names
from app.listeners.state import ListenerDirectory, ListenerEntry
from app.store.audit import Origin
from app.store.database import LockedError
from app.store.listeners import ListenerChange, ListenerStore, Outcome, Secret, StoredListener
from app.watch import ChangeFeed
from blocklist.model.draft import BlocklistTracker
from blocklist.model.errors import BlocklistError, InvalidError, NotFoundError, UnavailableError
from blocklist.model.listener import (
    EMPTY_REPORT,
    ONLY_FROM,
    FencedError,
    Listener,
    ListenerRole,
    ModeRecord,
    Registration,
    Report,
    heartbeat,
    register,
)
from blocklist.wire.listeners import REPORT_FIELDS

_KNOWS: Final = {
    ListenerRole.JOB_MASTER: "JOB_MASTER runs tasks that could give any",
    ListenerRole.RESOURCE_MANAGER: "RESOURCE_MANAGER knows all nodes of its cluster",
}


class HeartbeatRecorder:
    """Renews the lease and moves the cursor of a listener, and stores its report. Belongs to the event loop."""

    def __init__(
        self,
        directory: ListenerDirectory,
        unsaved: UnsavedReports,
        tracker: BlocklistTracker,
        clock: Callable[[], int],
    ) -> None:
        self._directory = directory
        self._unsaved = unsaved
        self._tracker = tracker
        self._clock = clock

    def record(
        self, listener_id: str, session: str, acked: int | None, report: Report, principal: str | None
    ) -> ListenerEntry:
        """Apply a heartbeat of a principal; None without authentication.

        Raises NotFoundError, FencedError, InvalidError, ReportsTooLargeError; then nothing is changed.
        """
        entry = self._directory.get(listener_id)
        now = self._clock()
        current = None if entry is None else entry.listener
        revision = self._tracker.revision
        lease_time = self._directory.lease_time()
        if entry is not None:
            lease_time = entry.lease_time(lease_time)
        listener = heartbeat(
            current, session, acked, now=now, lease_time=lease_time, revision=revision, principal=principal
        )
        assert entry is not None
        for name in report.given().keys() - report.of_role(listener.role).given().keys():
            raise InvalidError(f"{REPORT_FIELDS[name]}: only a {_KNOWS[ONLY_FROM[name]]}.")
        if report != EMPTY_REPORT:
            self._directory.check_size(entry, report)
        moved = listener.acked != entry.listener.acked
        self._directory.renew(entry, listener)
        at = entry.next_timestamp(now)
        parts = set() if report == EMPTY_REPORT else self._directory.apply_report(entry, report, at)
        self._unsaved.add(entry, at, acked=moved, parts=parts)
        return entry

    def record_push_response(self, entry: ListenerEntry, acked: int | None, report: Report, error: str | None) -> None:
        """Apply a 2xx response; `error` says what was invalid in it. Does nothing if the entry is no longer current."""
        if self._directory.is_current(entry):
            # The response comes from the address that the principal registered.
            session, principal = entry.listener.session, entry.listener.principal
            with suppress(BlocklistError):
                try:
                    self.record(entry.id, session, acked, report, principal)
                except ReportsTooLargeError as too_large:
                    # The acknowledgement counts: otherwise the push would be repeated at once, for ever.
                    self.record(entry.id, session, acked, EMPTY_REPORT, principal)
                    error = too_large.detail
            self.record_push_error(entry, error)

    def record_push_error(self, entry: ListenerEntry, error: str | None) -> None:
        """Store the outcome of the last push; None is success."""
        if entry.error != error:
            entry.error = error
            self._unsaved.add(entry, entry.next_timestamp(self._clock()), parts=[ERROR])


SECRET_OVERLAP_MS: Final = 3_600_000
"""Time after a rotation in which pushes are also signed with the previous secret, in milliseconds."""
CATCH_UP_SECONDS: Final = 2.0
"""Maximum time that a heartbeat waits for this replica to reach a revision that another one has pushed."""
MAX_TOGETHER: Final = 100
"""Maximum number of registrations in one transaction: some 50 ms in which other replicas register nobody."""


@dataclass(eq=False, slots=True)
class _WaitingRegistration:
    """A request to register. Its outcome is the listener, and whether it is new."""

    requested: Registration
    principal: str | None
    may_replace: bool
    outcome: asyncio.Future[tuple[ListenerEntry, bool]]
    is_new: bool = False

    def finish(self, entry: ListenerEntry) -> None:
        if not self.outcome.done():
            self.outcome.set_result((entry, self.is_new))

    def fail(self, error: Exception) -> None:
        """Unless it has an outcome, as after the end of the connection."""
        if not self.outcome.done():
            self.outcome.set_exception(error)


class ListenerRegistry:
    """Registrations are committed before the response; heartbeats are saved up to half a second later.

    Belongs to the event loop.
    """

    def __init__(
        self,
        database: ListenerStore,
        ownership: PushOwnership,
        directory: ListenerDirectory,
        reader: ListenerReader,
        heartbeats: HeartbeatRecorder,
        unsaved: UnsavedReports,
        view: ListView,
        feed: ChangeFeed,
        quota: ListenerQuota,
        clock: Callable[[], int],
    ) -> None:
        self._database = database
        self._ownership = ownership
        self._directory = directory
        self._reader = reader
        self._heartbeats = heartbeats
        self._unsaved = unsaved
        self._view = view
        self._feed = feed
        self._quota = quota
        self._clock = clock
        self._waiting: list[_WaitingRegistration] = []
        # The principals of the listeners that are being stored: they count, as together they may be too many.
        self._storing: dict[str, str | None] = {}

    async def refresh(self) -> None:
        """Read what other replicas have written. Raises UnavailableError."""
        if self._ownership.shared:
            await self._reader.sync()

    async def get(self, listener_id: str) -> ListenerEntry:
        """One listener, live or expired. Raises NotFoundError, UnavailableError."""
        if self._directory.get(listener_id) is None:
            await self.refresh()
        if (entry := self._directory.get(listener_id)) is None:
            raise NotFoundError(f"There is no listener {listener_id}.")
        return entry

    async def register(
        self, requested: Registration, principal: str | None, *, may_replace: bool = True
    ) -> tuple[ListenerEntry, bool]:
        """The registered listener, and whether it is new.

        `may_replace`: whether it may take the place of a listener that another principal has registered. Raises
        FencedError, TooManyListenersError, UnavailableError.

        Here and below, `principal` is who makes the request; None without authentication.
        """
        await self.check_room(requested.id, principal)
        waiting = _WaitingRegistration(requested, principal, may_replace, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        try:
            async with self._reader.lock:
                # All that wait for the lock are stored together: one after another they would hold up heartbeats, too.
                while waiting in self._waiting:
                    await self._register_waiting()
        except BaseException:
            waiting.outcome.cancel()
            raise
        return await waiting.outcome

    async def _register_waiting(self) -> None:
        """Register the first of those that wait, each listener once. Hold the reader's lock."""
        batch: dict[str, _WaitingRegistration] = {}
        left = [waiting for waiting in self._waiting if not waiting.outcome.done()]
        for waiting in left[:MAX_TOGETHER]:
            batch.setdefault(waiting.requested.id, waiting)
        self._waiting = [waiting for waiting in left if batch.get(waiting.requested.id) is not waiting]
        try:
            await self._register_all(batch)
        finally:
            self._storing.clear()
            for waiting in batch.values():
                waiting.fail(UnavailableError("The registration was interrupted; try again.", retry_after=1))

    async def _register_all(self, batch: Mapping[str, _WaitingRegistration]) -> None:
        changes: dict[str, ListenerChange] = {}
        for listener_id, waiting in batch.items():
            try:
                if not await self._register_at_once(waiting):
                    changes[listener_id] = partial(self._registered, waiting)
            except Exception as error:
                waiting.fail(error)
        await self._store(changes, batch)

    async def _register_at_once(self, waiting: _WaitingRegistration) -> bool:
        """Whether there is nothing to store. Raises FencedError, TooManyListenersError, UnavailableError."""
        entry = self._directory.get(waiting.requested.id)
        if not waiting.may_replace and entry is not None:
            _check_is_own(entry.listener, waiting.principal)
        if (renewed := self._renew_in_memory(entry, waiting.requested, waiting.principal)) is not None:
            waiting.finish(renewed)
            return True
        await self._make_room(waiting.requested.id, waiting.principal)
        self._storing[waiting.requested.id] = waiting.principal
        return False

    async def _store(self, changes: Mapping[str, ListenerChange], batch: Mapping[str, _WaitingRegistration]) -> None:
        history = self._view.tracker.history
        for listener_id, outcome in (await self._database.update(changes, history)).items():
            try:
                batch[listener_id].finish(self._upsert(outcome, history))
            except Exception as error:
                # Also by a bug: the others are not concerned.
                batch[listener_id].fail(error)
            await asyncio.sleep(0)  # Each may take over from one with thousands of nodes: others must not wait for all.

    def _upsert(self, outcome: Outcome, history: str) -> ListenerEntry:
        if isinstance(outcome, Exception):
            raise outcome
        return self._reader.upsert(outcome, history)

    async def check_room(self, listener_id: str, principal: str | None) -> None:
        """Raise TooManyListenersError if the principal may not have this listener; UnavailableError."""
        if principal is not None and not self._quota.has(principal, listener_id):
            await self.refresh()  # Others may have registered listeners of this principal.
        self._listener_in_the_way(listener_id, principal)

    async def heartbeat(
        self, listener_id: str, session: str, acked: int | None, report: Report, principal: str | None
    ) -> ListenerEntry:
        """Apply a heartbeat. Raises NotFoundError, FencedError, InvalidError, UnavailableError.

        The listener may have registered at another replica, another session may have taken over there, or it may
        acknowledge a revision that another replica pushed: this replica catches up first.
        """
        if not self._ownership.shared:
            return self._heartbeats.record(listener_id, session, acked, report, principal)
        if acked is not None:
            await self._catch_up(acked)
        await self._read_registrations()
        try:
            return self._heartbeats.record(listener_id, session, acked, report, principal)
        except (NotFoundError, FencedError):
            await self._reader.sync()
            return self._heartbeats.record(listener_id, session, acked, report, principal)

    def reported(self, entry: ListenerEntry) -> list[str]:
        """The fields of its report, under their names in the API, that it has no reason to send again.

        What this replica alone knows is not among them: if it is killed now, the others would count what they have.
        """
        return sorted(part_names(entry.report.given()) - self._unsaved.parts_of(entry))

    async def rotate_secret(self, listener_id: str, session: str, principal: str | None) -> str:
        """A new secret; the old one also signs for an hour. Raises NotFoundError, FencedError, UnavailableError."""

        def change(stored: StoredListener | None) -> StoredListener:
            now = self._clock()
            current = None if stored is None else self._with_unsaved(stored)
            revision = self._view.tracker.revision
            listener = heartbeat(current, session, None, now=now, revision=revision, principal=principal)
            assert stored is not None
            previous = stored.secret.current
            secret = Secret(current=_new_secret(), previous=previous, previous_until=now + SECRET_OVERLAP_MS)
            return replace(stored, listener=listener, secret=secret)

        async with self._reader.lock:
            history = self._view.tracker.history
            outcomes = await self._database.update({listener_id: change}, history)
            return self._upsert(outcomes[listener_id], history).secret.current

    async def set_mode(self, record: ModeRecord, origin: Origin) -> None:
        """The mode of all listeners that match, from their next heartbeat. Raises InvalidError, UnavailableError."""
        await self._database.set_mode(record, origin)
        await self._reader.sync()

    async def remove_mode(self, pattern: str, origin: Origin) -> None:
        """Raises NotFoundError, UnavailableError."""
        if not await self._database.remove_mode(pattern, self._clock(), origin):
            raise NotFoundError(f"No mode is set for {pattern}.")
        await self._reader.sync()

    async def deregister(self, listener_id: str, principal: str | None, session: str | None) -> None:
        """Remove a listener that this principal registered with this session; None may remove any, and any session.

        Raises NotFoundError, FencedError, UnavailableError.
        """
        await self.get(listener_id)
        if principal is not None or session is not None:
            await self.refresh()  # Another principal or session may have registered it at another replica.
        async with self._reader.lock:
            entry = self._directory.get(listener_id)
            if principal is not None and (entry is None or entry.listener.principal != principal):
                raise NotFoundError("There is no such listener, or another token registered it.")
            if entry is not None and session not in (None, entry.listener.session):
                raise FencedError(f"Listener {listener_id} is registered with another session; it was not removed.")
            if not await self._database.remove([listener_id], session=session) and session is not None:
                raise FencedError(f"Listener {listener_id} has just registered with another session, or was removed.")
            self._directory.remove(listener_id)

    async def _make_room(self, listener_id: str, principal: str | None) -> None:
        """Remove the listener of a principal at its limit that lapsed first. Raises TooManyListenersError."""
        if (first := self._listener_in_the_way(listener_id, principal)) is not None:
            await self._database.remove([first.id])
            self._directory.remove(first.id)

    def _listener_in_the_way(self, listener_id: str, principal: str | None) -> ListenerEntry | None:
        """The listener that lapsed first, if the principal is at its limit. Raises TooManyListenersError."""
        storing = [storing_id for storing_id, by in self._storing.items() if by == principal]
        if principal is None or not self._quota.is_full(principal, listener_id, storing):
            return None
        own = (self._directory.get(own_id) for own_id in self._quota.ids_of(principal) - self._storing.keys())
        lapsed = [entry for entry in own if entry is not None and entry.expired]
        if not lapsed:
            raise TooManyListenersError(
                f"There are {self._quota.max_listeners} live listeners with this token, as many as it may have"
                " (BLOCKLIST_MAX_LISTENERS_PER_TOKEN): deregister some of them, or use another token."
            )
        return min(lapsed, key=lambda entry: (entry.listener.lease_end, entry.id))

    def _renew_in_memory(
        self, entry: ListenerEntry | None, requested: Registration, principal: str | None
    ) -> ListenerEntry | None:
        """The entry, if the request only renews its lease. With replicas only the database can tell."""
        if entry is None or self._ownership.shared or not entry.is_live(self._clock()):
            return None
        listener = self._apply_registration(entry.listener, requested, principal)
        if listener != replace(entry.listener, lease_end=listener.lease_end):
            return None
        entry.listener = listener
        return entry

    def _registered(self, waiting: _WaitingRegistration, stored: StoredListener | None) -> StoredListener:
        waiting.is_new = stored is None
        requested, principal = waiting.requested, waiting.principal
        if stored is not None and not waiting.may_replace:
            _check_is_own(stored.listener, principal)
        current = None if stored is None else self._with_unsaved(stored)
        listener = self._apply_registration(current, requested, principal)
        secret = Secret(current=_new_secret()) if stored is None else stored.secret
        owner = None
        if requested.callback_url is not None:
            owner = self._ownership.owner_for(None if stored is None else stored.owner)
        return StoredListener(listener=listener, secret=secret, owner=owner)

    def _apply_registration(self, current: Listener | None, requested: Registration, principal: str | None) -> Listener:
        now, tracker = self._clock(), self._view.tracker
        empty = not tracker.blocked(now)
        return register(current, requested, now=now, revision=tracker.revision, empty=empty, principal=principal)

    def _with_unsaved(self, stored: StoredListener) -> Listener:
        """A stored listener with the heartbeats that this replica has not saved yet."""
        if stored.expired_at is not None:
            return replace(stored.listener, lease_end=0)
        entry = self._directory.get(stored.listener.id)
        return stored.listener if entry is None else stored.listener.with_latest(entry.listener)

    async def _catch_up(self, revision: int) -> None:
        """Wait for a revision of another replica. Raises UnavailableError if it exists, or may exist, but not here."""
        if await self._view.wait_for_revision(revision, CATCH_UP_SECONDS):
            return
        if not self._view.is_current or not await self._feed.was_never_issued(revision):
            raise UnavailableError(f"This replica has not reached revision {revision} yet; try again.", retry_after=1)

    async def _read_registrations(self) -> None:
        """Read recent registrations at other replicas.

        Those in memory count during an outage of the database, and while a lock keeps anybody from registering.
        """
        try:
            await self._reader.sync_unless_recent()
        except LockedError:
            pass
        except UnavailableError:
            if self._view.is_current:
                raise


def _check_is_own(listener: Listener, principal: str | None) -> None:
    """Raise FencedError if another principal has registered it, also if its lease has ended: its tasks may run on."""
    if listener.principal not in (None, principal):
        raise FencedError(
            f"Listener {listener.id} is registered with another token. Choose another id, or ask an operator to remove"
            f" it: DELETE /listeners/{listener.id}."
        )


def _new_secret() -> str:
    """In the format of Standard Webhooks: at least 24 random bytes, in base64."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
