"""What listeners report: how much is kept, what lapsed ones reported last, and how replicas exchange it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from sys import getsizeof
from typing import Final

from app.requests import ReportBody
from blocklist.model.errors import BlocklistError, InvalidError
from blocklist.model.evidence import Evidence, Finding, FindingKind
from blocklist.model.multimap import Multimap
from blocklist.model.report import Report
from blocklist.model.reported_node import ReportedNode
from blocklist.model.task_count import TaskCount
from blocklist.wire.reports import REPORT_FIELDS, report_fields

_ENTRY_BYTES: Final = 150
"""What an entry of a map or list takes besides its texts."""
_TASK_MANAGER_BYTES: Final = 450
"""What a TaskManager takes besides its entry, in the index of TaskManagers."""
_NODE_BYTES: Final = 1900
"""What a node that a listener names takes, in the indexes that find it under any name of the machine."""
_ALIAS_BYTES: Final = 900
"""What a further name or an address of a node takes, in the indexes of the inventory."""
_LABEL_BYTES: Final = 250
"""What a label of a node takes besides its texts, with the number of nodes that have it."""
_INDEXED_BYTES: Final = 450
"""What a refused block, or a piece of evidence, takes besides its entry."""


class TooManyListenersError(BlocklistError):
    """The principal has as many listeners as it may have; nothing was changed."""


class ReportsTooLargeError(BlocklistError):
    """The listeners of the principal report more than is kept; nothing was changed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Usage:
    principal: str
    size: int = 0


class ListenerQuota:
    """The listeners of each principal, and the bytes of their reports. Belongs to the event loop.

    Without a principal, as without authentication, there is no limit.
    """

    def __init__(self, *, max_listeners: int, max_bytes: int) -> None:
        self.max_listeners = max_listeners
        self._max_bytes = max_bytes
        self._usage: dict[str, _Usage] = {}
        self._ids = Multimap()
        self._sizes: defaultdict[str, int] = defaultdict(int)

    def has(self, principal: str, listener_id: str) -> bool:
        """Whether the listener is one of the principal's."""
        return listener_id in self._ids[principal]

    def is_full(self, principal: str, listener_id: str) -> bool:
        """Whether the principal may not have this listener besides those that it has."""
        own = self._ids[principal]
        return listener_id not in own and len(own) >= self.max_listeners

    def ids_of(self, principal: str) -> set[str]:
        """The ids of the listeners of a principal."""
        return set(self._ids[principal])

    def applies_to(self, listener_id: str) -> bool:
        """Whether the reports of this listener are limited. To measure others would cost time for nothing."""
        return listener_id in self._usage

    def add(self, listener_id: str, principal: str | None) -> None:
        """A listener was registered, perhaps by another principal than before."""
        usage = self._usage.get(listener_id)
        if usage is not None and usage.principal == principal:
            return
        self.remove(listener_id)
        if principal is not None:
            self._usage[listener_id] = _Usage(principal=principal)
            self._ids.add(principal, listener_id)

    def remove(self, listener_id: str) -> None:
        """A listener was removed."""
        if (usage := self._usage.pop(listener_id, None)) is None:
            return
        self._sizes[usage.principal] -= usage.size
        self._ids.discard(usage.principal, listener_id)
        if usage.principal not in self._ids:
            del self._sizes[usage.principal]

    def record(self, listener_id: str, size: int) -> None:
        """`size` is that of everything that is kept of a listener, in bytes."""
        if (usage := self._usage.get(listener_id)) is not None:
            self._sizes[usage.principal] += size - usage.size
            self._usage[listener_id] = _Usage(principal=usage.principal, size=size)

    def check(self, listener_id: str, size: int) -> None:
        """Raises ReportsTooLargeError if this may not be kept of a listener. Less than before may always be."""
        if (usage := self._usage.get(listener_id)) is None:
            return
        total = self._sizes[usage.principal] - usage.size + size
        if size > usage.size and total > self._max_bytes:
            raise ReportsTooLargeError(
                f"The reports of all listeners with this token would take {total} bytes; at most {self._max_bytes} are"
                " kept (BLOCKLIST_MAX_REPORT_BYTES_PER_TOKEN). A heartbeat without a report still renews the lease:"
                " report less, or remove listeners of this token that are no longer needed."
            )


def size_of(report: Report, findings: Mapping[str, Finding]) -> int:
    """The bytes of memory that a report takes at most, with the evidence that is kept instead of that in the report.

    A test compares this with the memory that is in fact taken.
    """
    task_managers, refused = report.task_managers or {}, report.refused or {}
    schedulable, unschedulable = report.schedulable or {}, report.unschedulable or {}
    entries = len(task_managers) + len(report.running_tasks or ()) + len(report.nodes or ())
    entries += len(schedulable) + len(unschedulable)
    indexed = len(refused) + len(findings)
    node_ids = report.node_ids()
    nodes = {*task_managers.values(), *node_ids}
    texts = (task_managers, task_managers.values(), report.running_tasks or (), refused, refused.values())
    states = (schedulable, schedulable.values(), unschedulable, unschedulable.values())
    return (
        entries * _ENTRY_BYTES
        + len(task_managers) * _TASK_MANAGER_BYTES
        + indexed * (_ENTRY_BYTES + _INDEXED_BYTES)
        + len(nodes) * _NODE_BYTES
        + sum(_size_of_texts(each) for each in (*texts, *states))
        + _size_of_texts(node_ids)
        + sum(_size_of_details(node) for node in report.nodes or () if isinstance(node, ReportedNode))
        # Of each node, indexes keep the name in lower case and the first label.
        + 2 * _size_of_texts(nodes)
        + _size_of_texts(findings)
        + _size_of_texts(finding.reason for finding in findings.values())
    )


def _size_of_details(node: ReportedNode) -> int:
    """What a node takes in memory besides its id."""
    aliases = (*node.names, *node.addresses)
    texts = (aliases, aliases, node.labels, node.labels.values())
    return (
        len(aliases) * _ALIAS_BYTES
        + len(node.labels) * (_ENTRY_BYTES + _LABEL_BYTES)
        + sum(_size_of_texts(each) for each in texts)
    )


def _size_of_texts(texts: Iterable[str]) -> int:
    return sum(map(getsizeof, texts))


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


# How replicas exchange reports: each part of one listener's report as JSON, under its name in the API.

ERROR: Final = "error"
"""The part that the pusher reports, not the listener: the outcome of the last push."""
EVIDENCE: Final = REPORT_FIELDS["evidence"]
TASK_MANAGERS: Final = REPORT_FIELDS["task_managers"]


def part_names(fields: Iterable[str]) -> set[str]:
    """The parts of these fields of a Report."""
    return {REPORT_FIELDS[field] for field in fields}


def dump_part(report: Report, part: str) -> str:
    """A field of a report, under its name in the API; not the evidence."""
    return json.dumps(report_fields(report)[part])


def load_part(part: str, text: str) -> Report:
    """The reverse, for a field of a Report. Raises InvalidError if a newer version wrote it in another form."""
    return ReportBody.parse({part: json.loads(text)}).value()


def dump_evidence(evidence: Iterable[Evidence]) -> str:
    """All evidence from one application."""
    return json.dumps([(e.node, e.finding.kind, e.finding.reason, e.first_seen, e.last_seen) for e in evidence])


def load_evidence(application: str, text: str) -> list[Evidence]:
    """The reverse. Raises InvalidError if a newer version wrote it in another form."""
    try:
        return [
            Evidence(
                application=application,
                node=node,
                finding=Finding(kind=FindingKind(kind), reason=reason),
                first_seen=first,
                last_seen=last,
            )
            for node, kind, reason, first, last in json.loads(text)
        ]
    except (TypeError, ValueError) as error:
        raise InvalidError(f"Cannot read the evidence from {application}: {error}.") from None
