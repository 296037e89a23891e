"""What the event logs show about one node. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

SLOWDOWN_THRESHOLD: Final = 1.5
"""Ratio to the peers' time from which a host is slow (FLIP-168)."""


MAX_APPLICATIONS: Final = 30
"""Maximum number of applications of a host that are judged: the latest."""


class Metric(StrEnum):
    """Times by which hosts are compared."""

    COMPUTE = "compute"
    """Run time without GC and fetch wait."""
    NETWORK = "network"
    """Fetch wait per byte from other hosts, where it is at least a tenth of the run time."""
    DISK = "disk"
    """Shuffle write time per byte, where it is at least a tenth of the run time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A host compared with its peers in one application, by one metric.

    `slowdown` is the median over the `stages`, or over the host's partitions if that is less. `lost_ms` is its time in
    slow stages beyond that of the peers. `first` and `last` are Unix ms: of the slow stages if there are some, else of
    all compared.
    """

    app: str
    metric: Metric
    stages: int
    slow_stages: int
    slowdown: float
    lost_ms: int
    first: int
    last: int


class FailureClass(StrEnum):
    """Classes of failures. Only those in CHARGED_TO_NODE are charged to a machine."""

    DISK_FULL = "disk full"
    IO_ERROR = "I/O error"
    LOST_EXECUTOR = "lost executor"
    FETCH = "fetch failure"
    SLOW_SERVER = "slow to serve shuffle blocks"
    ONLY_THERE = "tasks that failed only there and succeeded elsewhere"
    MEMORY = "out of memory"
    USER = "user exception"
    OTHER = "other"


CHARGED_TO_NODE: Final = (
    FailureClass.DISK_FULL,
    FailureClass.IO_ERROR,
    FailureClass.LOST_EXECUTOR,
    FailureClass.FETCH,
    FailureClass.SLOW_SERVER,
    FailureClass.ONLY_THERE,
)
COUNTED_BY_TASK: Final = (FailureClass.DISK_FULL, FailureClass.IO_ERROR)
"""Classes that are counted in tasks instead of stages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ApplicationFailures:
    """Failures of one class that are charged to a host in one application.

    `lost_ms` is the time of the tasks that failed, or that they waited for the host. `first` and `last` are the times
    of the earliest and the latest in Unix ms. `partitions` are the numbers of those that failed; only of ONLY_THERE.
    """

    app: str
    failure: FailureClass
    stages: int
    tasks: int
    lost_ms: int
    first: int
    last: int
    partitions: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureCounts:
    """Failures of one class on one node and (`all_…`) on all nodes; `first` and `last` are the times of
    the earliest and the latest in Unix ms.

    A lost executor or server fails many tasks at once, so those classes are counted in stages. A full or broken disk
    fails each task separately, and Spark may avoid the host after the second one, so few stages are hit: counted in
    tasks. ONLY_THERE is counted in partitions, each once on a node: one partition with bad data fails again in each
    stage and application, and again on the node that holds it. `by_application` has those of this node, the earliest
    first.
    """

    stages: int
    tasks: int
    applications: int
    all_stages: int
    all_tasks: int
    last: int
    first: int = 0
    partitions: int = 0
    all_partitions: int = 0
    by_application: Sequence[ApplicationFailures] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSummary:
    """What the event logs show about one node.

    `stages` are those in which the node could be compared with its peers, `slow_stages` those in which it was slow,
    `expected` the number of slow stages that a random node would have. `slowdown` is the median over the stages.
    `slow_last` is the end of the last task in a slow stage (Unix ms). `share` is the node's share of all tasks.
    `comparisons` are those with its peers, in any order.
    """

    host: str
    tasks: int = 0
    applications: int = 0
    stages: int = 0
    slow_stages: int = 0
    slow_applications: int = 0
    expected: float = 0.0
    slowdown: float = 1.0
    slow_last: int = 0
    share: float = 0.0
    failures: Mapping[FailureClass, FailureCounts] = field(default_factory=dict)
    exclusions: int = 0
    comparisons: Sequence[Comparison] = ()

    def comparisons_by(self, metric: Metric) -> list[Comparison]:
        """Return those by this metric, in the order of time."""
        return sorted((it for it in self.comparisons if it.metric is metric), key=lambda it: (it.last, it.app))
