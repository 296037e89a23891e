"""Follower: takes over what is written of listeners, by other replicas or before a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import structlog

from app.listeners.directory import Roll
from app.listeners.member import Member
from app.store.listener_reports import Said
from app.store.listeners import News, StoredListener
from blocklist.model.errors import InvalidError
from blocklist.model.tracker import BlocklistTracker

log = structlog.get_logger(__name__)


class Database(Protocol):
    """Where listeners are kept, for all replicas. See app.store.listener_store."""

    async def news(self, since: int) -> News: ...
    async def ids(self) -> set[str]: ...


class Follower:
    """Belongs to the event loop. `came` is told of each Member that registers, or whose pushes are another's by now.

    `changing` is held by whoever reads from the database and enters what he read: what is entered later is newer.
    """

    def __init__(self, database: Database, roll: Roll, tracker: BlocklistTracker) -> None:
        self.came: Callable[[Member], None] = lambda _: None
        self.changing = asyncio.Lock()
        self._database = database
        self._roll = roll
        self._tracker = tracker
        self._version = -1

    async def follow(self) -> None:
        """Know all that is written by now. Raises UnavailableError."""
        async with self.changing:
            news = await self._database.news(self._version)
            for stored in news.changed:
                self.enter(stored, news.history)
            for said in news.said:
                self._take(said)
            if news.number != len(self._roll):
                for gone in self._roll.ids - await self._database.ids():
                    self._roll.leave(gone)
            self._version = news.version

    def enter(self, stored: StoredListener, history: str) -> Member:
        """The member of a listener that is kept so: the same one if it registered once, else a new one."""
        listener = stored.listener
        if history != self._tracker.history:
            listener = replace(listener, acked=None)  # It says nothing of the list as it is here.
        known = self._roll.get(listener.id)
        if known is None or known.listener.registration != listener.registration:
            known = Member(listener=listener, secret=stored.secret, lapsed=stored.lapsed_at is not None)
            self._roll.enter(known)
            before = None
        else:
            before = known.listener.callback_url, known.owner
            self._merge(known, replace(stored, listener=listener))
        known.owner = stored.owner
        if before != (listener.callback_url, stored.owner):
            self.came(known)
        return known

    def _merge(self, known: Member, stored: StoredListener) -> None:
        """It renewed its lease, acknowledged something, or lapsed."""
        before = known.listener
        if stored.lapsed_at is None:
            known.listener = stored.listener.with_latest(before)
        else:
            known.listener = replace(stored.listener, acked=before.acked)
        known.secret = stored.secret
        self._roll.index(known)
        if known.listener.acked != before.acked:
            self._roll.acknowledged(known)
        if stored.lapsed_at is not None and not known.lapsed:
            self._roll.lapse(known)

    def _take(self, said: Said) -> None:
        """What a listener said, most often to another replica; later than what is known, or the same again."""
        member = self._roll.get(said.listener)
        if (
            member is None
            or member.lapsed
            or member.listener.registration != (said.session, said.since)
            or said.at < member.heard.get(said.part, said.at)
        ):
            return
        member.heard[said.part] = said.at
        try:
            self._roll.take(member, said.part, said.text, said.at)
        except InvalidError as error:
            log.warning("what a listener said to another replica is passed over", listener=member.id, reason=str(error))
