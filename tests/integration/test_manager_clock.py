"""A manager on a machine whose clock is wrong: blocks begin and end by the service's clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from blocklist import BlocklistClient
from blocklist.client.session import ListenerSession
from blocklist.client.watch import WatchThread
from blocklist.managers.plan import DesiredState, ManagerPlan, NotInForce
from blocklist.managers.reconcile import ReconcileLoop
from blocklist.model.listener import ListenerRole, Registration
from tests.integration.manager_process import acked_revision
from tests.integration.process import ServiceProcess, wait_until

HOUR = 3600 * 10**9


class Recorder:
    """A manager that only records which nodes are to be blocked, each time that this changes."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    def plan(self, desired: DesiredState) -> ManagerPlan:
        if self.seen[-1:] != [sorted(desired.nodes)]:
            self.seen.append(sorted(desired.nodes))
        return ManagerPlan()

    def apply(self, plan: ManagerPlan) -> NotInForce:
        return NotInForce()


@contextmanager
def running(url: str) -> Iterator[Recorder]:
    """The manager in its loop."""
    recorder = Recorder()
    session = ListenerSession(url, Registration(id="clock", role=ListenerRole.RESOURCE_MANAGER, session="1"))
    loop = ReconcileLoop(recorder, session)
    watch = WatchThread(session.open_watch, loop.wake)
    thread = threading.Thread(target=loop.run, args=[watch])
    thread.start()
    try:
        yield recorder
    finally:
        loop.stop()
        thread.join()
        watch.close()
        session.close()


@pytest.mark.parametrize("ahead", [HOUR, -HOUR], ids=["an hour ahead", "an hour behind"])
def test_blocks_last_until_their_end_by_the_clock_of_the_service(
    fresh: ServiceProcess, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + ahead)
    with BlocklistClient(fresh.url) as client:
        client.block("before", "Hot machine", end=real() // 10**6 + 600_000)
        with running(fresh.url) as manager:
            wait_until(lambda: acked_revision(fresh, "clock") == 1)
            assert manager.seen == [["before"]]
            client.block("short", "Hot machine", end=real() // 10**6 + 3_000)
            wait_until(lambda: acked_revision(fresh, "clock") == 2)
            wait_until(lambda: manager.seen[-1] == ["before"], seconds=60)
