"""EvidenceBlocks: when enough applications say that a node is bad, the service blocks it by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import structlog

from app.engine.handler import BlocklistHandler
from app.engine.limits import LimitGuard
from blocklist.model.changes import Author, Change, ChangeType, Source
from blocklist.model.draft import BlocklistView, Draft
from blocklist.model.errors import LimitError, UnavailableError
from blocklist.model.evidence import TTL_MS, EvidenceStore, due_blocks, evidence_cause
from blocklist.model.node import BlockedNode
from blocklist.model.roles import Role
from blocklist.model.tracker import BlocklistTracker

log = structlog.get_logger(__name__)

CHECK_SECONDS: Final = 0.5
"""How often the evidence is looked at: a block comes so much later than what made it necessary."""
PRUNE_INTERVAL_MS: Final = 10_000
"""Milliseconds between two times that what holds no longer is forgotten."""
RELOADED_CHANGES: Final = 1000
"""Changes that are read at the start, for what was unblocked by hand."""
UNBLOCK_MEMORY_MS: Final = 3_600_000
"""Milliseconds for which an unblock by hand is remembered over a restart: Spark excludes a host for so long."""
RESTART_GRACE_MS: Final = 30_000
"""Milliseconds after a start in which applications say again what they said before: nobody knows what is new."""
RETRY_MS: Final = 10_000
"""Milliseconds after which a block that a limit refused is tried again, while the evidence stands."""
_AUTHOR: Final = Author("evidence", Source.EVIDENCE)


class ReadableChangeLog(Protocol):
    """The change log in the database."""

    async def changes(self, since: int) -> list[Change]: ...


class EvidenceBlocker:
    """Makes and renews the blocks. `made` counts nodes blocked, without renewals. Belongs to the event loop.

    The limits of an operator hold for it, too. What they refuse is said and counted once, and tried again now and then.
    """

    def __init__(
        self,
        book: EvidenceStore,
        tracker: BlocklistTracker,
        handler: BlocklistHandler,
        guard: LimitGuard,
        clock: Callable[[], int],
    ) -> None:
        self.nodes_blocked = 0
        self._book = book
        self._tracker = tracker
        self._handler = handler
        self._guard = guard
        self._clock = clock
        self._next_prune = 0
        self._next_try: dict[str, int] = {}

    async def load(self, change_log: ReadableChangeLog) -> None:
        """After a restart nobody knows which evidence is older than an unblock by hand: for a while none counts."""
        now = self._clock()
        last = {
            change.node.id: change
            for change in await change_log.changes(max(0, self._tracker.revision - RELOADED_CHANGES))
        }
        for node_id, change in last.items():
            if _unblocked_by_hand(change) and change.at > now - UNBLOCK_MEMORY_MS:
                self._book.record_unblock(node_id, now + RESTART_GRACE_MS)

    async def run(self) -> None:
        """Look now and then, for ever."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                await self.step()
            except UnavailableError:
                # What is said then counts when the database is back.
                continue

    async def step(self) -> None:
        """Block what is to be blocked now. Raises UnavailableError."""
        now = self._clock()
        if now >= self._next_prune:
            self._book.prune(now)
            self._next_prune = now + PRUNE_INTERVAL_MS
            self._next_try = {node_id: at for node_id, at in self._next_try.items() if now < at + TTL_MS}
        if not self._due_blocks(self._tracker, now):
            return
        made, refused = (await self._handler.submit(self._block, _AUTHOR)).value
        for node in made:
            self.nodes_blocked += 1
            log.warning("a node is blocked as applications say so", node=node.id, cause=node.cause, end=node.end)
        self._defer(refused, now)

    def _block(self, draft: Draft) -> tuple[Sequence[BlockedNode], Mapping[str, LimitError]]:
        """The command: judged anew, as somebody may have unblocked a node since; returns what is no renewal."""
        # In this very transaction somebody unblocks it by hand: the book hears of that after the commit.
        freed = {change.node.id for change in draft.changes if change.type is ChangeType.UNBLOCKED}
        wanted = [node for node in self._due_blocks(draft, draft.now) if node.id not in freed]
        new = [node for node in wanted if evidence_cause(draft.get(node.id), draft.now) is None]
        refused = self._guard.block_each(draft, wanted, Role.OPERATOR)
        return [node for node in new if node.id not in refused], refused

    def _due_blocks(self, nodes: BlocklistView, now: int) -> list[BlockedNode]:
        """What is to be blocked or renewed, without what was refused a moment ago."""
        found = due_blocks(self._book.verdicts(now), nodes, now)
        return [node for node in found if self._next_try.get(node.id, now) <= now]

    def _defer(self, refused: Mapping[str, LimitError], now: int) -> None:
        for node_id, error in refused.items():
            if node_id not in self._next_try:
                self._guard.count_refusal(_AUTHOR.source)
                log.warning("a node that applications say is bad is not blocked", node=node_id, reason=error.detail)
            self._next_try[node_id] = now + RETRY_MS


def on_changes(book: EvidenceStore, changes: Sequence[Change]) -> None:
    """These changes were committed: what was unblocked by hand is not blocked again by what was known then.

    An alert that resolves is no such word: it knows nothing of what applications say.
    """
    for change in changes:
        if _unblocked_by_hand(change):
            book.record_unblock(change.node.id, change.at)


def _unblocked_by_hand(change: Change) -> bool:
    return change.type is ChangeType.UNBLOCKED and change.source is not Source.ALERTMANAGER
