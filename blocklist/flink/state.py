"""What Flink says about itself, as values. Pure.

A node id is what Flink compares with the ids of blocked nodes: `internal.taskmanager.node-id`, which Flink's drivers
for Kubernetes and YARN set, else the address of the TaskManager (`taskmanager.host`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

WAITING_STATES: Final = frozenset({"SCHEDULED", "DEPLOYING"})
"""States of a task that has a slot and has not started in it."""
RUNNING_STATES: Final = frozenset({"DEPLOYING", "INITIALIZING", "RUNNING", "CANCELING"})
"""States of a task that occupies its TaskManager."""
OWN_REASON: Final = "blocklist evacuates node"
"""How the exception begins that Flink shows for an evacuation by the bridge."""
MAX_FAILURES: Final = 32
"""Number of failures of a job that are read, the latest ones."""
ENDED_STATES: Final = frozenset({"FINISHED", "FAILED", "CANCELED"})


class FlinkError(Exception):
    """Flink could not be reached, or refused a call; retry later. The message is a sentence for the operator."""


class LeaderChangedError(Exception):
    """Another ResourceManager leads: it has not been notified of any block, and the former one may never answer."""


class JobKind(StrEnum):
    """Flink's JobType."""

    BATCH = "BATCH"
    STREAMING = "STREAMING"


@dataclass(frozen=True, kw_only=True, slots=True)
class FlinkTaskManager:
    """A TaskManager as the ResourceManager reports it; `host` is from the address of its RPC.

    `heartbeat_at` is when its last heartbeat came, in Unix milliseconds of the JobManager's clock; 0 before the first.
    """

    id: str
    host: str
    slots: int
    free_slots: int
    blocked: bool
    heartbeat_at: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class FlinkTask:
    """One attempt of a task. `task_manager`, `node` and `allocation` are None until it has a slot. `stage` is its place
    in the topological order.

    `allocation` is Flink's id of the slot, `vertex` that of the task's vertex, `subtask` its number there.
    """

    name: str
    stage: int
    state: str
    attempt: int
    task_manager: str | None = None
    node: str | None = None
    allocation: str | None = None
    vertex: str = ""
    subtask: int = 0


class FlinkEdge(NamedTuple):
    """Tasks of the vertex `target` read records of tasks of `source` while these run; if `pointwise`, each of some."""

    source: str
    target: str
    pointwise: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFailure:
    """A failure that made the job, or a part of it, restart. `at` is in Unix milliseconds."""

    at: int
    text: str
    task_manager: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FlinkJob:
    """A job as its JobMaster reports it.

    `restart_strategy` is Flink's description; `completed_checkpoints` counts those of the present JobMaster and the one
    that the job was restored from. `failures` are the latest, at most MAX_FAILURES and `web.exception-history-size`.
    `edges` are None if they are not known.
    """

    id: str
    name: str
    state: str
    kind: JobKind
    tasks: Sequence[FlinkTask] = ()
    checkpoints: bool = False
    completed_checkpoints: int = 0
    restart_strategy: str = ""
    failures: Sequence[JobFailure] = ()
    edges: Sequence[FlinkEdge] | None = None

    @property
    def is_batch(self) -> bool:
        return self.kind is JobKind.BATCH

    def on(self, task_managers: Collection[str]) -> list[FlinkTask]:
        """Its tasks with a slot on these TaskManagers that have not ended."""
        return [it for it in self.tasks if it.task_manager in task_managers and it.state not in ENDED_STATES]

    def task_managers(self) -> set[str]:
        """The TaskManagers on which it has tasks that have not ended."""
        return {it.task_manager for it in self.tasks if it.task_manager is not None and it.state not in ENDED_STATES}

    def running(self) -> dict[str, int]:
        """TaskManager id to the number of running tasks; those with tasks only."""
        counts: dict[str, int] = {}
        for task in self.tasks:
            if task.task_manager is not None and task.state in RUNNING_STATES:
                counts[task.task_manager] = counts.get(task.task_manager, 0) + 1
        return counts

    def results_on(self, task_managers: Collection[str]) -> int:
        """Number of finished tasks of a batch job there whose results later tasks may still read."""
        unfinished = [task.stage for task in self.tasks if task.state not in ENDED_STATES]
        last = max(unfinished, default=-1)
        finished = (it for it in self.tasks if it.state == "FINISHED" and it.task_manager in task_managers)
        return sum(it.stage < last for it in finished) if self.is_batch else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterState:
    """The TaskManagers, and the jobs whose JobMasters answered; `unreachable` maps the ids of the others to reasons.

    `ended` are jobs that Flink reports as ended. `notified` has the jobs whose JobMasters had received the whole list
    before they reported their tasks.
    """

    task_managers: Mapping[str, FlinkTaskManager]
    jobs: Mapping[str, FlinkJob] = field(default_factory=dict)
    unreachable: Mapping[str, str] = field(default_factory=dict)
    ended: frozenset[str] = frozenset()
    notified: frozenset[str] = frozenset()


# Whether the cluster's configuration lets Flink obey. Pure.
#
# Flink handles blocked nodes only with speculative execution switched on; otherwise it acknowledges and ignores them.

ENABLED: Final = "execution.batch.speculative.enabled"
_ENABLED_BEFORE: Final = "jobmanager.adaptive-batch-scheduler.speculative.enabled"
CHECK_INTERVAL: Final = "slow-task-detector.check-interval"
MIN_CHECK_INTERVAL: Final = 10.0
"""Seconds; below it a block may never end in Flink (FLINK-37607)."""
LINES_TO_ADD: Final = (
    f"{ENABLED}: true",
    f"{CHECK_INTERVAL}: 15 s",
    "slow-task-detector.execution-time.baseline-lower-bound: 10000 d",
    "execution.batch.speculative.block-slow-node-duration: 0 s",
)
"""What makes Flink obey, and nothing else: the last two keep it from speculating and blocking by itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigurationCheck:
    """`error` is why Flink ignores the list, None if it does not. `check_interval` is in seconds."""

    error: str | None
    warnings: tuple[str, ...]
    check_interval: float


def parse_configuration(text: str) -> dict[str, str]:
    """The answer of the REST API: a list of keys and values.

    Raises FlinkError for anything else, also for an empty list: a setting that is missing there must not count as off.
    """
    try:
        entries = json.loads(text)
        found = {entry["key"]: entry["value"] for entry in entries}
    except (ValueError, RecursionError, TypeError, KeyError):
        raise FlinkError(f"The JobManager's configuration cannot be read: {text[:100]!r}") from None
    if not found or None in found.values():
        raise FlinkError("The JobManager's configuration is empty, or settings in it have no value")
    return {str(key): str(value) for key, value in found.items()}


def check_configuration(configuration: Mapping[str, str]) -> ConfigurationCheck:
    """Check the configuration that the JobManager runs with."""
    interval = duration_seconds(configuration.get(CHECK_INTERVAL, "1 s"))
    enabled = configuration.get(ENABLED) or configuration.get(_ENABLED_BEFORE) or "false"
    if enabled.strip().lower() != "true":
        return ConfigurationCheck(error=_switched_off(), warnings=(), check_interval=interval)
    return ConfigurationCheck(error=None, warnings=_warnings(interval), check_interval=interval)


def advice() -> str:
    """The lines to add, each on a line of its own."""
    return "\n".join(f"  {line}" for line in LINES_TO_ADD)


def _switched_off() -> str:
    # All lines: the first alone would make Flink speculate.
    return (
        f"Flink ignores blocked nodes. Add to the JobManager's configuration and restart it: {'; '.join(LINES_TO_ADD)}"
    )


def _warnings(interval: float) -> tuple[str, ...]:
    if interval >= MIN_CHECK_INTERVAL:
        return ()
    warning = (
        f"{CHECK_INTERVAL} is {interval:g} s. If Flink checks before a JobMaster has started, it never checks again"
        " (FLINK-37607): blocks do not end there, and slots are allocated and rejected in a loop. Set it to"
        " 15 s and restart the JobManager."
    )
    return (warning,)


# Durations as Flink writes them. Pure.

# The units of Flink's TimeUtils; a number without a unit is in milliseconds.
_UNITS: Final = {
    name: seconds
    for seconds, names in (
        (86400.0, "d day days"),
        (3600.0, "h hour hours"),
        (60.0, "m min minute minutes"),
        (1.0, "s sec secs second seconds"),
        (1e-3, "ms milli millis millisecond milliseconds"),
        (1e-6, "\u00b5s \u03bcs micro micros microsecond microseconds"),
        (1e-9, "ns nano nanos nanosecond nanoseconds"),
    )
    for name in names.split()
}
_ISO: Final = re.compile(r"P(?:([0-9]+)D)?(?:T(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+(?:\.[0-9]+)?)S)?)?")


def duration_seconds(text: str) -> float:
    """A duration of Flink, such as `15 s`, `1 hour` or `P1DT2H`; 0 if it is not understood."""
    iso = _ISO.fullmatch(text.strip().upper())
    if iso is not None:
        days, hours, minutes, seconds = (float(part or 0) for part in iso.groups())
        return days * 86400 + hours * 3600 + minutes * 60 + seconds
    found = re.fullmatch(r"([0-9]+)\s*(\D*)", text.strip().lower())
    return float(found[1]) * _UNITS.get(found[2] or "ms", 0.0) if found is not None else 0.0
