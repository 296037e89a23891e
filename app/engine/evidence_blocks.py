"""EvidenceBlocks: when enough applications say that a node is bad, the service blocks it by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import structlog

from app.engine.handler import BlocklistHandler
from app.engine.limits import Guard
from blocklist.model.changes import Author, Change, ChangeType, Source
from blocklist.model.draft import Draft, Nodes
from blocklist.model.errors import LimitError, UnavailableError
from blocklist.model.evidence import HOLD, EvidenceBook, blocks, cause_in
from blocklist.model.node import BlockedNode
from blocklist.model.roles import Access
from blocklist.model.tracker import BlocklistTracker

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 0.5
"""How often the evidence is looked at: a block comes so much later than what made it necessary."""
TURN: Final = 10_000
"""Milliseconds between two times that what holds no longer is forgotten."""
LOOK_BACK: Final = 1000
"""Changes that are read at the start, for what was unblocked by hand."""
RECENT: Final = 3_600_000
"""Milliseconds for which an unblock by hand is remembered over a restart: Spark excludes a host for so long."""
GRACE: Final = 30_000
"""Milliseconds after a start in which applications say again what they said before: nobody knows what is new."""
PAUSE: Final = 10_000
"""Milliseconds after which a block that a limit refused is tried again, while the evidence stands."""
_AUTHOR: Final = Author("evidence", Source.EVIDENCE)


class ReadableLog(Protocol):
    """The change log in the database."""

    async def changes(self, since: int) -> list[Change]: ...


class EvidenceBlocks:
    """Makes and renews the blocks. `made` counts nodes blocked, without renewals. Belongs to the event loop.

    The limits of an operator hold for it, too. What they refuse is said and counted once, and tried again now and then.
    """

    def __init__(
        self,
        book: EvidenceBook,
        tracker: BlocklistTracker,
        handler: BlocklistHandler,
        guard: Guard,
        clock: Callable[[], int],
    ) -> None:
        self.made = 0
        self._book = book
        self._tracker = tracker
        self._handler = handler
        self._guard = guard
        self._clock = clock
        self._next_turn = 0
        self._next_try: dict[str, int] = {}

    async def load(self, kept: ReadableLog) -> None:
        """After a restart nobody knows which evidence is older than an unblock by hand: for a while none counts."""
        now = self._clock()
        last = {change.node.id: change for change in await kept.changes(max(0, self._tracker.revision - LOOK_BACK))}
        for node_id, change in last.items():
            if _by_hand(change) and change.at > now - RECENT:
                self._book.unblocked(node_id, now + GRACE)

    async def run(self) -> None:
        """Look now and then, for ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.step()
            except UnavailableError:
                # What is said then counts when the database is back.
                continue

    async def step(self) -> None:
        """Block what is to be blocked now. Raises UnavailableError."""
        now = self._clock()
        if now >= self._next_turn:
            self._book.turn(now)
            self._next_turn = now + TURN
            self._next_try = {node_id: at for node_id, at in self._next_try.items() if now < at + HOLD}
        if not self._wanted(self._tracker, now):
            return
        made, refused = (await self._handler.submit(self._block, _AUTHOR)).value
        for node in made:
            self.made += 1
            log.warning("a node is blocked as applications say so", node=node.id, cause=node.cause, end=node.end)
        self._put_off(refused, now)

    def _block(self, draft: Draft) -> tuple[Sequence[BlockedNode], Mapping[str, LimitError]]:
        """The command: judged anew, as somebody may have unblocked a node since; returns what is no renewal."""
        # In this very transaction somebody unblocks it by hand: the book hears of that after the commit.
        freed = {change.node.id for change in draft.changes if change.type is ChangeType.UNBLOCKED}
        wanted = [node for node in self._wanted(draft, draft.now) if node.id not in freed]
        new = [node for node in wanted if cause_in(draft.get(node.id), draft.now) is None]
        refused = self._guard.block_each(draft, wanted, Access.OPERATOR)
        return [node for node in new if node.id not in refused], refused

    def _wanted(self, nodes: Nodes, now: int) -> list[BlockedNode]:
        """What is to be blocked or renewed, without what was refused a moment ago."""
        found = blocks(self._book.verdicts(now), nodes, now)
        return [node for node in found if self._next_try.get(node.id, now) <= now]

    def _put_off(self, refused: Mapping[str, LimitError], now: int) -> None:
        for node_id, error in refused.items():
            if node_id not in self._next_try:
                self._guard.count(_AUTHOR.source)
                log.warning("a node that applications say is bad is not blocked", node=node_id, reason=error.detail)
            self._next_try[node_id] = now + PAUSE


def hear(book: EvidenceBook, changes: Sequence[Change]) -> None:
    """These changes were committed: what was unblocked by hand is not blocked again by what was known then.

    An alert that resolves is no such word: it knows nothing of what applications say.
    """
    for change in changes:
        if _by_hand(change):
            book.unblocked(change.node.id, change.at)


def _by_hand(change: Change) -> bool:
    return change.type is ChangeType.UNBLOCKED and change.source is not Source.ALERTMANAGER
