"""What the event logs show about one node. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeVar

MIN_HOSTS: Final = 3
"""Minimum number of hosts that are compared: of two it cannot be known which one is slow."""
SLOWDOWN_THRESHOLD: Final = 1.3
"""Ratio to the peers' time from which a host is slow in a stage: noise takes one of 1.5 times down to that."""


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
    START = "start"
    """Longest time to deserialize a task, where that and the fetch wait are at least a tenth of the run time.

    The first task of a stage on an executor fetches the code of the stage over the network.
    """


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
    ALL_THERE = "all tasks failed there and none elsewhere"
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
    FailureClass.ALL_THERE,
    FailureClass.ONLY_THERE,
)
COUNTED_BY_TASK: Final = (FailureClass.DISK_FULL, FailureClass.IO_ERROR)
"""Classes that are counted in tasks instead of stages."""
COUNTED_BY_PARTITION: Final = (FailureClass.ALL_THERE, FailureClass.ONLY_THERE)
"""Classes that are counted in partitions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ApplicationFailures:
    """Failures of one class that are charged to a host in one application.

    `lost_ms` is the time of the tasks that failed, or that they waited for the host. `first` and `last` are the times
    of the earliest and the latest in Unix ms. `partitions` are the numbers of those that failed; only of ONLY_THERE
    and ALL_THERE.
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
    stage and application, and again on the node that holds it. ALL_THERE is counted in partitions, too, each once in an
    application: that no task at all succeeds on the node is not the fault of some partitions. `by_application` has
    those of this node, the earliest first.
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


# What applications show about hosts, application by application, and its summary by host. Pure.

Failures = Mapping[FailureClass, FailureCounts]
NO_FAILURES: Final[Failures] = {}
_Item = TypeVar("_Item", Comparison, ApplicationFailures)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostInApplication:
    """What one application shows about one host.

    `first` and `last` are the launch of its first task there and the end of its last one, in Unix ms.
    """

    app: str
    host: str
    tasks: int
    first: int
    last: int
    comparisons: Sequence[Comparison] = ()
    failures: Sequence[ApplicationFailures] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskTime:
    """Time of the tasks that started on a host in the minute from `minute` (Unix ms) on.

    `lost_ms` is what the host's faults cost: task time above what its peers needed in stages in which it was slow, and
    all time of tasks that failed by its fault. `healthy_ms` is that of tasks on which it was as good as its peers.
    """

    host: str
    minute: int
    lost_ms: int
    healthy_ms: int


_OfHost = TypeVar("_OfHost", HostInApplication, TaskTime)


def join_evidence(
    counted: Iterable[Mapping[str, Any]],
    comparisons: Mapping[str, Sequence[Comparison]],
    failures: Mapping[str, Sequence[ApplicationFailures]],
) -> list[HostInApplication]:
    """Join what is known by host. `counted`: the other fields of HostInApplication.

    A host to which a fetch failure is charged may have run no task in that application.
    """
    compared, charged = _by_application(comparisons), _by_application(failures)
    ran = [dict(row) for row in counted]
    known = {(row["app"], row["host"]) for row in ran}
    for (app, host), own in charged.items():
        if (app, host) not in known:
            first, last = min(it.first for it in own), max(it.last for it in own)
            ran.append({"app": app, "host": host, "tasks": 0, "first": first, "last": last})
    return [
        HostInApplication(
            **row,
            comparisons=compared.get((row["app"], row["host"]), ()),
            failures=charged.get((row["app"], row["host"]), ()),
        )
        for row in ran
    ]


def _by_application(by_host: Mapping[str, Sequence[_Item]]) -> Mapping[tuple[str, str], Sequence[_Item]]:
    found: defaultdict[tuple[str, str], list[_Item]] = defaultdict(list)
    for host, items in by_host.items():
        for item in items:
            found[item.app, host].append(item)
    return found


def by_host(items: Iterable[_OfHost]) -> Mapping[str, list[_OfHost]]:
    """Group what is known of hosts."""
    found: defaultdict[str, list[_OfHost]] = defaultdict(list)
    for item in items:
        found[item.host].append(item)
    return found


def summarize(evidence: Iterable[HostInApplication]) -> list[NodeSummary]:
    """Return what is judged of each host, sorted by host."""
    known = by_host(evidence)
    failures = tally({host: [it for each in own for it in each.failures] for host, own in known.items()})
    tasks = {host: sum(each.tasks for each in own) for host, own in known.items()}
    total = sum(tasks.values())
    return [
        NodeSummary(
            host=host,
            tasks=tasks[host],
            applications=sum(each.tasks > 0 for each in own),
            share=tasks[host] / total,
            failures=failures.get(host, NO_FAILURES),
            comparisons=_latest(own),
        )
        for host, own in sorted(known.items())
        if tasks[host]
    ]


def _latest(evidence: Sequence[HostInApplication]) -> list[Comparison]:
    """The comparisons of the latest MAX_APPLICATIONS by each metric."""
    ordered = sorted((it for each in evidence for it in each.comparisons), key=lambda it: (it.last, it.app))
    return [it for metric in Metric for it in [own for own in ordered if own.metric is metric][-MAX_APPLICATIONS:]]


def tally(charged: Mapping[str, Sequence[ApplicationFailures]]) -> dict[str, Failures]:
    """Count the failures of each host by class. `charged`: by host."""
    all_stages, all_tasks, all_partitions = (Counter[FailureClass]() for _ in range(3))
    partitions: defaultdict[tuple[str, FailureClass], set[tuple[str, int]]] = defaultdict(set)
    by_class: defaultdict[str, defaultdict[FailureClass, list[ApplicationFailures]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for host, own in charged.items():
        for each in sorted(own, key=lambda it: (it.first, it.app)):
            by_class[host][each.failure].append(each)
            all_stages[each.failure] += each.stages
            all_tasks[each.failure] += each.tasks
            scope = each.app if each.failure is FailureClass.ALL_THERE else ""
            partitions[host, each.failure] |= {(scope, number) for number in each.partitions}
    for (_, failure), failed in partitions.items():
        all_partitions[failure] += len(failed)
    return {
        host: {
            failure: FailureCounts(
                stages=sum(it.stages for it in found),
                tasks=sum(it.tasks for it in found),
                applications=len(found),
                all_stages=all_stages[failure],
                all_tasks=all_tasks[failure],
                partitions=len(partitions[host, failure]),
                all_partitions=all_partitions[failure],
                first=min(it.first for it in found),
                last=max(it.last for it in found),
                by_application=found,
            )
            for failure, found in classes.items()
        }
        for host, classes in by_class.items()
    }
