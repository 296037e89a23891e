"""EvidenceBlocker: block nodes that enough applications report as bad."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from app.engine.handler import BlocklistHandler
from app.engine.limits import LimitGuard
from app.store.store import Store
from blocklist.model.automatic_blocks import AutomaticBlocks, Dismissals
from blocklist.model.changes import Author, Change, ChangeType, Source
from blocklist.model.claims import Repeat, claim_of
from blocklist.model.draft import Draft
from blocklist.model.errors import LimitError, UnavailableError
from blocklist.model.evidence import EVIDENCE_OWNER, TTL_MS, EvidenceStore, due_blocks, evidence_claim
from blocklist.model.limits import EvidenceLimit
from blocklist.model.names import NameSet
from blocklist.model.node import BlockedNode
from blocklist.model.roles import Role
from blocklist.model.tracker import BlocklistTracker, BlocklistView

log = structlog.get_logger(__name__)

CHECK_SECONDS: Final = 0.5
"""Interval at which the evidence is checked: the maximum delay between sufficient evidence and the block."""
PRUNE_INTERVAL_MS: Final = 10_000
"""Interval at which expired evidence is removed."""
RELOADED_CHANGES: Final = 1000
"""Number of changes read at the start, to find nodes that were unblocked manually without a claim to dismiss."""
UNBLOCK_MEMORY_MS: Final = 3_600_000
"""How long a manual unblock survives a restart: as long as Spark excludes a host by default."""
RESTART_GRACE_MS: Final = 30_000
"""After a start applications repeat old evidence, which cannot be told from new evidence for this long."""
RETRY_MS: Final = 10_000
"""Interval at which a block that a limit refused is retried while the evidence is valid."""
_AUTHOR: Final = Author(EVIDENCE_OWNER, Source.EVIDENCE)


class EvidenceBlocker:
    """Creates and renews the blocks. `nodes_blocked` counts nodes, without renewals. Belongs to the event loop.

    The limits for operators apply, and one on all blocks from evidence. A block that they refuse is logged and counted
    once, and retried every RETRY_MS.
    """

    def __init__(
        self,
        evidence: EvidenceStore,
        tracker: BlocklistTracker,
        handler: BlocklistHandler,
        guard: LimitGuard,
        limit: EvidenceLimit,
        automatic_blocks: AutomaticBlocks,
        dismissals: Dismissals,
        clock: Callable[[], int],
    ) -> None:
        self.nodes_blocked = 0
        self._evidence = evidence
        self._tracker = tracker
        self._handler = handler
        self._guard = guard
        self._limit = limit
        self._automatic_blocks = automatic_blocks
        self._dismissals = dismissals
        self._clock = clock
        self._next_prune = 0
        self._next_try: dict[str, int] = {}

    async def load(self, store: Store) -> None:
        """Ignore evidence about nodes that were unblocked manually before a restart: it may be older than that."""
        now = self._clock()
        # Not only the last change of each node: it may have been blocked again since, for another reason.
        changes = await store.changes(max(0, self._tracker.revision - RELOADED_CHANGES))
        unblocked = [(change.node.id, change.at) for change in changes if _is_manual_unblock(change)]
        # Those that dismissed claims may be further back in the log.
        unblocked += [
            (node_id, it.at) for node_id, owners in self._dismissals.by_node().items() for it in owners.values()
        ]
        for node_id in {node_id for node_id, at in unblocked if at > now - UNBLOCK_MEMORY_MS}:
            self._evidence.record_unblock(node_id, now + RESTART_GRACE_MS)

    async def run(self) -> None:
        """Check every CHECK_SECONDS; never returns."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                await self.step()
            except UnavailableError:
                continue  # The evidence is checked again when the database is available.

    async def step(self) -> None:
        """Block the nodes that are due. Raises UnavailableError."""
        now = self._clock()
        if now >= self._next_prune:
            self._evidence.prune(now)
            self._next_prune = now + PRUNE_INTERVAL_MS
            self._next_try = {node_id: at for node_id, at in self._next_try.items() if now < at + TTL_MS}
        if not self._due_blocks(self._tracker, now):
            return
        blocked, refused = (await self._handler.submit(self._block, _AUTHOR)).value
        for node in blocked:
            self.nodes_blocked += 1
            log.warning("node blocked because of evidence", node=node.id, cause=node.cause, end=node.end)
        self._defer(refused, now)

    def _block(self, draft: Draft) -> tuple[Sequence[BlockedNode], Mapping[str, LimitError]]:
        """The command: evaluates the evidence again, and returns the new blocks (no renewals) and the refusals."""
        # Unblocked earlier in this transaction: the evidence store learns of that only after the commit.
        freed = (change.node.id for change in draft.changes if change.type is ChangeType.UNBLOCKED)
        unblocked = NameSet(freed, draft.aliases)
        due = [node for node in self._due_blocks(draft, draft.now) if not any(unblocked.matching(node.id))]
        new = [node for node in due if evidence_claim(draft, node.id, draft.now) is None]
        refused = self._block_within_limits(draft, due)
        return [node for node in new if node.id not in refused], refused

    def _block_within_limits(self, draft: Draft, due: Sequence[BlockedNode]) -> dict[str, LimitError]:
        """Make the blocks that the limits allow; return the refusals by node id. A renewal needs no further room."""
        max_nodes = self._limit.max_nodes()
        count = sum(claim_of(draft.claims(node.id), EVIDENCE_OWNER) is not None for node in draft)
        refused = {}
        for node in due:
            renewal = evidence_claim(draft, node.id, draft.now) is not None
            if max_nodes is not None and count >= max_nodes and not renewal:
                refused[node.id] = self._limit.error(max_nodes)
                continue
            repeat = self._repeat(draft, node.id, draft.now)
            refused |= self._guard.block_each(draft, [node], Role.OPERATOR, repeat)
            count += node.id not in refused and not renewal
        return refused

    def _due_blocks(self, nodes: BlocklistView, now: int) -> list[BlockedNode]:
        """Blocks to create or renew, without those refused less than RETRY_MS ago."""
        due = due_blocks(self._evidence.verdicts(now), nodes, now, lambda node_id: self._duration(nodes, node_id, now))
        return [node for node in due if self._next_try.get(node.id, now) <= now]

    def _repeat(self, nodes: BlocklistView, node_id: str, now: int) -> Repeat | None:
        return self._automatic_blocks.repeat(nodes, node_id, TTL_MS, now)

    def _duration(self, nodes: BlocklistView, node_id: str, now: int) -> int:
        repeat = self._repeat(nodes, node_id, now)
        return TTL_MS if repeat is None else repeat.duration

    def _defer(self, refused: Mapping[str, LimitError], now: int) -> None:
        for node_id, error in refused.items():
            if node_id not in self._next_try:
                self._guard.count_refusal(_AUTHOR.source)
                log.warning("node not blocked despite evidence: a limit forbids it", node=node_id, reason=error.detail)
            self._next_try[node_id] = now + RETRY_MS


def on_changes(evidence: EvidenceStore, changes: Sequence[Change]) -> None:
    """Discard the evidence about nodes that were unblocked manually, so that it does not block them again.

    An alert that resolves is not a manual unblock: it says nothing about what applications observe.
    """
    for change in changes:
        if _is_manual_unblock(change):
            evidence.record_unblock(change.node.id, change.at)


def _is_manual_unblock(change: Change) -> bool:
    return change.type is ChangeType.UNBLOCKED and change.source is not Source.ALERTMANAGER
