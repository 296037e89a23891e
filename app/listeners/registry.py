"""Registry: listeners register, give signs of life, and leave."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import Final, Protocol

from app.engine.list_view import ListView
from app.listeners.directory import ListenerDirectory
from app.listeners.entry import EMPTY_REPORT, ERROR, ListenerEntry, Report
from app.listeners.ownership import PushOwnership
from app.listeners.reader import ListenerReader
from app.listeners.writer import ListenerWriter
from app.store.listeners import Secret, StoredListener
from blocklist.model.errors import BlocklistError, InvalidError, NotFoundError, UnavailableError
from blocklist.model.listener import FencedError, Listener, ListenerRole, Registration, heartbeat, register

SECRET_OVERLAP_MS: Final = 3_600_000
"""Milliseconds for which pushes are signed with the secret before a rotation, too."""
CATCH_UP_SECONDS: Final = 2.0
"""How long a listener that was told by another replica waits for this one to come so far."""

Change = Callable[[StoredListener | None], StoredListener]


class RegistrationStore(Protocol):
    """Where listeners are kept, for all replicas. See app.store.listener_store."""

    async def update(self, listener_id: str, change: Change, history: str) -> StoredListener: ...
    async def remove(self, ids: Collection[str]) -> None: ...


class ListenerRegistry:
    """What listeners ask for. Registrations are kept before they are answered, what they say a moment later.

    Belongs to the event loop.
    """

    def __init__(
        self,
        database: RegistrationStore,
        replica: PushOwnership,
        directory: ListenerDirectory,
        follower: ListenerReader,
        keeper: ListenerWriter,
        view: ListView,
        clock: Callable[[], int],
    ) -> None:
        self._database = database
        self._ownership = replica
        self._directory = directory
        self._reader = follower
        self._writer = keeper
        self._view = view
        self._clock = clock

    def pushes_to(self, entry: ListenerEntry) -> bool:
        """Whether it is this replica that pushes to a entry, if it is to be pushed to at all."""
        pushed = entry.listener.callback_url is not None
        return pushed and self._directory.is_current(entry) and self._ownership.owns(entry.owner)

    async def refresh(self) -> None:
        """Know what other replicas have written by now; while the database is away, what was known before."""
        if self._ownership.shared:
            await self._reader.sync()

    async def get(self, listener_id: str) -> ListenerEntry:
        """One listener, live or lapsed. Raises NotFoundError, UnavailableError."""
        if self._directory.get(listener_id) is None:
            await self.refresh()
        if (entry := self._directory.get(listener_id)) is None:
            raise NotFoundError(f"There is no listener {listener_id}.")
        return entry

    async def register(self, wanted: Registration) -> tuple[ListenerEntry, bool]:
        """The listener as registered, and whether it is new. Raises FencedError, UnavailableError."""
        async with self._reader.lock:
            if (renewed := self._renew_in_memory(self._directory.get(wanted.id), wanted)) is not None:
                return renewed, False
            new = True

            def change(kept: StoredListener | None) -> StoredListener:
                nonlocal new
                new = kept is None
                return self._registered(kept, wanted)

            return await self._change(wanted.id, change), new

    def _renew_in_memory(self, entry: ListenerEntry | None, wanted: Registration) -> ListenerEntry | None:
        """The entry, if this only renews its lease; where there are replicas the database alone knows that."""
        if entry is None or self._ownership.shared or not entry.listener.is_live(self._clock()):
            return None
        listener = self._apply_registration(entry.listener, wanted)
        if listener != replace(entry.listener, lease_end=listener.lease_end):
            return None
        entry.listener = listener
        return entry

    def _registered(self, kept: StoredListener | None, wanted: Registration) -> StoredListener:
        listener = self._apply_registration(None if kept is None else self._with_unsaved(kept), wanted)
        secret = kept.secret if kept is not None else Secret(current=_new_secret())
        owner = (
            self._ownership.owner_for(None if kept is None else kept.owner) if wanted.callback_url is not None else None
        )
        return StoredListener(listener=listener, secret=secret, owner=owner)

    def _apply_registration(self, present: Listener | None, wanted: Registration) -> Listener:
        now, tracker = self._clock(), self._view.tracker
        return register(present, wanted, now=now, revision=tracker.revision, empty=not tracker.blocked(now))

    def _with_unsaved(self, kept: StoredListener) -> Listener:
        """A listener as it is kept, with what was heard here and is not kept yet."""
        if kept.expired_at is not None:
            return replace(kept.listener, lease_end=0)
        known = self._directory.get(kept.listener.id)
        return kept.listener if known is None else kept.listener.with_latest(known.listener)

    async def _change(self, listener_id: str, change: Change) -> ListenerEntry:
        history = self._view.tracker.history
        return self._reader.upsert(await self._database.update(listener_id, change, history), history)

    async def heartbeat(self, listener_id: str, session: str, acked: int | None, report: Report) -> ListenerEntry:
        """`heartbeat`, where another replica may know of a revision or a session that this one does not yet."""
        if not self._ownership.shared:
            return self.apply_heartbeat(listener_id, session, acked, report)
        if (
            acked is not None
            and not await self._view.wait_for_revision(acked, CATCH_UP_SECONDS)
            and not self._view.is_current
        ):
            raise UnavailableError(f"This replica has not seen revision {acked} yet.", retry_after=1)
        try:
            return self.apply_heartbeat(listener_id, session, acked, report)
        except (NotFoundError, FencedError):
            await self._reader.sync()
            return self.apply_heartbeat(listener_id, session, acked, report)

    def apply_heartbeat(self, listener_id: str, session: str, acked: int | None, report: Report) -> ListenerEntry:
        """A sign of life. Raises NotFoundError, FencedError, InvalidError; then nothing is changed."""
        entry = self._directory.get(listener_id)
        revision, now = self._view.tracker.revision, self._clock()
        listener = heartbeat(None if entry is None else entry.listener, session, acked, now=now, revision=revision)
        assert entry is not None
        if report.evidence is not None and listener.role is not ListenerRole.JOB_MASTER:
            raise InvalidError("evidence: only a JOB_MASTER runs tasks that could give any.")
        moved = listener.acked != entry.listener.acked
        entry.listener = listener
        if moved:
            self._directory.record_ack(entry)
        at = entry.next_timestamp(now)
        news = () if report == EMPTY_REPORT else self._directory.apply_report(entry, report, at)
        self._writer.mark_dirty(entry, at, moved=moved, parts=news)
        return entry

    def on_push_response(self, entry: ListenerEntry, acked: int | None, report: Report, error: str | None) -> None:
        """It took a push and said this, of which `error` is wrong. Passed over if it has left or lapsed meanwhile."""
        if self._directory.is_current(entry):
            with suppress(BlocklistError):
                self.apply_heartbeat(entry.id, entry.listener.session, acked, report)
            self.record_push_error(entry, error)

    def record_push_error(self, entry: ListenerEntry, error: str | None) -> None:
        """How the last push to it went; None is well."""
        if entry.error != error:
            entry.error = error
            self._writer.mark_dirty(entry, entry.next_timestamp(self._clock()), parts=[ERROR])

    async def rotate_secret(self, listener_id: str, session: str) -> str:
        """A new secret; the old one signs as well for an hour. Raises NotFoundError, FencedError, UnavailableError."""

        def change(kept: StoredListener | None) -> StoredListener:
            now = self._clock()
            present = None if kept is None else self._with_unsaved(kept)
            listener = heartbeat(present, session, None, now=now, revision=self._view.tracker.revision)
            assert kept is not None
            secret = Secret(current=_new_secret(), previous=kept.secret.current, previous_until=now + SECRET_OVERLAP_MS)
            return replace(kept, listener=listener, secret=secret)

        async with self._reader.lock:
            return (await self._change(listener_id, change)).secret.current

    async def deregister(self, listener_id: str) -> None:
        """Forget a listener. Raises NotFoundError, UnavailableError."""
        await self.get(listener_id)
        async with self._reader.lock:
            await self._database.remove([listener_id])
            self._directory.remove(listener_id)


def _new_secret() -> str:
    """As Standard Webhooks has it: 24 random bytes or more, in base64."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
