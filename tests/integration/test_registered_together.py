"""Listeners that are stored in one transaction: what happens to one must not change what happens to the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from app.listeners.reports import ReportsTooLargeError, TooManyListenersError
from app.service import Service
from app.store.listeners import StoredListener
from blocklist.model.errors import UnavailableError
from blocklist.model.listener import FencedError, ListenerRole, Registration, Report
from tests.integration.databases import ON_BOTH, ON_SQLITE, Databases
from tests.integration.in_process import InProcessService, RunningClock, in_process


@pytest.fixture
def process(tmp_path: Path, databases: Databases) -> Iterator[InProcessService]:
    limits = {"max_listeners_per_token": "3", "max_report_bytes_per_token": "40000"}
    with in_process(RunningClock(), **databases.settings(tmp_path), **limits) as process:
        yield process


def run(process: InProcessService, scenario: Callable[[Service], Awaitable[None]]) -> None:
    process.portal.call(scenario, process.app.state.service)


def registration(listener: str, session: str = "s1", lease: int = 600_000) -> Registration:
    return Registration(id=listener, role=ListenerRole.JOB_MASTER, session=session, lease=lease)


async def together(service: Service, *requests: tuple[Registration, str]) -> list[Any]:
    """The outcomes of registrations that wait at the same time."""
    tasks = await waiting(service, *requests)
    return await asyncio.gather(*tasks, return_exceptions=True)


async def waiting(service: Service, *requests: tuple[Registration, str]) -> list[asyncio.Task[Any]]:
    """Registrations, as tasks that wait at the same time; the first stores all."""
    async with service.registry._reader.lock:
        tasks = [asyncio.create_task(service.registry.register(*request)) for request in requests]
        await until(lambda: len(service.registry._waiting) == len(tasks))
    return tasks


async def fill(service: Service, token: str) -> None:
    """Register as many listeners as a token may have; one of them has lapsed."""
    for name in ("lapsed", "jm-0", "jm-1"):
        await service.registry.register(registration(name), token)
    entry = service.directory.get("lapsed")
    assert entry is not None
    service.directory.expire(entry)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition did not come true")


@ON_SQLITE
def test_one_that_had_lapsed_and_registers_again_makes_no_room(process: InProcessService) -> None:
    async def scenario(service: Service) -> None:
        await fill(service, "token")
        again, new = await together(service, (registration("lapsed", "s2"), "token"), (registration("jm-2"), "token"))
        assert again[0].id == "lapsed"
        assert isinstance(new, TooManyListenersError)
        assert service.directory.ids == {"lapsed", "jm-0", "jm-1"}

    run(process, scenario)


@ON_BOTH
def test_a_takeover_that_fails_leaves_the_reports_counted(process: InProcessService) -> None:
    async def scenario(service: Service) -> None:
        registry = service.registry
        for session in ("s1", "s2"):
            await registry.register(registration("jm", session), "token")
        nodes = {f"tm-{number:046}": f"node-{number:045}" for number in range(9)}
        await registry.heartbeat("jm", "s2", None, Report(task_managers=nodes), "token")
        with pytest.raises(FencedError):
            await registry.register(registration("jm", "s1"), "operator")
        await registry.register(registration("other"), "token")
        with pytest.raises(ReportsTooLargeError):
            await registry.heartbeat("other", "s1", None, Report(task_managers=nodes), "token")

    run(process, scenario)


@ON_SQLITE
def test_after_an_interruption_nothing_is_counted_and_nobody_waits(process: InProcessService) -> None:
    async def scenario(service: Service) -> None:
        registry = service.registry
        await fill(service, "full")
        requests = [(registration(f"new-{number}"), "token") for number in range(3)]
        tasks = await waiting(service, *requests, (registration("jm-2"), "full"))
        await until(lambda: not registry._waiting)
        tasks[0].cancel()
        await until(tasks[0].done)
        tasks[1].cancel()
        first, second, *others = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(first, asyncio.CancelledError)
        assert isinstance(second, asyncio.CancelledError)
        assert [type(each) for each in others] == [UnavailableError] * 2
        for number in range(3):
            await registry.register(registration(f"later-{number}"), "token")

    run(process, scenario)


@ON_SQLITE
def test_others_get_their_turn_between_those_that_take_over(process: InProcessService) -> None:
    """Each may drop the reports of thousands of nodes."""

    async def scenario(service: Service) -> None:
        names = [f"jm-{number}" for number in range(3)]
        for name in names:
            await service.registry.register(registration(name), "token")
        tasks = await waiting(service, *((registration(name, "s2"), "token") for name in names))
        seen = set[int]()
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            seen.add(sum(entry.listener.session == "s2" for entry in service.directory.entries))
        assert seen == {0, 1, 2, 3}

    run(process, scenario)


@ON_SQLITE
def test_one_that_fails_by_a_bug_fails_alone(process: InProcessService) -> None:
    async def scenario(service: Service) -> None:
        faulty = registration("jm-1", lease=None)  # type: ignore[arg-type]
        requests = [(it, "token") for it in (registration("jm-0"), faulty, registration("jm-2"))]
        outcomes = await together(service, *requests)
        assert [type(each) for each in outcomes] == [tuple, TypeError, tuple]
        assert service.directory.ids == {"jm-0", "jm-2"}

    run(process, scenario)


@pytest.mark.databases("postgresql")
def test_an_outage_while_one_is_retried_does_not_concern_what_is_stored(
    process: InProcessService, databases: Databases, tmp_path: Path
) -> None:
    attempts = 0

    def change(stored: StoredListener | None) -> StoredListener:
        assert stored is not None
        return stored

    def contested(stored: StoredListener | None) -> StoredListener:
        """At the first attempt another replica is faster, at the second one there is no database."""
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            with psycopg.connect(databases.url_for(tmp_path)) as other:
                other.execute("UPDATE listeners SET session = 's2' WHERE id = 'jm-1'")
        else:
            process.app.state.service.store.breaker.record_failure(OSError("no database"))
        return change(stored)

    async def scenario(service: Service) -> None:
        for name in ("jm-0", "jm-1"):
            await service.registry.register(registration(name), "token")
        history = service.view.tracker.history
        outcomes = await service.store.listeners.update({"jm-0": change, "jm-1": contested}, history)
        assert isinstance(outcomes["jm-0"], StoredListener)
        assert isinstance(outcomes["jm-1"], UnavailableError)

    run(process, scenario)
