"""Evacuation: makes the tasks of a job leave a node, one job after another. Nothing here waits: each step returns.

A streaming job is asked for a checkpoint first. Then its slots on the node are failed, and Flink restarts their tasks
elsewhere, because the node is blocked. The job is followed until nothing of it runs on the node.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from blocklist.flink.connection import FlinkConnection
from blocklist.flink.effects import Effect, refused, slow
from blocklist.flink.guards import GuardContext, hindrance
from blocklist.flink.state import OWN_REASON, WAITING_STATES, FlinkError, FlinkJob, FlinkTask
from blocklist.model.listener import MAX_REASON_LENGTH

log = logging.getLogger("blocklist.flink")

CHECKPOINT_TIMEOUT: Final = 30.0
"""Seconds that a checkpoint may take before a job is evacuated without a new one."""
LEAVE_TIMEOUT: Final = 120.0
"""Seconds after which an evacuation counts as failed."""
MAX_ATTEMPTS: Final = 3
"""Number of evacuations of one job from one node that may fail before it is refused."""
RETRY_DELAY: Final = 60.0


class EvacuationTarget(NamedTuple):
    """A job that is to leave a node of the list."""

    job: str
    node: str


class EvacuationNode(NamedTuple):
    """A node that is listed for evacuation: when its block began, in Unix milliseconds, and its TaskManagers."""

    start: int
    task_managers: frozenset[str]


@dataclass(slots=True)
class _Evacuation:
    """The one that is under way. `start` is that of the node's block; times are monotonic seconds."""

    target: EvacuationTarget
    start: int
    begun: float
    deadline: float
    checkpoint: Any = None
    failed: bool = False


@dataclass(slots=True)
class _History:
    """Evacuations that failed: their number, when the next one may begin, and the reason of the last.

    `start` is that of the node's block: with another block they are tried again.
    """

    start: int
    attempts: int = 0
    next_at: float = 0.0
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvacuationRequest:
    """`wanted` are evacuations that may begin or continue: tasks of the job are on the node, and it is marked.

    `listed` are all nodes that the list wants evacuated. `monotonic` is in seconds.
    """

    wanted: Collection[EvacuationTarget]
    listed: Mapping[str, EvacuationNode]
    context: GuardContext
    monotonic: float

    @property
    def jobs(self) -> Mapping[str, FlinkJob]:
        """The jobs whose JobMasters answered."""
        return self.context.state.jobs

    def keeps(self, target: EvacuationTarget, start: int) -> bool:
        """Whether the node has been listed since then, and the job has neither ended nor gone."""
        node, state = self.listed.get(target.node), self.context.state
        known = target.job in state.jobs or target.job in state.unreachable
        return node is not None and node.start == start and known and target.job not in state.ended

    def tasks(self, target: EvacuationTarget) -> list[FlinkTask]:
        """The tasks of the job on the node; none if the node is not listed any more."""
        node, job = self.listed.get(target.node), self.jobs.get(target.job)
        return [] if node is None or job is None else job.on(node.task_managers)


class Evacuator:
    """THREADING: use it from one thread. Memory: an entry for each job and evacuated node."""

    def __init__(self, connection: FlinkConnection, *, drop_results: bool = False) -> None:
        self._connection = connection
        self._drop_results = drop_results
        self._current: _Evacuation | None = None
        self._history: dict[EvacuationTarget, _History] = {}
        self._effects: dict[EvacuationTarget, Effect] = {}

    @property
    def busy(self) -> bool:
        """Whether an evacuation is under way."""
        return self._current is not None

    def effect(self, target: EvacuationTarget) -> Effect:
        """Why a wanted evacuation is not complete."""
        return self._effects.get(target) or slow("Its tasks wait to be evacuated, after those of other jobs.")

    def step(self, request: EvacuationRequest) -> None:
        """Continue the evacuation that is under way, or begin the next."""
        self._forget(request)
        self._effects = {}
        try:
            self._step(request)
        except Exception:
            # One job must not hold back what is reported of all others.
            log.exception("Unexpected error in an evacuation.")
            if self._current is not None:
                self._fail(self._current, "an unexpected error, which the bridge has logged.", request.monotonic)

    def _step(self, request: EvacuationRequest) -> None:
        if self._current is not None:
            self._advance(self._current, request)
        for target in request.wanted:
            task_managers = request.listed[target.node].task_managers
            if self._current is not None and self._current.target == target:
                tasks = len(request.tasks(target))
                self._effects[target] = slow(f"Its tasks are being evacuated: {tasks} are still there.")
            elif (hindered := self._hindrance(target, task_managers, request)) is not None:
                self._effects[target] = hindered
            elif self._current is None:
                self._begin(target, task_managers, request)

    def _hindrance(
        self, target: EvacuationTarget, task_managers: Collection[str], request: EvacuationRequest
    ) -> Effect | None:
        past = self._history.get(target)
        if past is not None and (past.attempts >= MAX_ATTEMPTS or request.monotonic < past.next_at):
            return _failed(past)
        return hindrance(request.jobs[target.job], task_managers, request.context)

    def _begin(self, target: EvacuationTarget, task_managers: Collection[str], request: EvacuationRequest) -> None:
        job, now = request.jobs[target.job], request.monotonic
        log.info("Job %s (%s) is to leave node %s.", job.id, job.name, target.node)
        start = request.listed[target.node].start
        self._current = _Evacuation(target, start, begun=now, deadline=now + CHECKPOINT_TIMEOUT)
        self._effects[target] = slow("Its tasks are being evacuated.")
        if job.is_batch:
            self._leave(self._current, job, task_managers, request)
            return
        try:
            self._current.checkpoint = self._connection.trigger_checkpoint(target.job, CHECKPOINT_TIMEOUT)
        except FlinkError as error:
            self._fail(self._current, f"a checkpoint cannot be triggered ({error}).", now)

    def _advance(self, current: _Evacuation, request: EvacuationRequest) -> None:
        job = request.jobs.get(current.target.job)
        if job is None:
            self._without_job(current, request)
        elif not current.failed:
            self._check_checkpoint(current, job, request)
        elif not request.tasks(current.target) and _runs(job):
            seconds = request.monotonic - current.begun
            log.info("Job %s left node %s after %.1f s.", job.id, current.target.node, seconds)
            self._history.pop(current.target, None)
            self._current = None
        elif request.monotonic > current.deadline:
            reason = f"the job does not run elsewhere {LEAVE_TIMEOUT:g} s after its slots were failed."
            self._fail(current, reason, request.monotonic)

    def _without_job(self, current: _Evacuation, request: EvacuationRequest) -> None:
        """Its JobMaster does not answer, or it has ended."""
        if current.target.job not in request.context.state.unreachable:
            log.info("Job %s ended while it left node %s.", current.target.job, current.target.node)
            self._current = None
        elif request.monotonic > current.deadline:
            self._fail(current, "its JobMaster does not answer.", request.monotonic)

    def _check_checkpoint(self, current: _Evacuation, job: FlinkJob, request: EvacuationRequest) -> None:
        if current.target not in request.wanted:
            # The node is free again, the tasks left by themselves, or it is not known that the node is marked.
            self._current = None
            return
        result = self._connection.checkpoint_result(current.checkpoint)
        if result is None and request.monotonic <= current.deadline:
            return
        if result and not job.completed_checkpoints:
            self._fail(
                current, f"the job has no complete checkpoint, and a new one failed ({result}).", request.monotonic
            )
        elif result is None and not job.completed_checkpoints:
            reason = f"the job has no complete checkpoint, and a new one took longer than {CHECKPOINT_TIMEOUT:g} s."
            self._fail(current, reason, request.monotonic)
        else:
            if result != "":
                why = result or "takes too long"
                log.warning("Job %s leaves with an earlier checkpoint, as a new one failed: %s.", job.id, why)
            self._leave(current, job, request.listed[current.target.node].task_managers, request)

    def _leave(
        self, current: _Evacuation, job: FlinkJob, task_managers: Collection[str], request: EvacuationRequest
    ) -> None:
        hindered = hindrance(job, task_managers, request.context)
        if hindered is not None:
            self._current = None
            self._effects[current.target] = hindered
            return
        reason = f"{OWN_REASON} {current.target.node}"
        current.failed, current.deadline = True, request.monotonic + LEAVE_TIMEOUT
        tasks = job.on(task_managers)
        slots = {it.allocation: it.task_manager for it in tasks if it.allocation and it.task_manager}
        try:
            if self._drop_results:
                self._connection.disconnect(job.id, sorted(set(slots.values())), reason)
            else:
                self._connection.fail_slots(job.id, slots, reason)
        except FlinkError as error:
            self._fail(current, f"{error}.", request.monotonic)

    def _fail(self, current: _Evacuation, reason: str, now: float) -> None:
        log.warning("Job %s does not leave node %s: %s", current.target.job, current.target.node, reason)
        past = self._history.setdefault(current.target, _History(current.start))
        past.attempts, past.next_at, past.reason = past.attempts + 1, now + RETRY_DELAY, reason
        self._effects[current.target] = _failed(past)
        self._current = None

    def _forget(self, request: EvacuationRequest) -> None:
        for target, past in list(self._history.items()):
            if not request.keeps(target, past.start):
                del self._history[target]


def _failed(past: _History) -> Effect:
    sentence = f"Its tasks are not evacuated: {past.reason}"
    if past.attempts < MAX_ATTEMPTS:
        return slow(f"{sentence} It is tried again after {RETRY_DELAY:g} s.")
    advice = f" It was tried {past.attempts} times. To try again, unblock the node and block it again."
    return refused(sentence[: MAX_REASON_LENGTH - len(advice)] + advice)


def _runs(job: FlinkJob) -> bool:
    """Whether the job runs, with no task waiting to start."""
    return job.state == "RUNNING" and bool(job.tasks) and all(it.state not in WAITING_STATES for it in job.tasks)
