"""ListenerQuota: how many listeners one principal may have, and how much of their reports is kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from sys import getsizeof
from typing import Final

from blocklist.model.errors import BlocklistError
from blocklist.model.evidence import Finding
from blocklist.model.multimap import Multimap
from blocklist.model.report import Report
from blocklist.model.reported_node import ReportedNode

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
