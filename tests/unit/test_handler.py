"""BlocklistHandler with a log in memory: group commit, atomicity, failed commits, and replicas beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Self

import pytest
from structlog.testing import capture_logs

from app.engine import background, handler
from app.engine.background import steadily
from app.engine.handler import TRIES, BlocklistHandler, Outcome
from app.store.queries import Loaded, News, StaleError
from blocklist.model.changes import Author, Change, Snapshot
from blocklist.model.draft import Draft
from blocklist.model.errors import ConflictError, UnavailableError
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode
from blocklist.model.tracker import BlocklistTracker

OPS = Author("ops")
FOLLOWED = 3


class RecordingLog:
    """A log that keeps its transactions, and fails when told to. `transactions` that follow may be anybody's."""

    def __init__(self) -> None:
        self.transactions: list[list[Change]] = []
        self.history = "00000000"
        self.compacted = 0
        self.fail: str | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.stale = 0

    @property
    def revision(self) -> int:
        return sum(map(len, self.transactions))

    def add(self, *node_ids: str, at: int = 900) -> None:
        """Another replica blocks these nodes."""
        draft = Draft(BlocklistTracker(self._snapshot()), at)
        for node_id in node_ids:
            draft.block(hot(node_id), allow_merge=True)
        self.transactions.append(draft.changes)

    async def commit(self, changes: Sequence[Change], *, after: int, history: str) -> None:
        await self.gate.wait()
        if (after, history) != (self.revision, self.history):
            self.stale += 1
            raise StaleError
        if self.fail == "before":
            raise UnavailableError("no disk")
        if changes:
            self.transactions.append(list(changes))
        if self.fail == "after":
            raise UnavailableError("no answer")

    async def news(self, since: int) -> News:
        kept = [change for transaction in self.transactions for change in transaction][self.compacted :]
        last = [change for change in kept if change.revision == since]
        changes = [change for change in kept if change.revision > since]
        return News(
            history=self.history, revision=self.revision, last=last[0] if last else None, changes=changes[:FOLLOWED]
        )

    async def load(self) -> Loaded:
        return Loaded(self._snapshot(), {})

    async def renew_history(self, lost: str) -> None:
        assert lost == self.history
        self.history = "11111111"

    def _snapshot(self) -> Snapshot:
        tracker = BlocklistTracker(Snapshot(revision=0, history=self.history))
        for transaction in self.transactions:
            for change in transaction:
                tracker.apply(change)
        return Snapshot(revision=self.revision, history=self.history, nodes={node.id: node for node in tracker})


class RecordingMemory:
    def __init__(self) -> None:
        self.published: list[Change] = []
        self.found: list[Change] = []
        self.restarts: list[Loaded] = []

    def publish(self, changes: Sequence[Change], *, found: bool) -> None:
        self.published.extend(changes)
        if found:
            self.found.extend(changes)

    def restart(self, loaded: Loaded) -> None:
        self.restarts.append(loaded)


def hot(node_id: str) -> BlockedNode:
    return BlockedNode(id=node_id, action=BlockAction.MARK_BLOCKED, start=1000, end=PERMANENT, cause="hot")


class Bench:
    """A handler at work, as the service lets it work."""

    def __init__(self, max_waiting: int = 100) -> None:
        self.tracker = BlocklistTracker(Snapshot(revision=0, history="00000000"))
        self.log = RecordingLog()
        self.memory = RecordingMemory()
        self.handler = BlocklistHandler(self.tracker, self.log, lambda: 1000, self.memory, max_waiting=max_waiting)

    async def block(self, node_id: str, *, merge: bool = False) -> Any:
        def command(draft: Draft) -> BlockedNode:
            return draft.block(hot(node_id), allow_merge=merge)

        return await self.handler.submit(command, OPS)

    async def follow(self) -> None:
        """Let the handler look, and wait until it has."""
        self.handler.look()
        for _ in range(20):
            await asyncio.sleep(0)

    async def __aenter__(self) -> Self:
        self.running = asyncio.create_task(steadily("changes", self.handler.run))
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
        assert [change.revision for change in bench.memory.published] == list(range(1, 52))

    run(scenario)


def test_what_streams_in_shares_it_too() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            asked = [asyncio.create_task(bench.block(node_id)) for node_id in ("a", "b")]
            for node_id in "cdef":
                await asyncio.sleep(0)
                asked.append(asyncio.create_task(bench.block(node_id)))
            await asyncio.gather(*asked)
            assert [len(changes) for changes in bench.log.transactions] == [6]

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
            assert (bench.tracker.revision, bench.memory.published) == (0, [])
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
        assert [change.node.id for change in bench.memory.published] == ["a", "b"]

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


def test_what_another_replica_did_is_followed() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            bench.log.add("a", "b", "c", "d", "e")
            await bench.follow()
            assert bench.tracker.revision == 5
            assert [change.node.id for change in bench.memory.found] == ["a", "b", "c", "d", "e"]

    run(scenario)


def test_who_comes_second_decides_anew() -> None:
    """A node that another replica has blocked meanwhile is a conflict, and the others of the batch go on."""

    async def scenario() -> None:
        async with Bench() as bench:
            bench.log.add("a")
            results = await asyncio.gather(bench.block("a"), bench.block("b"), return_exceptions=True)
            assert isinstance(results[0], ConflictError)
            assert isinstance(results[1], Outcome)
            assert (results[1].revision, bench.log.stale) == (2, 1)

    run(scenario)


def test_a_refusal_is_not_answered_from_an_old_list() -> None:
    """Another replica has freed the node: nobody may be told that it is blocked."""

    async def scenario() -> None:
        async with Bench() as bench:
            await bench.block("a")
            draft = Draft(bench.tracker, 1000)
            draft.unblock("a")
            bench.log.transactions.append(draft.changes)
            assert (await bench.block("a")).revision == 3

    run(scenario)


def test_who_is_always_second_is_told_so() -> None:
    class Busy(RecordingLog):
        async def commit(self, changes: Sequence[Change], *, after: int, history: str) -> None:
            self.add(f"other-{self.revision}")
            await super().commit(changes, after=after, history=history)

    async def scenario() -> None:
        bench = Bench()
        busy = bench.log = Busy()
        bench.handler = BlocklistHandler(bench.tracker, busy, lambda: 1000, bench.memory, max_waiting=100)
        async with bench:
            with pytest.raises(UnavailableError):
                await bench.block("a")
            assert busy.stale == TRIES

    run(scenario)


async def second(bench: Bench) -> None:
    """The handler comes second, and then changes the list: by now it is the others' turn."""
    bench.log.add("other")
    await bench.block("a")
    assert bench.log.stale == 1


def test_who_came_second_lets_another_go_first_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "GIVE_WAY_SECONDS", 600)

    async def scenario() -> None:
        async with Bench() as bench:
            await second(bench)
            blocked = asyncio.ensure_future(bench.block("b"))
            done, _ = await asyncio.wait([blocked], timeout=0.05)
            assert not done
            bench.log.add("another")
            bench.handler.look()
            assert (await blocked).revision == 4
            assert bench.log.stale == 1

    run(scenario)


def test_it_goes_on_where_nobody_wants_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "GIVE_WAY_SECONDS", 0.001)

    async def scenario() -> None:
        async with Bench() as bench:
            await second(bench)
            assert (await bench.block("b")).revision == 3
            # And from then on without a pause.
            monkeypatch.setattr(handler, "GIVE_WAY_SECONDS", 600)
            assert (await bench.block("c")).revision == 4

    run(scenario)


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_a_database_that_lost_changes_begins_a_new_history(after: int) -> None:
    """A standby that was behind took over, and others have written to it since: the list is what the database says."""

    async def scenario() -> None:
        async with Bench() as bench:
            await bench.block("a")
            await bench.block("lost")
            del bench.log.transactions[1:]
            for number in range(after):
                bench.log.add(f"new-{number}", at=2000)
            await bench.follow()
            assert (bench.tracker.history, bench.tracker.revision) == ("11111111", 1 + after)
            assert bench.tracker.get("lost") is None
            assert [loaded.snapshot.history for loaded in bench.memory.restarts] == ["11111111"]
            assert (await bench.block("b")).revision == 2 + after

    run(scenario)


def test_another_history_is_taken_over() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            await bench.block("a")
            bench.log.history = "22222222"
            await bench.follow()
            assert bench.tracker.history == "22222222"
            assert len(bench.memory.restarts) == 1

    run(scenario)


def test_who_was_away_longer_than_the_log_reaches_takes_the_whole_list() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            await bench.block("a")
            bench.log.add("b", "c")
            bench.log.compacted = 2
            await bench.follow()
            assert (bench.tracker.history, bench.tracker.revision) == ("00000000", 3)
            assert bench.tracker.get("c") is not None

    run(scenario)


def test_what_nobody_foresaw_costs_a_moment_and_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only writer goes on: whoever changes something later gets an answer, and what was to be followed is."""
    monkeypatch.setattr(background, "ANEW_SECONDS", 0.0)

    async def scenario() -> None:
        async with Bench() as bench:
            news = bench.log.news

            async def fail_once(since: int) -> News:
                bench.log.news = news  # type: ignore[method-assign]
                raise RuntimeError(f"nobody foresaw this at {since}")

            bench.log.news = fail_once  # type: ignore[method-assign]
            bench.log.add("theirs")
            with capture_logs() as logs:
                await bench.follow()
            assert [(entry["log_level"], entry["part"]) for entry in logs] == [("error", "changes")]
            assert [change.node.id for change in bench.memory.found] == ["theirs"]
            assert (await bench.block("ours")).revision == 2

    run(scenario)
