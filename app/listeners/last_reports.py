"""What listeners reported last before they lapsed: for people who look for tasks that may still run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from blocklist.model.report import Report
from blocklist.model.task_count import TaskCount

MAX_LISTENERS: Final = 500
"""Maximum number of lapsed listeners whose last report is kept; beyond it, the one that lapsed first is forgotten."""
MAX_HOSTS: Final = 50
"""Maximum number of nodes that are kept of a report: those with most tasks."""
MAX_REFUSED: Final = 20
"""Maximum number of refusals that are kept of a report."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TasksOnHost:
    """The TaskManagers of a listener on a node, under the name that the listener uses, and their tasks."""

    node: str
    task_managers: int
    tasks: TaskCount


@dataclass(frozen=True, kw_only=True, slots=True)
class LastReport:
    """A part of a listener's report. `reported_hosts` and `reported_refusals` are the numbers of all that it had.

    `refused` is None if it did not report what it refuses.
    """

    hosts: Sequence[TasksOnHost]
    reported_hosts: int
    refused: Mapping[str, str] | None
    reported_refusals: int


class LastReports:
    """The last reports of lapsed listeners. In memory only, and bounded: they count against no limit of a token."""

    def __init__(self) -> None:
        self._by_listener: dict[str, LastReport] = {}

    def __len__(self) -> int:
        return len(self._by_listener)

    def record(self, listener: str, report: Report) -> None:
        """The listener has lapsed with this report."""
        self.discard(listener)
        hosts = tasks_by_host(report.task_managers or {}, report.running_tasks or {})
        refused = report.refused
        if not hosts and not refused:
            return
        self._by_listener[listener] = LastReport(
            hosts=sorted(hosts, key=lambda host: (-host.tasks.known, host.node))[:MAX_HOSTS],
            reported_hosts=len(hosts),
            refused=None if refused is None else dict(islice(sorted(refused.items()), MAX_REFUSED)),
            reported_refusals=len(refused or ()),
        )
        if len(self._by_listener) > MAX_LISTENERS:
            del self._by_listener[next(iter(self._by_listener))]

    def get(self, listener: str) -> LastReport | None:
        """The last report; None if the listener is live, reported nothing, or that is no longer known."""
        return self._by_listener.get(listener)

    def on_hosts(self, names: Collection[str]) -> Iterator[tuple[str, TasksOnHost]]:
        """The listeners that had TaskManagers on a machine with one of these names, which are in normal form."""
        for listener, report in self._by_listener.items():
            for host in report.hosts:
                if host.node.lower() in names:
                    yield listener, host

    def hosts(self) -> tuple[bool, set[str]]:
        """Whether all hosts of lapsed listeners are still known, and those that are, in lower case."""
        reports = self._by_listener.values()
        complete = all(report.reported_hosts == len(report.hosts) for report in reports)
        return complete, {host.node.lower() for report in reports for host in report.hosts}

    def discard(self, listener: str) -> None:
        """The listener has left or registered again."""
        self._by_listener.pop(listener, None)


def tasks_by_host(task_managers: Mapping[str, str], running_tasks: Mapping[str, int]) -> list[TasksOnHost]:
    """TaskManagers (id to node) and the tasks that run on them, by node; a number that is missing is unknown."""
    # Known, reported and unreported, as in TaskCount: a list of numbers for each of 10,000 nodes would cost twice.
    counts: dict[str, list[int]] = {}
    for task_manager, node in task_managers.items():
        count = counts.get(node)
        if count is None:
            count = counts[node] = [0, 0, 0]
        tasks = running_tasks.get(task_manager)
        if tasks is None:
            count[2] += 1
        else:
            count[0] += tasks
            count[1] += 1
    return [
        TasksOnHost(node=node, task_managers=reported + unreported, tasks=TaskCount(known, reported, unreported))
        for node, (known, reported, unreported) in counts.items()
    ]


def total_tasks(hosts: Iterable[TasksOnHost]) -> TaskCount:
    """The tasks on all these nodes."""
    known = reported = unreported = 0
    for host in hosts:
        known += host.tasks.known
        reported += host.tasks.reported
        unreported += host.tasks.unreported
    return TaskCount(known, reported, unreported)
