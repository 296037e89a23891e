"""What listeners report: how much is kept, how replicas exchange it, and the inventory of it and the file of nodes."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase, digits
from sys import getsizeof
from typing import Final, NamedTuple

import structlog

from app.requests import ReportBody
from blocklist.model.errors import BlocklistError, InvalidError, UnknownNodeError
from blocklist.model.evidence import Evidence, Finding, FindingKind
from blocklist.model.inventory import Inventory
from blocklist.model.listener import Report
from blocklist.model.names import Multimap, ReportedMachines, ambiguous_message, normalize_name
from blocklist.model.node import TaskCount
from blocklist.model.reported_node import FILE_SOURCE, NodeSource, ReportedNode, parse_nodes_file
from blocklist.wire.listeners import REPORT_FIELDS, report_fields

log = structlog.get_logger(__name__)

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
"""What a block that is refused, pending or not here, or a piece of evidence, takes besides its entry."""


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
        return listener_id in self._ids[principal]

    def is_full(self, principal: str, listener_id: str, storing: Collection[str] = ()) -> bool:
        """Whether the principal may not have this listener besides those that it has, or that are being stored."""
        own = self._ids[principal]
        if listener_id in own or listener_id in storing:
            return False
        return len(own) + sum(it not in own for it in storing) >= self.max_listeners

    def ids_of(self, principal: str) -> set[str]:
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
    task_managers = report.task_managers or {}
    refused, pending, not_here = report.refused or {}, report.pending or {}, report.not_here or ()
    schedulable, unschedulable, replaced = report.schedulable or {}, report.unschedulable or {}, report.replaced or {}
    new_machines, would = report.new_machines or (), report.would or {}
    applications = report.applications or {}
    entries = len(task_managers) + len(report.running_tasks or ()) + len(report.nodes or ())
    entries += len(schedulable) + len(unschedulable) + len(replaced) + len(new_machines) + len(would)
    entries += len(applications)
    indexed = len(refused) + len(pending) + len(not_here) + len(findings)
    node_ids = report.node_ids()
    nodes = {*task_managers.values(), *node_ids}
    texts = (task_managers, task_managers.values(), report.running_tasks or (), refused, refused.values(), not_here)
    described = (pending, schedulable, unschedulable, replaced, applications)
    states = [text for each in described for text in (each, each.values())]
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


# The inventory: reports and the file of nodes applied to it, and which known node an unknown one probably means.

NODES_PER_TURN: Final = 200
"""Number of reported nodes that are applied in one turn of the event loop: some ten milliseconds."""


class InventoryUpdater:
    """Applies a report of a few nodes at once, and the rest of a long one in the next turns of the event loop.

    `on_changed` is called with the names that may mean other machines now, in normal form. Belongs to the event loop.
    """

    def __init__(self, inventory: Inventory, on_changed: Callable[[set[str]], object]) -> None:
        self._inventory = inventory
        self._on_changed = on_changed
        self._staged = asyncio.Event()

    def set_nodes(self, source: NodeSource, nodes: Iterable[str | ReportedNode], *, at_once: bool = False) -> None:
        """Replace all nodes that a source reports; `at_once` as `apply_all`."""
        self._inventory.stage_nodes(source, nodes)
        (self.apply_all if at_once else self._apply)()

    def set_running(self, source: NodeSource, node_ids: Iterable[str]) -> None:
        """Replace the nodes on which a listener runs."""
        self._inventory.stage_running(source, node_ids)
        self._apply()

    def remove_source(self, source: NodeSource) -> bool:
        """Forget a source; whether it was known."""
        removed = self._inventory.stage_removal(source)
        if removed:
            self._apply()
        return removed

    def apply_all(self) -> None:
        """Apply what is left in one turn, before anybody is served."""
        self._on_changed(self._inventory.apply_staged())

    async def run(self) -> None:
        """Apply what is left; never returns."""
        while True:
            await self._staged.wait()
            self._apply()
            await asyncio.sleep(0)

    def _apply(self) -> None:
        self._on_changed(self._inventory.apply_staged(NODES_PER_TURN))
        (self._staged.set if self._inventory.has_staged else self._staged.clear)()


CHECK_SECONDS: Final = 2.0
"""Interval at which the file is checked."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of the file."""


class _Version(NamedTuple):
    """What changes with the content of a file, even if a copy keeps the time of modification."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int


class NodesFile:
    """The nodes of the file, as a source of the inventory. Belongs to the event loop; the file is read in a thread.

    `fault` is why the file could not be used, None if it is in force: until it is repaired, what was read before stays
    in force. A file that changes is read once it has stayed the same for CHECK_SECONDS: until then it may be half
    written. Without a path there is no file.
    """

    def __init__(
        self,
        path: str,
        updater: InventoryUpdater,
        on_fault: Callable[[int], object],
        on_read: Callable[[Iterable[str]], object],
    ) -> None:
        """`on_read` is called with the ids of its nodes, whenever they have been read."""
        self.fault: str | None = None
        self._path = Path(path) if path else None
        self._updater = updater
        self._on_fault = on_fault
        self._on_read = on_read
        self._checked = False
        self._seen: _Version | None = None
        self._last_read: _Version | None = None

    @property
    def is_configured(self) -> bool:
        return self._path is not None

    async def run(self) -> None:
        """Check every CHECK_SECONDS; never returns."""
        while True:
            await self.check()
            await asyncio.sleep(CHECK_SECONDS)

    async def check(self) -> None:
        """Read the file if it has changed since it was last read; the first time at once, and as a whole."""
        if self._path is None:
            return
        first, self._checked = not self._checked, True
        try:
            version = await asyncio.to_thread(_version_of, self._path)
            settled, self._seen = first or version == self._seen, version
            if version == self._last_read or not settled:
                return
            nodes = await asyncio.to_thread(_read, self._path, version)
        except OSError as error:
            # Tried again each time; a file with faults only when it changes.
            self._last_read = None
            self._fail([error.strerror or str(error)])
        except InvalidError as error:
            self._last_read = version
            self._fail(error.lines)
        else:
            if nodes is not None:
                self._last_read = version
                self._apply(nodes, at_once=first)

    def _apply(self, nodes: list[ReportedNode], *, at_once: bool) -> None:
        self._updater.set_nodes(FILE_SOURCE, nodes, at_once=at_once)
        self._on_read(node.id for node in nodes)
        self.fault = None
        self._on_fault(0)
        log.info("file of nodes read", file=str(self._path), nodes=len(nodes))

    def _fail(self, lines: Sequence[str]) -> None:
        fault = f"{self._path}: {lines[0]}"
        if fault != self.fault:
            log.error(
                "cannot use the file of nodes; what was read before stays in force", file=str(self._path), faults=lines
            )
        self.fault = fault
        self._on_fault(1)


def _version_of(file: Path | int) -> _Version:
    """The version of a path or an open file. Raises OSError, also for what is no file: reading it might never end."""
    status = os.fstat(file) if isinstance(file, int) else file.stat()
    if stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "It is not a regular file")
    return _Version(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _open_at_once(path: str, flags: int) -> int:
    """Open a file that may have become a pipe: that would wait for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_nodes_file(path: Path) -> list[ReportedNode] | None:
    """The nodes of a nodes file; None if it changes meanwhile. Raises OSError, InvalidError."""
    return _read(path, _version_of(path))


def _read(path: Path, version: _Version) -> list[ReportedNode] | None:
    """The nodes in this version of the file; None if it has changed meanwhile. Raises OSError, InvalidError."""
    with open(path, "rb", opener=_open_at_once) as file:
        data = file.read(MAX_BYTES + 1) if _version_of(file.fileno()) == version else b""
        if _version_of(file.fileno()) != version:
            return None
    if len(data) > MAX_BYTES:
        raise InvalidError(f"the file is larger than {MAX_BYTES >> 20} MiB.")
    try:
        return parse_nodes_file(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidError(f"line {line}: the text is not UTF-8.") from None


MAX_SUGGESTIONS: Final = 5
"""Maximum number of suggestions for one request: each takes a few milliseconds of the event loop."""
MAX_LABEL: Final = 32
"""Maximum length of a first label, in characters, for which typing errors are tried."""
MAX_COMPARED: Final = 200
"""Maximum number of known nodes with each of which a name is compared."""
_LOOK_ALIKE: Final = {"o": "o0", "0": "0o", "l": "l1", "1": "1l", "i": "i1"}
"""Characters that look alike: `worker-O1O` is meant to be worker-010, rather than worker-019."""
_MAX_LOOK_ALIKE: Final = 6
"""Maximum number of such characters, the last ones of a name, that are tried: each doubles the number of names."""
_CHARACTERS: Final = ascii_lowercase + digits + "-_"


@dataclass(frozen=True, slots=True)
class KnownNodes:
    """The nodes of the inventory, or with authentication those of them that `counted` has: no single job makes a node
    known by naming it.

    `is_nowhere` is whether no cluster has a node: that may be known although no manager reports any nodes.
    """

    inventory: Inventory
    is_nowhere: Callable[[str], bool] = lambda _: False
    counted: ReportedMachines | None = None

    def __bool__(self) -> bool:
        return bool(self.inventory if self.counted is None else self.counted)

    def ambiguous(self, node_ids: Iterable[str]) -> dict[str, list[str]]:
        """Those that mean no node, because several claim them, with the ids of these."""
        claimed = {node_id: self.inventory.sharing(node_id) for node_id in node_ids}
        return {node_id: [*map(self.inventory.spelling, sorted(ids))] for node_id, ids in claimed.items() if ids}

    def several(self, node_ids: Iterable[str]) -> dict[str, list[str]]:
        """The short names that mean several nodes, all of which a block of the name blocks, with their ids."""
        meant = {node_id: self.inventory.known_as(node_id) for node_id in node_ids} if self else {}
        return {name: [*map(self.inventory.spelling, sorted(ids))] for name, ids in meant.items() if len(ids) > 1}

    def unknown(self, node_ids: Iterable[str]) -> dict[str, str | None]:
        """Those that are not known, with the node that was probably meant. None is unknown if no node is known,
        unless every manager says so.
        """
        unknown = [it for it in node_ids if not self._is_named(it) and (self or self.is_nowhere(it))]
        suggestions = [self._suggestion(node_id) for node_id in unknown[:MAX_SUGGESTIONS]]
        return dict.fromkeys(unknown) | dict(zip(unknown, suggestions, strict=False))

    def require(self, node_ids: Sequence[str], names: Iterable[str] = ()) -> None:
        """Raise UnknownNodeError if one of these nodes is unknown or ambiguous, or if no node is known at all.

        Also if one of the `names` means several nodes.
        """
        if node_ids and not self:
            raise UnknownNodeError("No node is known, so it is unknown whether these nodes exist.")
        lines = [_unknown_line(*item) for item in self.unknown(node_ids).items()]
        lines += [ambiguous_message(*item) for item in self.ambiguous(node_ids).items()]
        lines += [ambiguous_message(*item) for item in self.several(names).items()]
        if lines:
            summary = f"{len(lines)} of the nodes are unknown, or their names mean several."
            raise UnknownNodeError(lines[0] if len(lines) == 1 else summary, lines)

    def suggestion(self, node_id: str) -> str | None:
        """The known node that was probably meant; None if there is none, or the node is known."""
        return self.unknown([node_id]).get(node_id)

    def _is_named(self, node_id: str) -> bool:
        return any(map(self._counts, self.inventory.known_as(node_id) or self.inventory.sharing(node_id)))

    def _counts(self, reported_id: str) -> bool:
        return self.counted is None or reported_id in self.counted

    def _known_as(self, name: str) -> list[str]:
        return [*filter(self._counts, self.inventory.known_as(name))]

    def _suggestion(self, node_id: str) -> str | None:
        """A known node with one typing error in its first label; of few nodes, else the most similar one."""
        name = normalize_name(node_id)
        for candidate in _look_alikes(name):
            if known := self._known_as(candidate):
                return self.inventory.spelling(min(known))
        found: dict[str, str] = {}
        for candidate in _with_one_error(name):
            if known := self._known_as(candidate):
                found[candidate] = self.inventory.spelling(min(known))
        if not found:
            few = len(self.inventory) <= MAX_COMPARED
            found = (
                {node: self.inventory.spelling(node) for node in filter(self._counts, self.inventory)} if few else {}
            )
            return _closest(name, found, cutoff=0.6)
        return _closest(name, found, cutoff=0)


def _closest(name: str, known: Mapping[str, str], cutoff: float) -> str | None:
    best = get_close_matches(name, sorted(known), n=1, cutoff=cutoff)
    return known[best[0]] if best else None


def _look_alikes(name: str) -> Iterator[str]:
    """The names that look like this one, itself included; none for a long one."""
    if len(name.partition(".")[0]) > MAX_LABEL:
        return
    places = [place for place, character in enumerate(name) if character in _LOOK_ALIKE][-_MAX_LOOK_ALIKE:]
    characters = list(name)
    for choice in product(*(_LOOK_ALIKE[name[place]] for place in places)):
        for place, character in zip(places, choice, strict=True):
            characters[place] = character
        yield "".join(characters)


def _with_one_error(name: str) -> set[str]:
    """The names that differ in one character of the first label: left out, added, wrong, or swapped with the next."""
    label, dot, domain = name.partition(".")
    if len(label) > MAX_LABEL or ":" in name:
        return set()
    splits = [(label[:i], label[i:]) for i in range(len(label) + 1)]
    labels = {
        *(left + right[1:] for left, right in splits if right),
        *(left + right[1] + right[0] + right[2:] for left, right in splits if len(right) > 1),
        *(left + character + right[1:] for left, right in splits if right for character in _CHARACTERS),
        *(left + character + right for left, right in splits for character in _CHARACTERS),
    }
    return {label + dot + domain for label in labels if label}


def _unknown_line(node_id: str, suggestion: str | None) -> str:
    return f"{node_id} is not a known node" + ("." if suggestion is None else f"; did you mean {suggestion}?")
