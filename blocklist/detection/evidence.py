"""What applications show about hosts, application by application, and its summary by host. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from blocklist.detection.node_summary import (
    MAX_APPLICATIONS,
    ApplicationFailures,
    Comparison,
    FailureClass,
    FailureCounts,
    Metric,
    NodeSummary,
)

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
    partitions: defaultdict[tuple[str, FailureClass], set[int]] = defaultdict(set)
    by_class: defaultdict[str, defaultdict[FailureClass, list[ApplicationFailures]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for host, own in charged.items():
        for each in sorted(own, key=lambda it: (it.first, it.app)):
            by_class[host][each.failure].append(each)
            all_stages[each.failure] += each.stages
            all_tasks[each.failure] += each.tasks
            partitions[host, each.failure] |= each.partitions
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
