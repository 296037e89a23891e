"""Keeper: writes down what is heard of listeners, for other replicas and for after a restart; and ends their leases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final, Protocol

import structlog

from app.listeners.directory import Roll
from app.listeners.member import Member
from app.listeners.ownership import BEAT_SECONDS, Replica
from app.listeners.reader import Follower
from app.store.listener_reports import Said
from blocklist.model.errors import UnavailableError
from blocklist.model.listener import Listener
from blocklist.model.tracker import BlocklistTracker

log = structlog.get_logger(__name__)

TURN_SECONDS: Final = 0.5
"""How often cursors are kept: a crash loses less than this of them, and pushes come again."""
GATHER_SECONDS: Final = 0.01
"""How long news for other replicas gather."""
GRACE: Final = 2000
"""Milliseconds after the end of a lease in which another replica's word of a heartbeat may still come."""


class Database(Protocol):
    """Where listeners are kept, for all replicas. See app.store.listener_store."""

    async def remove(self, ids: Collection[str], before: int | None = None) -> None: ...
    async def save_heard(self, heard: Sequence[Listener], said: Sequence[Said], history: str) -> None: ...
    async def save_lapsed(self, ended: Sequence[str], now: int, before: int) -> set[str]: ...


class Keeper:
    """Belongs to the event loop. `lapses` counts the leases whose end was written down here.

    Replicas hear of different heartbeats: sessions are fenced in the database; cursors and leases only move on; of what
    a listener says the latest counts, part by part. What is unsaved is at most an entry for each listener.
    """

    def __init__(
        self,
        database: Database,
        replica: Replica,
        roll: Roll,
        follower: Follower,
        tracker: BlocklistTracker,
        clock: Callable[[], int],
        forget_after: int,
    ) -> None:
        self.lapses = 0
        self._database = database
        self._replica = replica
        self._roll = roll
        self._follower = follower
        self._tracker = tracker
        self._clock = clock
        self._forget_after = forget_after
        self._unsaved: set[Member] = set()
        self._ended: set[str] = set()
        self._behind = False
        self._hurry = asyncio.Event()
        self._next_beat = self._next_turn = 0.0

    async def load(self) -> None:
        """Take over what was kept. Raises UnavailableError."""
        if self._replica.shared:
            await self._live()
        else:
            await self._follower.follow()
            self._renew_leases()

    def look(self) -> None:
        """Another replica has heard something."""
        self._behind = True
        self._hurry.set()

    def heard(self, member: Member, at: int, *, moved: bool = False, news: Iterable[str] = ()) -> None:
        """It gave a sign of life here; `moved` says that its cursor did, and `news` are parts that it said at `at`."""
        if not self._replica.shared:
            if moved:
                self._unsaved.add(member)
            return
        self._unsaved.add(member)
        for part in news:
            member.heard[part] = at
            member.untold.add(part)
        if moved or member.untold:
            self._hurry.set()

    async def run(self) -> None:
        """Keep, share and follow, notice leases that lapse, and forget listeners that are long gone; for ever."""
        while True:
            await self._pause()
            try:
                await self._turn()
            except UnavailableError:
                # The database is away: what is unsaved stays so until it is back.
                await asyncio.sleep(TURN_SECONDS)

    async def leave(self) -> None:
        """The service stops: keep what was heard, and let other replicas push. Raises UnavailableError."""
        await self._flush()
        await self._replica.leave()

    async def _pause(self) -> None:
        """Until it is time to keep what was heard; only a moment where other replicas wait for it."""
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._hurry.wait()
                await asyncio.sleep(GATHER_SECONDS)
        except TimeoutError:
            return
        self._hurry.clear()

    async def _turn(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._replica.shared and now >= self._next_beat:
            self._next_beat = now + BEAT_SECONDS
            await self._live()
        if self._behind:
            await self._follow()
        await self._flush()
        if now >= self._next_turn:
            self._next_turn = now + TURN_SECONDS
            await self._lapse()
            await self._forget()

    async def _live(self) -> None:
        """Say that this replica lives. If the others may have thought that it did not, everything is looked at anew."""
        if not self._replica.holds and await self._replica.alone():
            # Nobody could be heard meanwhile: who was live has a whole lease from now on. Before this replica says that
            # it lives, for whoever sees it live will take leases as they are kept.
            await self._follower.follow()
            self._renew_leases()
            await self._flush()
        await self._replica.beat()
        held = self._replica.holds
        if not held:
            await self._follow()
        self._replica.hold()
        if not held:
            for member in self._roll.members:
                self._follower.came(member)
        await self._adopt()

    async def _follow(self) -> None:
        self._behind = False
        try:
            await self._follower.follow()
            await self._adopt()
        except BaseException:
            self._behind = True
            raise

    async def _adopt(self) -> None:
        """Push to those who have nobody else to do it."""
        orphans = [
            member.id
            for member in self._roll.members
            if member.listener.callback_url is not None and not member.lapsed and self._replica.orphan(member.owner)
        ]
        if orphans:
            await self._replica.claim(orphans)
            self.look()

    async def _flush(self) -> None:
        """Keep, and share, what was heard. Raises UnavailableError."""
        unsaved, self._unsaved = self._unsaved, set()
        members = {member: member.untold for member in unsaved if self._roll.has(member)}
        if not members:
            return
        said = [self._said(member, part) for member, untold in members.items() for part in sorted(untold)]
        for member in members:
            member.untold = set()
        try:
            await self._database.save_heard([member.listener for member in members], said, self._tracker.history)
        except UnavailableError:
            self._unsaved |= unsaved
            for member, untold in members.items():
                member.untold |= untold
            raise

    def _said(self, member: Member, part: str) -> Said:
        session, since = member.listener.registration
        return Said(member.id, session, since, part, member.heard[part], self._roll.tell(member, part))

    def _renew_leases(self) -> None:
        now = self._clock()
        for member in self._roll.members:
            if not member.lapsed:
                member.listener = replace(member.listener, lease_end=now + member.listener.lease)
                self.heard(member, now)

    async def _lapse(self) -> None:
        """End the leases that nobody renewed. Where there are replicas the database has the last word."""
        if not self._replica.holds:
            return  # Others may hear what this one cannot know of.
        now = self._clock()
        before = now - (GRACE if self._replica.others else 0)
        ended = [member for member in self._roll.members if not member.lapsed and not member.listener.live(before)]
        self._ended.update(member.id for member in ended)
        if not self._replica.shared:
            for member in ended:
                self._roll.lapse(member)
                self._lapsed(member)
        if self._ended:
            lapsed = await self._database.save_lapsed(sorted(self._ended), now, before)
            self._ended.clear()
            if self._replica.shared:
                await self._follow()
                for member in ended:
                    if member.id in lapsed:
                        self._lapsed(member)

    def _lapsed(self, member: Member) -> None:
        self.lapses += 1
        log.warning("a listener's lease has lapsed", listener=member.id, session=member.listener.session)

    async def _forget(self) -> None:
        before = self._clock() - self._forget_after
        async with self._follower.changing:
            gone = [member.id for member in self._roll.members if member.listener.lease_end < before]
            if gone:
                await self._database.remove(gone, before)
            for own in gone:
                self._roll.leave(own)
