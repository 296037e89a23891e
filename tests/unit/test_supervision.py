"""A background task that fails is restarted, and reported until it has run again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from app.auth.authenticator import REFRESH_SECONDS
from app.engine import background
from app.engine.background import TaskHealth, supervise
from app.logs import isolated
from blocklist.model.errors import UnavailableError


@pytest.fixture(autouse=True)
def _quick_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "RESTART_SECONDS", 0.0)


def failing(times: int, error: Callable[[], BaseException]) -> tuple[Callable[[], Awaitable[None]], list[int]]:
    """Work that fails so many times and then returns; the list has an item for each run."""
    runs: list[int] = []

    async def work() -> None:
        runs.append(len(runs))
        await asyncio.sleep(0)
        if len(runs) <= times:
            raise error()

    return work, runs


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError])
def test_a_task_is_restarted_when_it_fails_or_what_it_awaits_is_cancelled(error: type[BaseException]) -> None:
    health = TaskHealth()
    work, runs = failing(2, error)

    async def scenario() -> None:
        await asyncio.wait_for(health.start("work", work), 10)

    with capture_logs() as logs:
        asyncio.run(scenario())
    assert len(runs) == 3
    assert health.restarts == {"work": 2}
    assert [entry["task"] for entry in logs] == ["work", "work"]


@pytest.mark.parametrize("error", [None, RuntimeError("while it ends")])
def test_a_task_that_is_cancelled_ends_whatever_it_raises_then(error: Exception | None) -> None:
    health, runs = TaskHealth(), list[int]()

    async def work() -> None:
        runs.append(len(runs))
        try:
            await asyncio.Event().wait()
        finally:
            if error is not None:
                raise error

    async def scenario() -> None:
        task = health.start("work", work)
        await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=10)
        assert done == {task}
        assert task.cancelled() or task.exception() is error

    asyncio.run(scenario())
    assert (len(runs), health.restarts) == (1, {"work": 0})


def test_a_failure_that_cannot_be_reported_does_not_end_the_task() -> None:
    def report(_: str) -> None:
        raise RuntimeError("a bug")

    work, runs = failing(1, RuntimeError)
    asyncio.run(supervise("work", work, report))
    assert len(runs) == 2


def test_a_failed_task_is_reported_until_it_has_run_for_the_recovery_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(background, "RESTART_SECONDS", 1.0)
    monkeypatch.setattr(background, "monotonic", lambda: now)
    health = TaskHealth()
    health.check()
    health.record_failure("expiry")
    now += background.RESTART_SECONDS + background.RECOVERY_SECONDS - 0.1
    health.record_failure("evidence")
    with pytest.raises(UnavailableError, match=r"failed: evidence, expiry\. .*log has the error\. Restart the service"):
        health.check()
    now += 0.2
    assert health.failed() == ["evidence"]
    now += background.RESTART_SECONDS + background.RECOVERY_SECONDS
    health.check()


def test_a_task_that_fails_each_time_it_works_is_reported_without_a_break() -> None:
    """The tokens have the longest interval."""
    assert background.RECOVERY_SECONDS > REFRESH_SECONDS


def test_only_exceptions_are_isolated_not_the_end_of_a_task_or_process() -> None:
    part = isolated("part")
    with part:
        raise RuntimeError
    for error in (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
        with pytest.raises(error), part:
            raise error
