"""The order in which replicas that contend commit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from app.engine import turns
from app.engine.turns import Turns


@pytest.fixture(autouse=True)
def wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MIN_WAIT_SECONDS", 600.0)


def contending(replica: str, *others: str, clock: Callable[[], float] = time.monotonic) -> Turns:
    """Turns of a replica after a stale commit and commits of the others."""
    found = Turns(replica, clock)
    found.note_stale_commit()
    for other in others:
        found.note_commit(other)
    return found


async def is_next(waiting: Turns) -> bool:
    """Whether a replica need not wait; the event loop has run everything that is ready."""
    task = asyncio.create_task(waiting.wait())
    for _ in range(5):
        await asyncio.sleep(0)
    done = task.done()
    task.cancel()
    return done


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def test_without_contention_nobody_waits() -> None:
    async def scenario() -> None:
        found = Turns("b")
        found.note_commit("a")
        found.note_own_commit(0.001)
        assert await is_next(found)

    run(scenario())


@pytest.mark.parametrize(("last", "next_one"), [("a", "b"), ("b", "c"), ("c", "a")])
def test_after_each_commit_it_is_the_turn_of_exactly_one(last: str, next_one: str) -> None:
    async def scenario() -> None:
        names = ["a", "b", "c"]
        found = {name: contending(name, *(other for other in names if other != name)) for name in names}
        for name, replica in found.items():
            if name == last:
                replica.note_own_commit(0.001)
            else:
                replica.note_commit(last)
        assert [name for name, replica in found.items() if await is_next(replica)] == [next_one]

    run(scenario())


def test_a_turn_begins_with_the_commit_of_the_one_before() -> None:
    async def scenario() -> None:
        found = contending("c", "a", "b")
        found.note_own_commit(0.001)
        task = asyncio.create_task(found.wait())
        found.note_commit("a")
        await asyncio.sleep(0)
        assert not task.done()
        found.note_commit("b")
        await task

    run(scenario())


def test_a_replica_that_does_not_commit_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        found = contending("b", "a", "c")
        monkeypatch.setattr(turns, "MIN_WAIT_SECONDS", 0.001)
        found.note_own_commit(0.0)
        await found.wait()
        found.note_own_commit(60.0)
        assert await is_next(found)

    run(scenario())


def test_the_wait_is_limited_although_another_one_keeps_committing(monkeypatch: pytest.MonkeyPatch) -> None:
    """`a`, which stands between `c` and `b`, is idle."""

    async def scenario() -> None:
        found = contending("b", "a", "c")
        monkeypatch.setattr(turns, "MIN_WAIT_SECONDS", 0.001)
        found.note_own_commit(0.0)
        task = asyncio.create_task(found.wait())
        while not task.done():
            found.note_commit("c")
            await asyncio.sleep(0)

    run(scenario())


def test_a_slow_commit_does_not_prolong_the_wait_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a commit that took ten minutes, as while the database stood still, nobody waits for minutes."""
    monkeypatch.setattr(turns, "MIN_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(turns, "MAX_WAIT_SECONDS", 0.002)

    async def scenario() -> None:
        found = contending("b", "a")
        found.note_own_commit(600.0)
        await asyncio.wait_for(found.wait(), 60)

    run(scenario())


def test_replicas_that_committed_before_the_contention_are_not_waited_for() -> None:
    """Each restart of a replica has a new name."""

    async def scenario() -> None:
        found = Turns("b")
        for number in range(100):
            found.note_commit(f"aa{number}")
        found.note_stale_commit()
        found.note_commit("a")
        assert await is_next(found)

    run(scenario())


def test_a_replica_that_had_nothing_to_commit_in_its_turn_does_not_wait() -> None:
    async def scenario() -> None:
        found = contending("b", "a", "c")
        found.note_own_commit(0.001)
        for other in ("c", "a", "c"):  # After `a` it is its turn.
            found.note_commit(other)
        assert await is_next(found)

    run(scenario())


def test_a_replica_that_is_overtaken_in_its_turn_waits_for_the_next_one() -> None:
    async def scenario() -> None:
        found = contending("b", "a", "c")
        found.note_own_commit(0.001)
        found.note_commit("c")
        found.note_commit("a")
        assert await is_next(found)
        found.note_commit("c")
        found.note_stale_commit()
        assert not await is_next(found)

    run(scenario())


def test_nobody_waits_when_the_last_commit_is_long_ago() -> None:
    async def scenario() -> None:
        now = [1000.0]
        found = contending("b", "a", "c", clock=lambda: now[0])
        found.note_own_commit(0.001)
        assert not await is_next(found)
        now[0] += 2 * turns.MIN_WAIT_SECONDS + 1
        assert await is_next(found)

    run(scenario())


def test_a_replica_that_has_ended_during_the_contention_leaves_the_ring() -> None:
    async def scenario() -> None:
        found = contending("c", "a", "b")
        found.note_own_commit(0.001)
        found.note_commit("a")
        assert not await is_next(found)
        found.note_own_commit(0.001)
        found.note_commit("a")
        assert await is_next(found)

    run(scenario())


def test_a_replica_that_always_wins_waits_for_one_that_announces_its_losses() -> None:
    async def scenario() -> None:
        found = Turns("a")
        found.note_contender("b")
        found.note_own_commit(0.001)
        assert not await is_next(found)
        found.note_commit("b")
        assert await is_next(found)

    run(scenario())


def test_a_replica_that_announces_its_losses_is_waited_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be far from the database: its commit takes longer than those of this replica."""
    monkeypatch.setattr(turns, "MIN_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(turns, "MAX_WAIT_SECONDS", 600.0)

    async def scenario() -> None:
        now = 1000.0
        found = Turns("a", lambda: now)
        found.note_contender("b")
        found.note_own_commit(0.0)
        assert not await is_next(found)
        found.note_commit("b")
        found.note_own_commit(0.0)
        assert await is_next(found)

    run(scenario())
