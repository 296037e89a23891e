"""When a manager compares the cluster with the list, and what it reports of a failure."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import pytest

from blocklist.client import names
from blocklist.client.session import ListenerSession
from blocklist.client.watch import WatchThread
from blocklist.managers import reconcile
from blocklist.managers.plan import DesiredState, ManagerError, ManagerPlan, NotInForce, PlanStep, StepAction
from blocklist.managers.reconcile import ReconcileLoop
from blocklist.model.changes import Snapshot
from blocklist.model.draft import BlocklistTracker
from blocklist.model.errors import NotFoundError, UnavailableError
from blocklist.model.listener import Mode, Report
from blocklist.model.node import PERMANENT, Backoff, BlockAction, BlockedNode
from blocklist.wire.listeners import KnownNodeBody
from tests.integration.process import wait_until

NODE = BlockedNode(id="n1", action=BlockAction.MARK_BLOCKED, start=0, end=PERMANENT, cause="disk")


class Manager:
    """Counts how often it was applied; fails as long as it has `failures`."""

    def __init__(self, *failures: str) -> None:
        self.failures = list(failures)
        self.applied = 0

    def plan(self, _: DesiredState) -> ManagerPlan:
        return ManagerPlan()

    def apply(self, _: ManagerPlan) -> NotInForce:
        if self.failures:
            raise ManagerError(self.failures.pop(0))
        self.applied += 1
        return NotInForce()


class Session:
    """As much of a session as the loop uses; keeps what was reported, with the acknowledged revisions."""

    fenced = False
    observes_only = False
    mode = Mode.APPLY

    def on_mode(self) -> None:
        """Replaced by the loop."""

    def wait_for_mode(self, seconds: float) -> None:
        """It is known."""

    def __init__(self, *, answers: bool = True) -> None:
        self.clock = self
        self.answers = answers
        self.reports: list[tuple[Mapping[str, str] | None, int | None]] = []
        self.not_here: list[set[str]] = []
        self.modes: list[tuple[Mode | None, dict[str, str]]] = []

    def set_platform(self, platform: str) -> None:
        raise AssertionError(platform)  # The managers here do not know theirs.

    def known_node(self, node_id: str) -> KnownNodeBody:
        raise NotFoundError(f"Nobody reports {node_id}.") if self.answers else UnavailableError("no answer")

    def now(self) -> int:
        return 1

    def report(self, report: Report, acked: int | None = None, history: str | None = None) -> None:
        self.reports.append((report.pending, acked))
        self.not_here.append({*(report.not_here or ())})
        self.modes.append((report.mode, dict(report.would or {})))


class Watch:
    """A list with one node, which is received once."""

    tracker = BlocklistTracker(Snapshot(revision=7, history="0000000a", nodes={"n1": NODE}))

    def __init__(self) -> None:
        self.pending = True

    def apply_pending(self) -> bool:
        pending, self.pending = self.pending, False
        return pending


@contextmanager
def running(
    manager: Manager, interval: float = 0.01, *, answers: bool = True, session: Session | None = None
) -> Iterator[Session]:
    session = session or Session(answers=answers)
    loop = ReconcileLoop(manager, cast("ListenerSession", session), interval=interval)
    thread = threading.Thread(target=loop.run, args=[cast("WatchThread", Watch())])
    thread.start()
    try:
        yield session
    finally:
        loop.stop()
        thread.join()


class Blocking(Manager):
    """A cluster in which `blocked` nodes are blocked."""

    def __init__(self, blocked: Iterable[str] = ()) -> None:
        super().__init__()
        self.blocked = {*blocked}

    def plan(self, desired: DesiredState) -> ManagerPlan:
        steps = [(StepAction.BLOCK, it) for it in sorted(desired.nodes.keys() - self.blocked)]
        steps += [(StepAction.FREE, it) for it in sorted(self.blocked - desired.nodes.keys())]
        return ManagerPlan(steps=tuple(PlanStep(action=it, name=name, reason=f"{it} {name}") for it, name in steps))

    def apply(self, plan: ManagerPlan) -> NotInForce:
        for step in plan.steps:
            (self.blocked.add if step.action is StepAction.BLOCK else self.blocked.discard)(step.name)
        return super().apply(plan)


def test_in_the_mode_observe_it_says_what_it_would_do_and_blocks_nothing() -> None:
    manager = Blocking()
    with running(manager) as session:
        wait_until(lambda: bool(session.reports))
        assert (manager.blocked, session.modes[-1]) == ({"n1"}, (Mode.APPLY, {}))
        session.mode = Mode.OBSERVE
        wait_until(lambda: session.modes[-1] == (Mode.OBSERVE, {"n1": "would block the node."}))
        assert manager.blocked == set()
        assert session.reports[-1] == ({}, 7)
        session.mode = Mode.APPLY
        wait_until(lambda: session.modes[-1] == (Mode.APPLY, {}))
        assert manager.blocked == {"n1"}


def test_in_the_mode_off_all_nodes_are_free_and_nothing_is_acknowledged() -> None:
    manager = Blocking(["n1", "of a former process"])
    session = Session()
    session.mode = Mode.OFF
    with running(manager, session=session):
        wait_until(lambda: bool(session.reports))
        assert manager.blocked == set()
        assert session.modes[-1] == (Mode.OFF, {})
        assert {acked for _, acked in session.reports} == {None}


def test_a_node_that_cannot_be_freed_keeps_it_in_its_former_mode() -> None:
    manager = Blocking()
    with running(manager) as session:
        wait_until(lambda: bool(session.reports))
        manager.failures = ["no answer"] * 1000
        session.mode = Mode.OFF
        wait_until(lambda: bool(session.reports[-1][0]))
        assert session.modes[-1][0] is None
        manager.failures = []
        wait_until(lambda: session.modes[-1] == (Mode.OFF, {}))


def test_one_that_was_started_to_observe_frees_nothing_either() -> None:
    manager = Blocking(["of a former process"])
    session = Session()
    session.mode, session.observes_only = Mode.OBSERVE, True
    with running(manager, session=session):
        wait_until(lambda: len(session.reports) > 2)
    assert (manager.applied, manager.blocked) == (0, {"of a former process"})


def test_that_a_node_is_here_now_is_reported_before_its_block_is_applied() -> None:
    class Joining(Manager):
        def plan(self, _: DesiredState) -> ManagerPlan:
            absent = NotInForce() if self.applied else NotInForce(not_here=frozenset({"n1"}))
            return ManagerPlan(not_in_force=absent, all_nodes=())

    with running(Joining()) as session:
        wait_until(lambda: len(session.reports) >= 3)
    assert session.not_here[:3] == [{"n1"}, set(), set()]
    assert session.reports[:3] == [({}, 7), ({"n1": "Node n1 is here now: its block is being applied."}, None), ({}, 7)]


def test_while_the_service_does_not_say_what_else_a_node_is_called_it_is_not_said_to_be_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Elsewhere(Manager):
        def plan(self, desired: DesiredState) -> ManagerPlan:
            unresolved = desired.others.unresolved(["n1"])
            absent = NotInForce(not_here=frozenset({"n1"}))
            withheld = ["w7"] if unresolved else []
            return ManagerPlan(not_in_force=absent, unmatched=["n1"], withheld=withheld, unresolved=unresolved)

    monkeypatch.setattr(names, "_RETRY", 0.01)
    why = "Not known to be in force: the service has not said yet what else it calls node n1."
    with running(Elsewhere(), answers=False) as session:
        wait_until(lambda: len(session.reports) >= 3)
        assert {str(report) for report in session.reports} == {str(({"n1": why}, None))}, "nothing is acknowledged"
        assert not any(session.not_here)
        session.answers = True
        wait_until(lambda: session.not_here[-1] == {"n1"})
        assert session.reports[-1] == ({}, 7)


def test_after_a_failure_no_node_is_said_to_be_elsewhere() -> None:
    class Failing(Manager):
        def plan(self, _: DesiredState) -> ManagerPlan:
            if self.applied:
                raise ManagerError("no answer")
            return ManagerPlan(not_in_force=NotInForce(not_here=frozenset({"n1"})))

    with running(Failing()) as session:
        wait_until(lambda: len(session.reports) >= 2)
    assert session.not_here[:2] == [{"n1"}, set()]
    assert session.reports[1] == ({"n1": "Not known to be in force: no answer"}, None)


def test_what_is_done_without_effect_is_not_done_again_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unchanged(Manager):
        def plan(self, _: DesiredState) -> ManagerPlan:
            step = PlanStep(action=StepAction.BLOCK, name="n1", reason="Node n1 is blocked.")
            return ManagerPlan(steps=(step,), containers={})

    monkeypatch.setattr(reconcile, "_SOON", 0.01)
    monkeypatch.setattr(reconcile, "_BACKOFF", Backoff(initial=0.2, cap=60.0, floor=0.2))
    manager = Unchanged()
    with running(manager, interval=60):
        time.sleep(1.5)
    assert 2 <= manager.applied <= 6


def test_a_cluster_is_compared_with_the_list_again_and_again() -> None:
    """So what is changed by hand is corrected."""
    manager = Manager()
    with running(manager):
        wait_until(lambda: manager.applied >= 3)


def test_of_a_failure_it_reports_at_once_that_the_blocks_are_not_known_to_be_in_force() -> None:
    with running(Manager("no answer", "still no answer")) as session:
        wait_until(lambda: len(session.reports) >= 3)
    assert session.reports[:3] == [
        ({"n1": "Not known to be in force: no answer"}, None),
        ({"n1": "Not known to be in force: still no answer"}, None),
        ({}, 7),
    ]
