"""BlocklistHandler with a log in memory: group commit, atomicity, failed commits, and other replicas."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Self, cast

import pytest
from structlog.testing import capture_logs

from app.engine import background, handler
from app.engine.background import TaskHealth
from app.engine.handler import BlocklistHandler, CommandFailedError, Outcome
from app.store.queries import LoadedState, LogTail, StaleError
from app.store.store import Store
from blocklist.model.changes import Author, Change, Snapshot
from blocklist.model.claims import RepeatRule
from blocklist.model.draft import BlocklistTracker, Draft
from blocklist.model.errors import ConflictError, UnavailableError
from blocklist.model.evidence import NO_BLOCKS, AutomaticBlocks, BlockRows
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode

pytestmark = pytest.mark.anyio

OPS = Author("ops")
MAX_TAIL = 3


class RecordingLog:
    """A log in memory that fails on request. Tests append the transactions of other replicas."""

    def __init__(self) -> None:
        self.transactions: list[list[Change]] = []
        self.history = "00000000"
        self.compacted_revision = 0
        self.failure: str | None = None
        self.commit_allowed = asyncio.Event()
        self.commit_allowed.set()
        self.stale_commits = 0
        self.is_locked = False
        self.unlock_failure: str | None = None

    @property
    def revision(self) -> int:
        return sum(map(len, self.transactions))

    def add_remote_change(self, *node_ids: str, at: int = 900) -> None:
        """Another replica blocks these nodes."""
        draft = Draft(BlocklistTracker(self._snapshot()), at)
        for node_id in node_ids:
            draft.block(blocked_node(node_id), allow_merge=True)
        self.transactions.append(draft.changes)

    async def commit(
        self, changes: Sequence[Change], *, after: int, history: str, blocks: BlockRows = NO_BLOCKS
    ) -> None:
        await self.commit_allowed.wait()
        if (after, history) != (self.revision, self.history):
            self.stale_commits += 1
            raise StaleError
        if self.failure == "before":
            raise UnavailableError("no disk")
        if changes:
            self.transactions.append(list(changes))
        if self.failure == "after":
            raise UnavailableError("no answer")

    async def tail(self, since: int) -> LogTail:
        kept = [change for transaction in self.transactions for change in transaction][self.compacted_revision :]
        last = [change for change in kept if change.revision == since]
        changes = [change for change in kept if change.revision > since]
        return LogTail(
            history=self.history, revision=self.revision, last=last[0] if last else None, changes=changes[:MAX_TAIL]
        )

    async def load(self) -> LoadedState:
        return LoadedState(self._snapshot(), {}, ())

    @asynccontextmanager
    async def locked(self, since: int) -> AsyncIterator[LogTail]:
        tail, before, self.is_locked = await self.tail(since), list(self.transactions), True
        try:
            yield tail
        finally:
            self.is_locked = False
        if self.unlock_failure is not None:
            if self.unlock_failure == "before":
                self.transactions = before
            raise UnavailableError("no answer")

    async def renew_history(self, lost: str) -> None:
        assert lost == self.history
        self.history = "11111111"

    def _snapshot(self) -> Snapshot:
        tracker = BlocklistTracker(Snapshot(revision=0, history=self.history))
        for transaction in self.transactions:
            for change in transaction:
                tracker.apply(change)
        return Snapshot(revision=self.revision, history=self.history, nodes={node.id: node for node in tracker})


class RecordingPublisher:
    def __init__(self) -> None:
        self.published: list[Change] = []
        self.published_from_log: list[Change] = []
        self.resets: list[LoadedState] = []

    def publish(self, changes: Sequence[Change], *, from_log: bool) -> None:
        self.published.extend(changes)
        if from_log:
            self.published_from_log.extend(changes)

    def reset(self, loaded: LoadedState) -> None:
        self.resets.append(loaded)


def blocked_node(node_id: str) -> BlockedNode:
    return BlockedNode(id=node_id, action=BlockAction.MARK_BLOCKED, start=1000, end=PERMANENT, cause="hot")


class HandlerHarness:
    """A handler, supervised as in the service."""

    def __init__(self, log: RecordingLog | None = None) -> None:
        self.tracker = BlocklistTracker(Snapshot(revision=0, history="00000000"))
        self.log = log or RecordingLog()
        self.publisher = RecordingPublisher()
        self.handler = BlocklistHandler(
            self.tracker, cast("Store", self.log), lambda: 1000, self.publisher, AutomaticBlocks(RepeatRule())
        )
        self.health = TaskHealth()

    async def block(self, node_id: str, *, merge: bool = False) -> Any:
        def command(draft: Draft) -> BlockedNode:
            return draft.block(blocked_node(node_id), allow_merge=merge)

        return await self.handler.submit(command, OPS)

    async def catch_up(self) -> None:
        """Notify the handler of a remote change, and wait until it has read the log."""
        self.handler.notify_remote_change()
        for _ in range(20):
            await asyncio.sleep(0)

    async def __aenter__(self) -> Self:
        self.running = self.health.start("changes", self.handler.run)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.handler.close()
        await self.running


async def test_queued_commands_share_one_transaction() -> None:
    async with HandlerHarness() as harness:
        harness.log.commit_allowed.clear()
        first = asyncio.create_task(harness.block("a"))
        await asyncio.sleep(0)
        rest = [asyncio.create_task(harness.block(f"n{n}")) for n in range(50)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert not first.done()
        harness.log.commit_allowed.set()
        outcomes = await asyncio.gather(first, *rest)
    assert [len(transaction) for transaction in harness.log.transactions] in ([1, 50], [51])
    assert [outcome.revision for outcome in outcomes] == list(range(1, 52))
    assert [change.revision for change in harness.publisher.published] == list(range(1, 52))


async def test_commands_submitted_one_after_another_share_a_transaction() -> None:
    async with HandlerHarness() as harness:
        asked = [asyncio.create_task(harness.block(node_id)) for node_id in ("a", "b")]
        for node_id in "cdef":
            await asyncio.sleep(0)
            asked.append(asyncio.create_task(harness.block(node_id)))
        await asyncio.gather(*asked)
        assert [len(changes) for changes in harness.log.transactions] == [6]


async def test_a_refused_command_does_not_affect_the_rest_of_its_batch() -> None:
    async with HandlerHarness() as harness:
        results = await asyncio.gather(
            harness.block("a"),
            harness.block("a"),
            harness.block("b"),
            harness.block("a", merge=True),
            return_exceptions=True,
        )
    assert [type(result).__name__ for result in results] == ["Outcome", "ConflictError", "Outcome", "Outcome"]
    assert isinstance(results[1], ConflictError)
    merged = results[3]
    assert isinstance(merged, Outcome)
    assert (merged.changes, merged.revision) == ((), 2)


async def test_a_callback_that_raises_does_not_stop_the_handler() -> None:
    def fail(_: object) -> None:
        raise RuntimeError("the connection is closed")

    outcomes: list[Any] = []
    with capture_logs() as logs:
        async with HandlerHarness() as harness:
            for node_id, callback in (("a", fail), ("b", outcomes.append)):
                node = blocked_node(node_id)
                harness.handler.submit_callback(partial(Draft.block, node=node, allow_merge=False), OPS, callback)
            later = await harness.block("c")
    assert [outcome.revision for outcome in outcomes] == [2]
    assert later.revision == 3
    assert [entry["part"] for entry in logs] == ["outcome of a change"]


async def test_a_command_that_fails_unexpectedly_changes_nothing_and_leaves_the_rest_of_its_batch() -> None:
    """Also if it fails after a change, or if the commit is repeated."""

    def fail(draft: Draft) -> None:
        draft.block(blocked_node("partly"), allow_merge=False)
        raise RuntimeError("a bug")

    async with HandlerHarness() as harness:
        harness.log.add_remote_change("theirs")
        results = await asyncio.gather(
            harness.block("a"), harness.handler.submit(fail, OPS), harness.block("b"), return_exceptions=True
        )
        assert isinstance(results[1], CommandFailedError)
        assert [result.revision for result in (results[0], results[2]) if isinstance(result, Outcome)] == [2, 3]
        assert harness.tracker.get("partly") is None
        assert harness.health.failed() == []


@pytest.mark.parametrize("error", [RuntimeError("a bug"), asyncio.CancelledError()], ids=["a bug", "a cancellation"])
async def test_a_commit_that_fails_unexpectedly_has_an_unknown_outcome_and_is_read_from_the_log(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "RESTART_SECONDS", 0.0)

    async with HandlerHarness() as harness:
        commit = harness.log.commit

        async def commit_and_fail(
            changes: Sequence[Change], *, after: int, history: str, blocks: BlockRows = NO_BLOCKS
        ) -> None:
            harness.log.commit = commit  # type: ignore[method-assign]
            await commit(changes, after=after, history=history, blocks=blocks)
            raise error

        harness.log.commit = commit_and_fail  # type: ignore[method-assign]
        with pytest.raises(UnavailableError, match="It is unknown whether the change was stored"):
            await asyncio.wait_for(harness.block("a"), 10)
        assert (await asyncio.wait_for(harness.block("b"), 10)).revision == 2
        assert [change.node.id for change in harness.publisher.published] == ["a", "b"]


async def test_a_failed_commit_publishes_nothing_and_fails_the_whole_batch() -> None:
    async with HandlerHarness() as harness:
        harness.log.failure = "before"
        for result in await asyncio.gather(harness.block("a"), harness.block("a"), return_exceptions=True):
            assert isinstance(result, UnavailableError)
        assert (harness.tracker.revision, harness.publisher.published) == (0, [])
        harness.log.failure = None
        assert (await harness.block("a")).revision == 1


async def test_a_commit_that_succeeded_without_an_answer_is_read_from_the_log() -> None:
    """The change is in the log: the next revision follows it, and it is published."""
    async with HandlerHarness() as harness:
        harness.log.failure = "after"
        with pytest.raises(UnavailableError):
            await harness.block("a")
        harness.log.failure = None
        with pytest.raises(ConflictError):
            await harness.block("a")
        assert (await harness.block("b")).revision == 2
    assert [change.node.id for change in harness.publisher.published] == ["a", "b"]


async def test_the_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "MAX_QUEUED", 3)

    async with HandlerHarness() as harness:
        harness.log.commit_allowed.clear()
        waiting = [asyncio.create_task(harness.block("first"))]
        await asyncio.sleep(0.01)
        waiting += [asyncio.create_task(harness.block(f"n{n}")) for n in range(4)]
        await asyncio.sleep(0)
        harness.log.commit_allowed.set()
        results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [isinstance(result, UnavailableError) for result in results] == [False] * 4 + [True]


async def test_a_cancelled_request_does_not_undo_its_change() -> None:
    async with HandlerHarness() as harness:
        harness.log.commit_allowed.clear()
        leaving = asyncio.create_task(harness.block("a"))
        await asyncio.sleep(0.01)
        leaving.cancel()
        harness.log.commit_allowed.set()
        assert (await harness.block("b")).revision == 2


async def test_close_executes_queued_commands_and_rejects_new_ones() -> None:
    async with HandlerHarness() as harness:
        waiting = asyncio.create_task(harness.block("a"))
        await asyncio.sleep(0)
        harness.handler.close()
        with pytest.raises(UnavailableError):
            await harness.block("b")
        assert (await waiting).revision == 1


async def test_changes_of_another_replica_are_read_from_the_log() -> None:
    async with HandlerHarness() as harness:
        harness.log.add_remote_change("a", "b", "c", "d", "e")
        await harness.catch_up()
        assert harness.tracker.revision == 5
        assert [change.node.id for change in harness.publisher.published_from_log] == ["a", "b", "c", "d", "e"]


async def test_a_stale_commit_is_decided_again_on_the_newer_list() -> None:
    """A node that another replica has blocked is a conflict; other commands of the batch succeed."""
    async with HandlerHarness() as harness:
        harness.log.add_remote_change("a")
        results = await asyncio.gather(harness.block("a"), harness.block("b"), return_exceptions=True)
        assert isinstance(results[0], ConflictError)
        assert isinstance(results[1], Outcome)
        assert (results[1].revision, harness.log.stale_commits) == (2, 1)


async def test_a_refusal_is_never_based_on_a_stale_list() -> None:
    """Another replica has unblocked the node, so a conflict would be wrong."""
    async with HandlerHarness() as harness:
        await harness.block("a")
        draft = Draft(harness.tracker, 1000)
        draft.unblock("a")
        harness.log.transactions.append(draft.changes)
        assert (await harness.block("a")).revision == 3


class BusyLog(RecordingLog):
    """Another replica commits first, whenever the log is not locked; this number of times also just before the lock."""

    def __init__(self, before_locks: float = 0) -> None:
        super().__init__()
        self.before_locks = before_locks
        self.locks = 0

    async def commit(
        self, changes: Sequence[Change], *, after: int, history: str, blocks: BlockRows = NO_BLOCKS
    ) -> None:
        if not self.is_locked:
            self.add_remote_change(f"other-{self.revision}")
        await super().commit(changes, after=after, history=history)

    @asynccontextmanager
    async def locked(self, since: int) -> AsyncIterator[LogTail]:
        self.locks += 1
        if self.locks <= self.before_locks:
            self.add_remote_change(*(f"more-{self.revision}-{number}" for number in range(MAX_TAIL + 1)))
        async with super().locked(since) as tail:
            yield tail


async def test_a_commit_that_loses_again_and_again_is_repeated_with_the_log_locked() -> None:
    async with HandlerHarness(log=BusyLog()) as harness:
        assert (await harness.block("a")).revision == handler.MAX_LOSSES + 1
        assert harness.log.stale_commits == handler.MAX_LOSSES


@pytest.mark.parametrize(("factor", "losses"), [(math.inf, 1), (0, 5)])
async def test_for_a_while_the_log_is_then_locked_at_once(
    monkeypatch: pytest.MonkeyPatch, factor: float, losses: int
) -> None:
    monkeypatch.setattr(handler, "LOCKING_FACTOR", factor)

    async with HandlerHarness(log=BusyLog()) as harness:
        for number in range(5):
            await harness.block(f"a{number}")
        assert harness.log.stale_commits == losses * handler.MAX_LOSSES


async def test_more_changes_than_one_page_are_read_without_the_lock() -> None:
    async with HandlerHarness(log=BusyLog(before_locks=handler.MAX_LOCKED_ATTEMPTS - 1)) as harness:
        in_between = handler.MAX_LOSSES + (handler.MAX_LOCKED_ATTEMPTS - 1) * (MAX_TAIL + 1)
        assert (await harness.block("a")).revision == in_between + 1


async def test_a_batch_that_is_always_behind_fails_and_later_ones_succeed() -> None:
    log = BusyLog(before_locks=math.inf)
    async with HandlerHarness(log=log) as harness:
        with pytest.raises(UnavailableError, match="Other replicas kept changing the list"):
            await harness.block("a")
        log.before_locks = 0
        assert (await harness.block("a")).revision == log.revision


@pytest.mark.parametrize("failure", ["before", "after"])
async def test_an_unlock_without_an_answer_is_no_acknowledgement(failure: str) -> None:
    """What became of the change is read from the log."""
    async with HandlerHarness(log=BusyLog()) as harness:
        harness.log.unlock_failure = failure
        with pytest.raises(UnavailableError, match="no answer"):
            await harness.block("a")
        harness.log.unlock_failure = None
        await harness.catch_up()
        assert (harness.tracker.get("a") is not None) == (failure == "after")
        assert (await harness.block("b")).revision == harness.log.revision


@pytest.mark.parametrize("after", [0, 1, 2, 3])
async def test_a_database_that_lost_changes_starts_a_new_history(after: int) -> None:
    """After a failover to a standby that was behind, with new changes, the list is that of the database."""
    async with HandlerHarness() as harness:
        await harness.block("a")
        await harness.block("lost")
        del harness.log.transactions[1:]
        for number in range(after):
            harness.log.add_remote_change(f"new-{number}", at=2000)
        await harness.catch_up()
        assert (harness.tracker.history, harness.tracker.revision) == ("11111111", 1 + after)
        assert harness.tracker.get("lost") is None
        assert [loaded.snapshot.history for loaded in harness.publisher.resets] == ["11111111"]
        assert (await harness.block("b")).revision == 2 + after


async def test_a_new_history_in_the_database_is_adopted() -> None:
    async with HandlerHarness() as harness:
        await harness.block("a")
        harness.log.history = "22222222"
        await harness.catch_up()
        assert harness.tracker.history == "22222222"
        assert len(harness.publisher.resets) == 1


async def test_a_replica_behind_the_compacted_log_reloads_the_list() -> None:
    async with HandlerHarness() as harness:
        await harness.block("a")
        harness.log.add_remote_change("b", "c")
        harness.log.compacted_revision = 2
        await harness.catch_up()
        assert (harness.tracker.history, harness.tracker.revision) == ("00000000", 3)
        assert harness.tracker.get("c") is not None


async def test_an_unexpected_error_restarts_the_handler_without_losing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler continues: later commands get an answer, and remote changes are applied."""
    monkeypatch.setattr(background, "RESTART_SECONDS", 0.0)

    async with HandlerHarness() as harness:
        news = harness.log.tail

        async def fail_once(since: int) -> LogTail:
            harness.log.tail = news  # type: ignore[method-assign]
            raise RuntimeError(f"nobody foresaw this at {since}")

        harness.log.tail = fail_once  # type: ignore[method-assign]
        harness.log.add_remote_change("theirs")
        with capture_logs() as logs:
            await harness.catch_up()
        assert [(entry["log_level"], entry["task"]) for entry in logs] == [("error", "changes")]
        assert [change.node.id for change in harness.publisher.published_from_log] == ["theirs"]
        assert (await harness.block("ours")).revision == 2
