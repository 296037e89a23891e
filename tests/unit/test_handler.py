"""BlocklistHandler with a log in memory: group commit, atomicity, and what happens when a commit fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Self

import pytest

from app.handler import BlocklistHandler, Outcome
from blocklist.changes import Author, Change, Snapshot
from blocklist.draft import Draft
from blocklist.errors import ConflictError, UnavailableError
from blocklist.node import PERMANENT, BlockAction, BlockedNode
from blocklist.tracker import BlocklistTracker

OPS = Author("ops")


class RecordingLog:
    """A log that keeps its transactions, and fails when told to."""

    def __init__(self) -> None:
        self.transactions: list[list[Change]] = []
        self.fail: str | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def commit(self, changes: Sequence[Change]) -> None:
        await self.gate.wait()
        if self.fail == "before":
            raise UnavailableError("no disk")
        self.transactions.append(list(changes))
        if self.fail == "after":
            raise UnavailableError("no answer")

    async def revision(self) -> int:
        return sum(map(len, self.transactions))

    async def changes(self, since: int) -> list[Change]:
        return [change for transaction in self.transactions for change in transaction if change.revision > since]


class Bench:
    def __init__(self, max_waiting: int = 100) -> None:
        self.tracker = BlocklistTracker(Snapshot(revision=0, history="00000000"))
        self.log = RecordingLog()
        self.published: list[Change] = []
        self.handler = BlocklistHandler(
            self.tracker, self.log, lambda: 1000, self.published.extend, max_waiting=max_waiting
        )

    async def block(self, node_id: str, *, merge: bool = False) -> Any:
        node = BlockedNode(id=node_id, action=BlockAction.MARK_BLOCKED, start=1000, end=PERMANENT, cause="hot")

        def command(draft: Draft) -> BlockedNode:
            return draft.block(node, allow_merge=merge)

        return await self.handler.submit(command, OPS)

    async def __aenter__(self) -> Self:
        self.running = asyncio.create_task(self.handler.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.handler.close()
        await self.running


def run(scenario: Any) -> None:
    asyncio.run(scenario())


def test_what_waits_shares_one_transaction() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            bench.log.gate.clear()
            first = asyncio.create_task(bench.block("a"))
            await asyncio.sleep(0)
            rest = [asyncio.create_task(bench.block(f"n{n}")) for n in range(50)]
            for _ in range(5):
                await asyncio.sleep(0)
            assert not first.done()
            bench.log.gate.set()
            outcomes = await asyncio.gather(first, *rest)
        assert [len(transaction) for transaction in bench.log.transactions] in ([1, 50], [51])
        assert [outcome.revision for outcome in outcomes] == list(range(1, 52))
        assert [change.revision for change in bench.published] == list(range(1, 52))

    run(scenario)


def test_a_refusal_leaves_the_others_of_its_transaction_alone() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            results = await asyncio.gather(
                bench.block("a"),
                bench.block("a"),
                bench.block("b"),
                bench.block("a", merge=True),
                return_exceptions=True,
            )
        assert [type(result).__name__ for result in results] == ["Outcome", "ConflictError", "Outcome", "Outcome"]
        assert isinstance(results[1], ConflictError)
        merged = results[3]
        assert isinstance(merged, Outcome)
        assert (merged.changes, merged.revision) == ((), 2)

    run(scenario)


def test_nothing_is_answered_nor_seen_when_the_commit_fails() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            bench.log.fail = "before"
            for result in await asyncio.gather(bench.block("a"), bench.block("a"), return_exceptions=True):
                assert isinstance(result, UnavailableError)
            assert (bench.tracker.revision, bench.published) == (0, [])
            bench.log.fail = None
            assert (await bench.block("a")).revision == 1

    run(scenario)


def test_a_commit_that_happened_without_an_answer_is_followed() -> None:
    """The change is in the log: revisions go on behind it, nobody misses it."""

    async def scenario() -> None:
        async with Bench() as bench:
            bench.log.fail = "after"
            with pytest.raises(UnavailableError):
                await bench.block("a")
            bench.log.fail = None
            with pytest.raises(ConflictError):
                await bench.block("a")
            assert (await bench.block("b")).revision == 2
        assert [change.node.id for change in bench.published] == ["a", "b"]

    run(scenario)


def test_the_queue_is_bounded() -> None:
    async def scenario() -> None:
        async with Bench(max_waiting=3) as bench:
            bench.log.gate.clear()
            waiting = [asyncio.create_task(bench.block("first"))]
            await asyncio.sleep(0.01)
            waiting += [asyncio.create_task(bench.block(f"n{n}")) for n in range(4)]
            await asyncio.sleep(0)
            bench.log.gate.set()
            results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [isinstance(result, UnavailableError) for result in results] == [False] * 4 + [True]

    run(scenario)


def test_a_client_that_left_does_not_undo_its_change() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            bench.log.gate.clear()
            leaving = asyncio.create_task(bench.block("a"))
            await asyncio.sleep(0.01)
            leaving.cancel()
            bench.log.gate.set()
            assert (await bench.block("b")).revision == 2

    run(scenario)


def test_closing_carries_out_what_waits_and_takes_no_more() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            waiting = asyncio.create_task(bench.block("a"))
            await asyncio.sleep(0)
            bench.handler.close()
            with pytest.raises(UnavailableError):
                await bench.block("b")
            assert (await waiting).revision == 1

    run(scenario)
