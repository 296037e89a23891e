"""Background tasks, supervised: expire blocks, compact the change log, probe the database, block nodes by evidence."""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from time import monotonic
from typing import Final

import structlog

from app.engine.handler import BlocklistHandler, LimitGuard
from app.logs import isolated
from app.store.store import Store
from blocklist.model.changes import Author, Change, ChangeType, Source
from blocklist.model.claims import Repeat, Role, claim_of
from blocklist.model.draft import BlocklistTracker, BlocklistView, Draft
from blocklist.model.errors import LimitError, UnavailableError
from blocklist.model.evidence import (
    EVIDENCE_OWNER,
    TTL_MS,
    AutomaticBlocks,
    Dismissals,
    EvidenceStore,
    due_blocks,
    evidence_claim,
)
from blocklist.model.limits import EvidenceLimit
from blocklist.model.names import NameSet
from blocklist.model.node import BlockedNode, to_millis

log = structlog.get_logger(__name__)

EXPIRY_CHECK_SECONDS: Final = 0.25
"""Maximum interval between two checks: the wall clock may be set forward during a longer sleep."""
MIN_RETAINED: Final = 1000
"""Number of changes that always stay in the log, whatever the settings."""
CHUNK: Final = 1000
"""Maximum number of changes removed in one transaction, so that writers do not wait long."""
COMPACT_SECONDS: Final = 10.0
PROBE_SECONDS: Final = 1.0


async def expire_blocks(tracker: BlocklistTracker, handler: BlocklistHandler, clock: Callable[[], int]) -> None:
    """Commit the `expired` or `narrowed` change of each block when it, or one of its claims, ends; never returns."""
    while True:
        now = clock()
        if tracker.next_expiry() <= now:
            await _expire([node.id for node in tracker.ended(now)], handler)
        await asyncio.sleep(min(EXPIRY_CHECK_SECONDS, max(0.0, (tracker.next_expiry() - clock()) / 1000)))


async def _expire(ids: list[str], handler: BlocklistHandler) -> None:
    def expire(draft: Draft) -> None:
        for node_id in ids:
            draft.expire(node_id)

    try:
        await handler.submit(expire, Author(source=Source.TIME))
    except UnavailableError:
        # Reads already show the node as free; the change is committed once the database is available.
        await asyncio.sleep(1)


async def probe_database(store: Store, read_again: Callable[[], Awaitable[None]]) -> None:
    """Probe the database during an outage, and then read everything again, until that succeeds; never returns.

    Until then reads have an Age header: other replicas may have written while this one could not read.
    """
    while True:
        await asyncio.sleep(PROBE_SECONDS)
        if store.breaker.outdated_seconds() is not None:
            with isolated("recovery of the database"), suppress(UnavailableError):
                if store.breaker.open_seconds() is not None:
                    await store.probe()
                read_at = monotonic()
                await read_again()
                store.breaker.record_up_to_date(read_at)


class Compactor:
    """Removes the oldest changes from the log by number and age, never the last MIN_RETAINED."""

    def __init__(
        self,
        tracker: BlocklistTracker,
        store: Store,
        clock: Callable[[], int],
        *,
        max_changes: int,
        max_age: timedelta,
        on_compacted: Callable[[int], None],
    ) -> None:
        self._tracker = tracker
        self._store = store
        self._clock = clock
        self._max_changes = max_changes
        self._max_age = to_millis(max_age)
        self._on_compacted = on_compacted

    async def run(self) -> None:
        """Compact every COMPACT_SECONDS; never returns."""
        failing = False
        while True:
            pause = COMPACT_SECONDS
            try:
                if await self.step() == CHUNK:
                    pause = 0.05  # More to remove: let writers in between.
                failing = False
            except UnavailableError:
                if not failing:
                    log.warning("the change log could not be compacted")
                failing = True
            await asyncio.sleep(pause)

    async def step(self) -> int:
        """Remove at most CHUNK changes; return how many. Raises UnavailableError."""
        revision = self._tracker.revision
        removed = await self._store.compact(
            keep_from=revision - self._max_changes + 1,
            older_than=self._clock() - self._max_age,
            always_keep_from=revision - MIN_RETAINED + 1,
            limit=CHUNK,
            now=self._clock(),
        )
        with isolated("metrics of compaction"):
            self._on_compacted(removed)
        return removed


# Supervision: a background task that fails is started again, and `/readyz` reports it until it runs again.

RESTART_SECONDS: Final = 1.0
"""Delay before a background task that failed is started again."""
RECOVERY_SECONDS: Final = 10.0
"""How long a task must run after its restart until it counts as recovered.

Longer than the longest interval at which a task works (5 s, the refresh of tokens): one that fails each time it works
is reported without a break.
"""


async def supervise(task: str, work: Callable[[], Awaitable[None]], on_failure: Callable[[str], None]) -> None:
    """Run `work` until it returns. If it fails, log that, call `on_failure` with `task`, and start it again.

    It has failed, too, if something that it awaited was cancelled. A cancellation of this task itself ends it.
    """
    while True:
        try:
            return await work()
        except (Exception, asyncio.CancelledError):
            if _is_cancelled():
                raise
            log.exception("background task failed; restarting", task=task)
        with isolated("report of a failed task"):
            on_failure(task)
        await asyncio.sleep(RESTART_SECONDS)


class TaskHealth:
    """The background tasks that this process needs, and which of them have failed. Belongs to the event loop.

    `restarts` counts the restarts of each task.
    """

    def __init__(self) -> None:
        self.restarts: Tally[str] = Tally()
        self._failed_at: dict[str, float] = {}

    def start(self, task: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        self.restarts[task] += 0  # The metric shows a task from its start on.
        return asyncio.create_task(supervise(task, work, self.record_failure))

    @asynccontextmanager
    async def running(self, task: str, work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        """Run `work` in such a task until the context is left."""
        running = self.start(task, work)
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def record_failure(self, task: str) -> None:
        """The task has failed, and will be restarted after RESTART_SECONDS."""
        self.restarts[task] += 1
        self._failed_at[task] = monotonic()

    def failed(self) -> list[str]:
        """The tasks that have failed and have not run for RECOVERY_SECONDS since."""
        recovered_before = monotonic() - RESTART_SECONDS - RECOVERY_SECONDS
        return sorted(task for task, at in self._failed_at.items() if at > recovered_before)

    def check(self) -> None:
        """Raises UnavailableError with the names of the tasks that have failed, if any."""
        if failed := self.failed():
            raise UnavailableError(
                f"A background task has failed: {', '.join(failed)}. It is restarted by itself; the service's log has "
                "the error. Restart the service if this lasts.",
                retry_after=RECOVERY_SECONDS,
            )


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


# EvidenceBlocker: block nodes that enough applications report as bad.

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
        duration: int,
    ) -> None:
        """`duration` is that of the first block of a node, in milliseconds from the last report."""
        self.nodes_blocked = 0
        self._evidence = evidence
        self._tracker = tracker
        self._handler = handler
        self._guard = guard
        self._limit = limit
        self._automatic_blocks = automatic_blocks
        self._dismissals = dismissals
        self._clock = clock
        self._first_duration = duration
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
        return self._automatic_blocks.repeat(nodes, node_id, self._first_duration, now)

    def _duration(self, nodes: BlocklistView, node_id: str, now: int) -> int:
        repeat = self._repeat(nodes, node_id, now)
        return self._first_duration if repeat is None else repeat.duration

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
    """Also if another machine has the name since: what was observed before was observed on the former one."""
    if change.source is Source.REPLACEMENT:
        return True
    return change.type is ChangeType.UNBLOCKED and change.source is not Source.ALERTMANAGER
