"""What visitors of the page share: computed once, one at a time, and again once it is too old."""

from __future__ import annotations

import asyncio

import pytest

from app.page.shared import MAX_VALUES, ClusterShare, SharedValues
from tests.integration.in_process import ManualClock


class Computed:
    """Counts its computations; each takes a turn of the event loop."""

    def __init__(self) -> None:
        self.times = 0
        self.running = 0

    async def __call__(self) -> int:
        self.running += 1
        assert self.running == 1, "one at a time"
        await asyncio.sleep(0)
        self.running -= 1
        self.times += 1
        return self.times


def test_all_who_ask_meanwhile_share_one_computation() -> None:
    clock, compute = ManualClock(), Computed()
    shared = SharedValues(clock)

    async def ask(key: str) -> int:
        return await shared.get(key, compute, lambda _: 10)

    async def run() -> None:
        assert await asyncio.gather(*(ask("a") for _ in range(5)), ask("b")) == [1, 1, 1, 1, 1, 2]
        clock.now += 9
        assert await ask("a") == 1
        clock.now += 1
        assert await ask("a") == 3
        clock.now -= 5
        assert await ask("a") == 4, "the clock was set back"

    asyncio.run(run())


def test_the_age_may_depend_on_the_value_and_a_failure_is_not_kept() -> None:
    shared, compute = SharedValues(ManualClock()), Computed()

    async def fail() -> int:
        raise ValueError

    async def run() -> None:
        assert [await shared.get("a", compute, lambda value: 10 * (value > 1)) for _ in range(3)] == [1, 2, 2]
        with pytest.raises(ValueError, match=r"^$"):
            await shared.get("b", fail, lambda _: 10)
        assert await shared.get("b", compute, lambda _: 10) == 3

    asyncio.run(run())


def test_what_was_not_used_for_longest_goes_first() -> None:
    shared, made = SharedValues(ManualClock()), list[int]()

    def value(key: int) -> None:
        def compute() -> str:
            made.append(key)
            return "computed"

        shared.get_now(key, compute, 10)

    for key in range(MAX_VALUES):
        value(key)
    value(0)
    value(MAX_VALUES)
    made.clear()
    value(0)
    value(1)
    assert made == [1]


@pytest.mark.parametrize(
    ("blocked", "known", "text"),
    [
        (12, 340, "3.5 %"),
        (0, 340, "0.0 %"),
        (1, 10_000, "< 0.1 %"),
        (9_999, 10_000, "> 99.9 %"),
        (340, 340, "100.0 %"),
    ],
)
def test_none_and_all_are_shown_only_if_that_is_exact(blocked: int, known: int, text: str) -> None:
    assert ClusterShare(blocked, known).percent == text
