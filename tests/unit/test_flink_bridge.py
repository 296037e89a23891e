"""The rounds of the bridge, with Flink's RPC and the service's session replaced by fakes."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from blocklist.client.session import ListenerSession
from blocklist.client.watch import WatchThread
from blocklist.flink.bridge import Bridge, BridgeOptions, LeaderConfiguration
from blocklist.flink.connection import FlinkConnection
from blocklist.flink.marking import MAX_LEASE, MIN_LEASE, NodeLease, is_due, report_validity
from blocklist.flink.rpc import Leader
from blocklist.flink.state import FlinkError, FlinkJob, FlinkTask, JobKind
from blocklist.model.changes import Snapshot
from blocklist.model.draft import BlocklistTracker
from blocklist.model.listener import EMPTY_REPORT, Mode, Registration, Report
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode
from tests.unit.flink_fakes import ENABLED, FakeRpc, connection_to

NODE, JOB = "n1", "ab12"
EVACUATE = BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS

OTHER_LEADER = Leader("pekko.tcp://flink@127.0.0.2:6123/user/rpc/resourcemanager_1", "other")


class FakeSession:
    """Keeps what was reported last; closing waits for `may_close`."""

    def __init__(self, registration: Registration, may_close: threading.Event) -> None:
        self.registration = registration
        self.fenced = False
        self.acked: int | None = None
        self.valid_until = math.inf
        self.closing, self.closed = threading.Event(), threading.Event()
        self.unknown = threading.Event()
        self.refused: dict[str, str] = {}
        self.pending: dict[str, str] = {}
        self.not_here: frozenset[str] | None = None
        self.mode = Mode.APPLY
        self.reported: tuple[Mode | None, dict[str, str]] = (None, {})
        self._may_close = may_close

    def report(
        self,
        report: Report = EMPTY_REPORT,
        *,
        acked: int | None = None,
        history: str | None = None,
        valid_until: float = math.inf,
    ) -> None:
        self.acked = self.acked if acked is None else acked
        self.valid_until = valid_until
        self.refused, self.pending = dict(report.refused or {}), dict(report.pending or {})
        self.not_here = report.not_here
        self.reported = report.mode or self.reported[0], dict(report.would or {})
        if any("It is not known" in reason for reason in self.pending.values()):
            self.unknown.set()

    def close(self) -> None:
        self.closing.set()
        self._may_close.wait(60)
        self.closed.set()


class FakeWatch:
    """A list that does not change; before each round it runs the next step, and after the last one the bridge stops."""

    def __init__(self, action: BlockAction, end: int) -> None:
        node = BlockedNode(id=NODE, action=action, start=1, end=end, cause="disk")
        self.tracker = BlocklistTracker(Snapshot(revision=7, nodes={NODE: node}, history="00000000"))
        self.steps: list[Callable[[], None]] = []
        self.bridge: Bridge | None = None
        self.failure: AssertionError | None = None

    def apply_pending(self) -> bool:
        assert self.bridge is not None
        if not self.steps:
            self.bridge.stop()
            return False
        self.bridge.wake()
        step = self.steps.pop(0)
        try:
            step()
        except AssertionError as error:
            # The bridge goes on after any error.
            self.failure = error
            self.bridge.stop()
        return False


class Harness:
    """A bridge whose rounds follow one another at once."""

    def __init__(
        self,
        rpc: FakeRpc,
        action: BlockAction = BlockAction.MARK_BLOCKED,
        lease: int = 30_000,
        end: int = PERMANENT,
        service_ahead: Callable[[], int] = lambda: 0,
    ) -> None:
        self.may_close = threading.Event()
        self.may_close.set()
        self.sessions: list[FakeSession] = []
        self.rpc = rpc
        options = BridgeOptions(listener_id="flink")
        self.bridge = Bridge(connection_to(rpc, lease=lease), self._open, options, service_ahead=service_ahead)
        self._watch = FakeWatch(action, end)
        self._watch.bridge = self.bridge

    @property
    def manager(self) -> FakeSession:
        return self.sessions[0]

    def run(self, *steps: Callable[[], None]) -> bool:
        """A round after each step, and one more that ends."""
        self._watch.steps = list(steps)
        stopped = self.bridge.run(cast(WatchThread, self._watch))
        if self._watch.failure is not None:
            raise self._watch.failure
        return stopped

    def _open(self, registration: Registration) -> ListenerSession:
        self.sessions.append(FakeSession(registration, self.may_close))
        return cast(ListenerSession, self.sessions[-1])


def nothing() -> None:
    """A round without a change."""


def _rpc() -> FakeRpc:
    rpc = FakeRpc()
    rpc.task_manager_hosts = {"tm-1": NODE, "tm-2": "n2"}
    return rpc


def _job(node: str = NODE, task_manager: str = "tm-1") -> FlinkJob:
    task = FlinkTask(
        name="t", stage=0, state="RUNNING", attempt=0, task_manager=task_manager, node=node, allocation="slot"
    )
    return FlinkJob(
        id=JOB, name="count", state="RUNNING", kind=JobKind.STREAMING, tasks=[task], checkpoints=True,
        completed_checkpoints=1,
    )  # fmt: skip


@pytest.mark.parametrize("lease", [MIN_LEASE, 12_000, MAX_LEASE])
def test_an_acknowledgement_ends_before_a_lease_in_flink_also_after_a_late_heartbeat(lease: int) -> None:
    harness = Harness(_rpc(), lease=lease)
    assert harness.run(nothing)
    listeners_lease = harness.manager.registration.lease
    # The last heartbeat is sent while the observation is valid, and arrives while the listener is live.
    last = report_validity(lease) * 1000 + 2 * listeners_lease
    # What a round does not renew lasts longer.
    shortest = next(it for it in range(lease) if not is_due([NodeLease("n", "", lease)], {"n": it}, 0, lease))
    assert last <= shortest


def test_in_another_mode_than_apply_flink_is_told_of_no_block() -> None:
    rpc = _rpc()
    rpc.jobs_found = {JOB: _job()}
    harness = Harness(rpc, BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS)
    would = {NODE: "would close 1 TaskManager and evacuate the tasks."}

    def observe() -> None:
        harness.manager.mode = Mode.OBSERVE

    def switch_off() -> None:
        assert [it.reported for it in harness.sessions] == [(Mode.OBSERVE, would)] * 2
        assert [it.acked for it in harness.sessions] == [7, 7]
        harness.manager.mode = Mode.OFF

    def apply_again() -> None:
        assert [it.reported for it in harness.sessions] == [(Mode.OFF, {})] * 2
        assert rpc.notified == []
        harness.manager.mode = Mode.APPLY

    observe()
    assert harness.run(nothing, nothing, switch_off, nothing, apply_again, nothing)
    assert harness.manager.reported == (Mode.APPLY, {})
    assert rpc.notified


def test_what_a_round_has_observed_is_valid_from_its_begin() -> None:
    harness, begun = Harness(_rpc()), time.monotonic()
    assert harness.run(nothing)
    assert begun + 7.5 <= harness.manager.valid_until <= time.monotonic() + 7.5


@pytest.mark.parametrize("method", ["_receive", "_report", "_on_error"])
def test_an_error_anywhere_in_a_round_does_not_end_the_rounds(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rpc = _rpc()
    harness = Harness(rpc)
    original = getattr(harness.bridge, method)

    def fail(*_: object) -> None:
        raise ValueError("unexpected")

    def begin() -> None:
        if method == "_on_error":
            rpc.error = FlinkError("no answer")
        else:
            monkeypatch.setattr(harness.bridge, method, fail)

    def end() -> None:
        assert harness.manager.pending == {
            NODE: f"It is not known what is in force: {'no answer' if method == '_on_error' else 'unexpected'}."
        }
        rpc.error = None
        monkeypatch.setattr(harness.bridge, method, original)

    assert harness.run(nothing, begin, end)
    assert (harness.manager.acked, harness.manager.refused, harness.manager.pending) == (7, {}, {})


def test_a_watch_that_fails_does_not_end_the_rounds() -> None:
    harness = Harness(_rpc())

    def fail() -> None:
        raise ValueError("unexpected")

    assert harness.run(fail, nothing)
    assert harness.manager.acked == 7


def test_a_call_that_hangs_withdraws_the_acknowledgements(monkeypatch: pytest.MonkeyPatch) -> None:
    rpc = _rpc()
    harness = Harness(rpc, lease=200)
    original, withdrawn = rpc.task_managers, []

    def hang(gateway: str) -> object:
        withdrawn.append(harness.manager.unknown.wait(60))
        return original(gateway)

    def begin() -> None:
        assert harness.manager.acked == 7
        harness.manager.unknown.clear()
        monkeypatch.setattr(rpc, "task_managers", hang)

    assert harness.run(nothing, begin)
    assert withdrawn
    assert all(withdrawn)


def test_the_age_of_a_round_counts_from_its_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    rpc, clock = _rpc(), [0.0]
    monkeypatch.setattr(
        "blocklist.flink.bridge.time", SimpleNamespace(monotonic=lambda: clock[0], time_ns=time.time_ns)
    )
    harness = Harness(rpc, lease=2_000)
    original = rpc.task_managers

    def take_long(gateway: str) -> object:
        clock[0] += 1.5
        return original(gateway)

    monkeypatch.setattr(rpc, "task_managers", take_long)
    assert harness.run(nothing, lambda: _wait(harness.manager.unknown))
    assert harness.manager.valid_until <= clock[0] - 1.5 + 2.0 / 4


def test_the_watchdog_survives_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(_rpc(), lease=200)
    original, errors = harness.bridge._listeners, [ValueError("unexpected")]

    def listeners() -> object:
        if errors and threading.current_thread().name == "blocklist-flink-watchdog":
            raise errors.pop()
        return original()

    def begin() -> None:
        monkeypatch.setattr(harness.bridge, "_listeners", listeners)
        harness.manager.unknown.clear()
        _wait(harness.manager.unknown)
        assert not errors

    assert harness.run(nothing, begin)


def test_a_job_whose_listener_another_process_has_taken_over_stops_the_bridge() -> None:
    rpc = _rpc()
    rpc.jobs_found = {JOB: _job("n2", "tm-2")}
    harness = Harness(rpc)

    def take_over() -> None:
        harness.sessions[1].fenced = True

    assert not harness.run(nothing, take_over, nothing, nothing)
    assert harness.bridge.fenced_listeners() == [f"count-{JOB}"]
    # It is not taken back: two bridges would go on for ever.
    assert len(harness.sessions) == 2


def test_a_block_that_flink_has_forgotten_is_sent_again_at_once() -> None:
    rpc = _rpc()
    harness = Harness(rpc)

    def forget() -> None:
        assert len(rpc.notified) == 1
        rpc.forget()

    def check() -> None:
        assert harness.manager.pending == {NODE: "Flink does not report tm-1 on this node as blocked."}

    assert harness.run(nothing, forget, check, nothing)
    assert len(rpc.notified) == 2
    assert harness.manager.refused == {} == harness.manager.pending


def test_a_node_is_not_here_until_a_taskmanager_has_run_on_it() -> None:
    rpc = _rpc()
    rpc.task_manager_hosts = {}
    harness = Harness(rpc)

    def expect(acked: int | None, *not_here: str) -> None:
        assert (harness.manager.acked, {*(harness.manager.not_here or ())}) == (acked, {*not_here})

    def join_elsewhere() -> None:
        expect(7)  # Without TaskManagers nothing is known.
        rpc.task_manager_hosts = {"tm-2": "n2"}

    def join() -> None:
        expect(7, NODE)
        rpc.task_manager_hosts |= {"tm-1": NODE}

    def leave() -> None:
        expect(7)
        rpc.task_manager_hosts = {"tm-2": "n2"}

    assert harness.run(nothing, nothing, join_elsewhere, join, leave, nothing)
    expect(7)
    assert rpc.notified, "Flink blocks it all the time"


def test_leases_are_longer_in_the_same_round_if_the_jobmanager_s_clock_is_ahead() -> None:
    rpc = _rpc()
    began = time.time_ns() // 1_000_000
    rpc.heartbeat_at = began + 40_000
    assert Harness(rpc).run(nothing)
    short, long = (nodes[0].end - began for nodes in rpc.notified)
    # The first one had ended in Flink when it came.
    assert short < 40_000 < 65_000 < long


def test_a_block_ends_by_the_service_s_clock() -> None:
    rpc = _rpc()
    harness = Harness(rpc, end=time.time_ns() // 1_000_000 - 1_000, service_ahead=lambda: -60_000)
    assert harness.run(nothing)
    assert {it.node for it in rpc.notified[0]} == {NODE}


def test_a_rest_api_that_does_not_answer_delays_no_round() -> None:
    rpc = _rpc()
    rpc.configuration_done = False
    harness = Harness(rpc)

    def answer() -> None:
        # Flink itself reports the node as blocked.
        assert harness.manager.acked == 7
        assert rpc.configurations_read == 0
        rpc.configuration_done = True

    assert harness.run(nothing, nothing, answer, nothing)
    assert rpc.configurations_read == 1


def test_an_ended_job_that_cannot_deregister_does_not_hold_back_the_rounds() -> None:
    rpc = _rpc()
    rpc.jobs_found = {JOB: _job()}
    harness = Harness(rpc)

    def end() -> None:
        harness.may_close.clear()
        rpc.jobs_found, rpc.ended = {}, {JOB}

    assert harness.run(nothing, end, nothing)
    job = harness.sessions[1]
    assert job.closing.wait(60)
    assert not job.closed.is_set()
    harness.may_close.set()
    harness.bridge.close()
    assert harness.manager.closed.is_set()


def test_a_node_is_not_reported_as_evacuated_while_a_job_master_was_never_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("blocklist.flink.listeners.UNKNOWN_GRACE", -1.0)
    rpc = _rpc()
    rpc.unreachable = {JOB}
    harness = Harness(rpc, EVACUATE)

    def answer() -> None:
        assert harness.manager.acked is None
        rpc.unreachable, rpc.jobs_found = set(), {JOB: _job("n2", "tm-2")}

    assert harness.run(nothing, answer, nothing)
    assert (harness.manager.acked, harness.manager.refused, harness.manager.pending) == (7, {}, {})


def test_a_task_on_a_task_manager_that_left_the_resource_manager_is_evacuated() -> None:
    rpc = _rpc()
    rpc.task_manager_hosts = {"tm-2": "n2"}
    rpc.jobs_found = {JOB: _job()}
    harness = Harness(rpc, EVACUATE)
    assert harness.run(nothing, nothing, nothing)
    assert harness.sessions[1].acked is None
    assert rpc.failed_slots == [JOB]


def test_an_evacuation_waits_for_the_configuration_of_the_present_leader() -> None:
    rpc = _rpc()
    rpc.jobs_found = {JOB: _job()}
    rpc.configuration = None
    harness = Harness(rpc, EVACUATE)
    assert harness.run(nothing, nothing, nothing)
    assert rpc.failed_slots == []


def test_a_configuration_that_cannot_be_understood_is_not_known() -> None:
    rpc = _rpc()
    rpc.configuration = ValueError("not JSON")
    harness = Harness(rpc)
    assert harness.run(nothing)
    # Flink itself reports the node as blocked.
    assert harness.manager.acked == 7


def test_the_configuration_of_a_former_leader_is_forgotten() -> None:
    rpc = _rpc()
    connection: FlinkConnection = connection_to(rpc)
    configuration = LeaderConfiguration(connection)
    connection.exchange(list)
    configuration.update()
    assert configuration.values == ENABLED
    rpc.error = FlinkError("no answer")
    with pytest.raises(FlinkError):
        connection.exchange(list)
    rpc.error, rpc.configuration = None, FlinkError("The REST API cannot be read")
    connection.exchange(list)
    configuration.update()
    assert not configuration.values
    assert configuration.check is None


def _wait(event: threading.Event) -> None:
    assert event.wait(60)


def test_a_round_ends_when_another_leader_appears_and_meanwhile_nothing_counts_as_applied() -> None:
    """The former one may never answer."""
    rpc = _rpc()
    harness = Harness(rpc)

    def change() -> None:
        assert harness.manager.refused == {} == harness.manager.pending
        rpc.on_read = lambda: setattr(rpc, "leader", OTHER_LEADER)

    def check() -> None:
        reason = "Another JobManager leads now: it is being notified of the blocked nodes."
        assert harness.manager.pending == {NODE: reason}

    assert harness.run(nothing, change, check, nothing)
    assert harness.manager.refused == {} == harness.manager.pending
    assert len(rpc.notified) == 2


def test_a_new_leader_ends_the_pause_after_an_error() -> None:
    rpc = _rpc()
    connection = connection_to(rpc)
    rpc.error = FlinkError("gone")
    with pytest.raises(FlinkError):
        connection.exchange(list)
    assert not connection.leader_changed()
    rpc.leader = OTHER_LEADER
    assert connection.leader_changed()
