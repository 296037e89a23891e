"""Registry: listeners register, give signs of life, and leave."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import Final, Protocol

from app.engine.list_view import ListView
from app.listeners.directory import Roll
from app.listeners.member import ERROR, SILENT, Member, Report
from app.listeners.ownership import Replica
from app.listeners.reader import Follower
from app.listeners.writer import Keeper
from app.store.listeners import Secret, StoredListener
from blocklist.model.errors import BlocklistError, InvalidError, NotFoundError, UnavailableError
from blocklist.model.listener import FencedError, Listener, Registration, Role, heartbeat, register

OVERLAP: Final = 3_600_000
"""Milliseconds for which pushes are signed with the secret before a rotation, too."""
REACH_SECONDS: Final = 2.0
"""How long a listener that was told by another replica waits for this one to come so far."""

Change = Callable[[StoredListener | None], StoredListener]


class Database(Protocol):
    """Where listeners are kept, for all replicas. See app.store.listener_store."""

    async def change(self, listener_id: str, change: Change, history: str) -> StoredListener: ...
    async def remove(self, ids: Collection[str]) -> None: ...


class Registry:
    """What listeners ask for. Registrations are kept before they are answered, what they say a moment later.

    Belongs to the event loop.
    """

    def __init__(
        self,
        database: Database,
        replica: Replica,
        roll: Roll,
        follower: Follower,
        keeper: Keeper,
        view: ListView,
        clock: Callable[[], int],
    ) -> None:
        self._database = database
        self._replica = replica
        self._roll = roll
        self._follower = follower
        self._keeper = keeper
        self._view = view
        self._clock = clock

    def pushes_to(self, member: Member) -> bool:
        """Whether it is this replica that pushes to a member, if it is to be pushed to at all."""
        pushed = member.listener.callback_url is not None
        return pushed and self._roll.has(member) and self._replica.owns(member.owner)

    async def refresh(self) -> None:
        """Know what other replicas have written by now; while the database is away, what was known before."""
        if self._replica.shared:
            await self._follower.follow()

    async def find(self, listener_id: str) -> Member:
        """One listener, live or lapsed. Raises NotFoundError, UnavailableError."""
        if self._roll.get(listener_id) is None:
            await self.refresh()
        if (member := self._roll.get(listener_id)) is None:
            raise NotFoundError(f"There is no listener {listener_id}.")
        return member

    async def register(self, wanted: Registration) -> tuple[Member, bool]:
        """The listener as registered, and whether it is new. Raises FencedError, UnavailableError."""
        async with self._follower.changing:
            if (renewed := self._renewed(self._roll.get(wanted.id), wanted)) is not None:
                return renewed, False
            new = True

            def change(kept: StoredListener | None) -> StoredListener:
                nonlocal new
                new = kept is None
                return self._registered(kept, wanted)

            return await self._change(wanted.id, change), new

    def _renewed(self, member: Member | None, wanted: Registration) -> Member | None:
        """The member, if this only renews its lease; where there are replicas the database alone knows that."""
        if member is None or self._replica.shared or not member.listener.live(self._clock()):
            return None
        listener = self._rule(member.listener, wanted)
        if listener != replace(member.listener, lease_end=listener.lease_end):
            return None
        member.listener = listener
        return member

    def _registered(self, kept: StoredListener | None, wanted: Registration) -> StoredListener:
        listener = self._rule(None if kept is None else self._latest(kept), wanted)
        secret = kept.secret if kept is not None else Secret(present=_new_secret())
        owner = self._replica.heir(None if kept is None else kept.owner) if wanted.callback_url is not None else None
        return StoredListener(listener=listener, secret=secret, owner=owner)

    def _rule(self, present: Listener | None, wanted: Registration) -> Listener:
        now, tracker = self._clock(), self._view.tracker
        return register(present, wanted, now=now, revision=tracker.revision, empty=not tracker.blocked(now))

    def _latest(self, kept: StoredListener) -> Listener:
        """A listener as it is kept, with what was heard here and is not kept yet."""
        if kept.lapsed_at is not None:
            return replace(kept.listener, lease_end=0)
        known = self._roll.get(kept.listener.id)
        return kept.listener if known is None else kept.listener.with_latest(known.listener)

    async def _change(self, listener_id: str, change: Change) -> Member:
        history = self._view.tracker.history
        return self._follower.enter(await self._database.change(listener_id, change, history), history)

    async def beat(self, listener_id: str, session: str, acked: int | None, report: Report) -> Member:
        """`heartbeat`, where another replica may know of a revision or a session that this one does not yet."""
        if not self._replica.shared:
            return self.heartbeat(listener_id, session, acked, report)
        if acked is not None and not await self._view.reached(acked, REACH_SECONDS) and not self._view.current:
            raise UnavailableError(f"This replica has not seen revision {acked} yet.", retry_after=1)
        try:
            return self.heartbeat(listener_id, session, acked, report)
        except (NotFoundError, FencedError):
            await self._follower.follow()
            return self.heartbeat(listener_id, session, acked, report)

    def heartbeat(self, listener_id: str, session: str, acked: int | None, report: Report) -> Member:
        """A sign of life. Raises NotFoundError, FencedError, InvalidError; then nothing is changed."""
        member = self._roll.get(listener_id)
        revision, now = self._view.tracker.revision, self._clock()
        listener = heartbeat(None if member is None else member.listener, session, acked, now=now, revision=revision)
        assert member is not None
        if report.evidence is not None and listener.role is not Role.JOB_MASTER:
            raise InvalidError("evidence: only a JOB_MASTER runs tasks that could give any.")
        moved = listener.acked != member.listener.acked
        member.listener = listener
        if moved:
            self._roll.acknowledged(member)
        at = member.moment(now)
        news = () if report == SILENT else self._roll.hear(member, report, at)
        self._keeper.heard(member, at, moved=moved, news=news)
        return member

    def answered(self, member: Member, acked: int | None, report: Report, error: str | None) -> None:
        """It took a push and said this, of which `error` is wrong. Passed over if it has left or lapsed meanwhile."""
        if self._roll.has(member):
            with suppress(BlocklistError):
                self.heartbeat(member.id, member.listener.session, acked, report)
            self.told_of(member, error)

    def told_of(self, member: Member, error: str | None) -> None:
        """How the last push to it went; None is well."""
        if member.error != error:
            member.error = error
            self._keeper.heard(member, member.moment(self._clock()), news=[ERROR])

    async def rotate(self, listener_id: str, session: str) -> str:
        """A new secret; the old one signs as well for an hour. Raises NotFoundError, FencedError, UnavailableError."""

        def change(kept: StoredListener | None) -> StoredListener:
            now = self._clock()
            present = None if kept is None else self._latest(kept)
            listener = heartbeat(present, session, None, now=now, revision=self._view.tracker.revision)
            assert kept is not None
            secret = Secret(present=_new_secret(), old=kept.secret.present, old_until=now + OVERLAP)
            return replace(kept, listener=listener, secret=secret)

        async with self._follower.changing:
            return (await self._change(listener_id, change)).secret.present

    async def deregister(self, listener_id: str) -> None:
        """Forget a listener. Raises NotFoundError, UnavailableError."""
        await self.find(listener_id)
        async with self._follower.changing:
            await self._database.remove([listener_id])
            self._roll.leave(listener_id)


def _new_secret() -> str:
    """As Standard Webhooks has it: 24 random bytes or more, in base64."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
