"""Evacuations that fail, and what is remembered of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import cast

from blocklist.flink.connection import FlinkConnection
from blocklist.flink.effects import EffectState
from blocklist.flink.evacuator import (
    MAX_ATTEMPTS,
    RETRY_DELAY,
    EvacuationNode,
    EvacuationRequest,
    EvacuationTarget,
    Evacuator,
)
from blocklist.flink.guards import GuardContext
from blocklist.flink.state import ClusterState, FlinkJob, FlinkTask, JobKind

JOB, NODE = "ab12", "n1"
TARGET = EvacuationTarget(JOB, NODE)
TASK = FlinkTask(name="t", stage=0, state="RUNNING", attempt=0, task_manager="tm-1", node=NODE, allocation="slot")


class Commands:
    """Checkpoints end with `result`: empty if they are complete, else the reason."""

    def __init__(self, result: str) -> None:
        self.result = result
        self.error: Exception | None = None
        self.checkpoints = 0
        self.failed: list[str] = []

    def trigger_checkpoint(self, job_id: str, seconds: float) -> str:
        self.checkpoints += 1
        if self.error is not None:
            raise self.error
        return "future"

    def checkpoint_result(self, future: str) -> str:
        return self.result

    def fail_slots(self, job_id: str, slots: Mapping[str, str], reason: str) -> None:
        self.failed += slots

    def disconnect(self, job_id: str, task_managers: Collection[str], reason: str) -> None:
        raise AssertionError


def _evacuator(commands: Commands) -> Evacuator:
    return Evacuator(cast("FlinkConnection", commands))


def _job(*tasks: FlinkTask) -> FlinkJob:
    return FlinkJob(
        id=JOB, name="count", state="RUNNING", kind=JobKind.STREAMING, tasks=tasks or (TASK,), checkpoints=True
    )


def _request(state: ClusterState, now: float, *, wanted: bool = True, start: int | None = 1) -> EvacuationRequest:
    """`start` is that of the node's block; None if the node is not listed."""
    return EvacuationRequest(
        wanted=[TARGET] if wanted else [],
        listed={} if start is None else {NODE: EvacuationNode(start, frozenset({"tm-1"}))},
        context=GuardContext(state=state, blocked={"tm-1"}, configuration={}, grows=True, now=0),
        monotonic=now,
    )


RUNNING = ClusterState(task_managers={}, jobs={JOB: _job()})


def _fail(evacuator: Evacuator, now: float) -> None:
    """A checkpoint begins and fails."""
    evacuator.step(_request(RUNNING, now))
    evacuator.step(_request(RUNNING, now))


def test_failures_are_remembered_while_the_node_is_listed() -> None:
    commands = Commands("too slow")
    evacuator = _evacuator(commands)
    _fail(evacuator, 0)
    # In these rounds there is nothing to evacuate: the job restarts, or does not answer.
    evacuator.step(_request(RUNNING, 1, wanted=False))
    evacuator.step(_request(ClusterState(task_managers={}, unreachable={JOB: "no answer"}), 2, wanted=False))
    evacuator.step(_request(RUNNING, 3))
    assert commands.checkpoints == 1
    assert evacuator.effect(TARGET).state is EffectState.SLOW


def test_after_three_failures_the_reason_says_how_to_try_again() -> None:
    commands = Commands("too slow" * 100)
    evacuator = _evacuator(commands)
    for attempt in range(MAX_ATTEMPTS + 3):
        _fail(evacuator, attempt * (RETRY_DELAY + 1))
    assert commands.checkpoints == MAX_ATTEMPTS
    reason = evacuator.effect(TARGET).reason
    assert reason.endswith("It was tried 3 times. To try again, unblock the node and block it again.")
    assert len(reason) <= 300
    # Another block: also if the rounds have not seen the node free.
    evacuator.step(_request(RUNNING, 1000, start=2))
    assert commands.checkpoints == MAX_ATTEMPTS + 1


def test_failures_are_forgotten_with_the_block_and_with_the_job() -> None:
    for later in (
        _request(RUNNING, 1, wanted=False, start=None),
        _request(ClusterState(task_managers={}), 1, wanted=False),
        _request(ClusterState(task_managers={}, ended=frozenset({JOB})), 1, wanted=False),
    ):
        commands = Commands("too slow")
        evacuator = _evacuator(commands)
        _fail(evacuator, 0)
        evacuator.step(later)
        evacuator.step(_request(RUNNING, 2))
        assert commands.checkpoints == 2


def test_a_job_has_not_left_while_its_tasks_are_on_the_node() -> None:
    commands = Commands("")
    evacuator = _evacuator(commands)
    _fail(evacuator, 0)
    assert commands.failed == ["slot"]
    # For a moment it is not known whether the node is marked.
    evacuator.step(_request(RUNNING, 1, wanted=False))
    assert evacuator.busy
    elsewhere = _job(replace(TASK, task_manager="tm-2", node="n2"))
    evacuator.step(_request(ClusterState(task_managers={}, jobs={JOB: elsewhere}), 2, wanted=False))
    assert not evacuator.busy


def test_an_unexpected_error_is_a_failed_evacuation() -> None:
    commands = Commands("")
    commands.error = TypeError("'JavaPackage' object is not callable")
    evacuator = _evacuator(commands)
    evacuator.step(_request(RUNNING, 0))
    assert not evacuator.busy
    assert evacuator.effect(TARGET).state is EffectState.SLOW
