"""The registered listeners in memory, and the nodes that they may use."""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Final, Self

from app.engine.list_view import Broadcast, ListView
from app.listeners.reports import (
    ERROR,
    EVIDENCE,
    TASK_MANAGERS,
    InventoryUpdater,
    LastReports,
    ListenerQuota,
    dump_evidence,
    dump_part,
    load_evidence,
    load_part,
    part_names,
    size_of,
)
from app.store.listeners import Secret
from blocklist.model.changes import Change
from blocklist.model.draft import Draft
from blocklist.model.evidence import EvidenceStore
from blocklist.model.inventory import Inventory
from blocklist.model.listener import EMPTY_REPORT, Listener, ListenerRole, Mode, Modes, Report
from blocklist.model.names import (
    Aliases,
    ConfirmedNodes,
    MachineSet,
    NameSet,
    ReportedMachines,
    no_aliases,
    normalize_name,
)
from blocklist.model.node import ALL_LISTENERS, NO_TASKS, AppliedBy, BlockState, TaskCount, any_silent, block_state
from blocklist.model.reported_node import CLUSTER_LABEL, NodeSource, SourceKind, in_cluster
from blocklist.model.usable_nodes import (
    ListenerNodes,
    blocked_names,
    count_usable,
    matching_names,
    nodes_in_use,
)

if TYPE_CHECKING:
    from app.watch import ChangeFeed


_NODES_FOR_CLUSTER: Final = 16
"""Number of TaskManagers of a job whose nodes tell its cluster."""
MAX_ACKS: Final = 256
"""Number of acknowledgements per listener whose times are kept; also of nodes that were pending."""


@dataclass(kw_only=True, slots=True, eq=False)
class ListenerEntry:
    """One registration of a listener, as this process knows it; a renewal keeps the entry, a new session makes another.

    `owner` is the replica that pushes to it, None if there is only one. `error` is the outcome of the last push as
    callers see it, `logged_error` the same in the log of this replica.
    `report` is everything reported so far, without the evidence; `reported_at` is when each part was last reported
    (Unix ms); a part is a field of Report, or ERROR. `nodes` are the nodes it reported, in normal form.
    `has_unplaced_tasks` is whether tasks run on TaskManagers whose nodes it does not report. `indexed_cluster` is the
    cluster to which its nodes belong in the inventory. `task_manager_nodes` and `believed_nodes` are as last computed,
    each with what it was computed from. `acks` are pairs of a revision and when it was acknowledged (Unix ms);
    `in_force_since` is when a node was last no longer reported as refused, pending or not here (Unix ms).
    """

    listener: Listener
    secret: Secret
    owner: str | None = None
    expired: bool = False
    error: str | None = None
    logged_error: str | None = None
    report: Report = EMPTY_REPORT
    reported_at: dict[str, int] = field(default_factory=dict)
    nodes: frozenset[str] | None = None
    task_manager_nodes: tuple[set[str], frozenset[str]] | None = None
    has_unplaced_tasks: bool = False
    indexed_cluster: str | None = None
    believed_nodes: tuple[tuple[frozenset[str] | None, frozenset[str], int], frozenset[str]] | None = None
    acks: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=MAX_ACKS))
    aliases: Aliases = no_aliases
    in_force_since: dict[str, int] = field(default_factory=dict)
    _names_of_parts: dict[str, tuple[Collection[str], NameSet]] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.listener.id

    def is_live(self, now: int) -> bool:
        """Whether the lease is valid at `now` (Unix ms); never again once it has expired, if the clock is set back."""
        return not self.expired and self.listener.is_live(now)

    def lease_time(self, now: int) -> int:
        """The time with which to compare the lease: `now`, or its end once it has expired (Unix ms)."""
        return max(now, self.listener.lease_end) if self.expired else now

    @property
    def refused(self) -> Mapping[str, str]:
        """Blocks that it does not carry out: node id to the reason."""
        return self.report.refused or {}

    @property
    def pending(self) -> Mapping[str, str]:
        """Nodes whose last change is not in force yet, or not known to be: node id to the reason."""
        return self.report.pending or {}

    @property
    def running_tasks(self) -> Mapping[str, int]:
        """Number of tasks that run on each TaskManager, for those that it reported."""
        return self.report.running_tasks or {}

    def next_timestamp(self, now: int) -> int:
        """The time of a new report: later than all earlier ones, also where another replica's clock is ahead."""
        return max([now, *(at + 1 for at in self.reported_at.values())])

    def has_acked(self, revision: int) -> bool:
        """Whether it has acknowledged the list up to `revision`: all is in force but what is refused or pending."""
        return not self.listener.is_behind(revision)

    @property
    def mode(self) -> Mode:
        """The one that it has reported, else the one that it began with."""
        return self.report.mode or self.listener.mode

    @property
    def applies(self) -> bool:
        """Whether it applies blocks: otherwise nothing is in force there, and nobody waits for it."""
        return self.mode is Mode.APPLY

    def has_confirmed(self, revision: int) -> bool:
        """Whether it has acknowledged `revision`, and that is known to be in force still."""
        return self.listener.confirmed and self.has_acked(revision) and self.applies

    def would_do(self, node_id: str) -> str | None:
        """What it would do for the block of this node, while it only observes."""
        return self._reason("would", self.report.would or {}, node_id) if self.mode is Mode.OBSERVE else None

    @property
    def confirmed_revision(self) -> int:
        """The revision up to which `has_confirmed` holds; -1 if for none."""
        acked = self.listener.acked
        return acked if acked is not None and self.listener.confirmed and self.applies else -1

    def state_of(self, revision: int, node_id: str, tasks: TaskCount = NO_TASKS) -> BlockState:
        """What is known here of the change of the node at `revision`; `tasks` are those of the listener on the node."""
        confirmed = self.has_confirmed(revision)
        return block_state(
            tasks,
            # Before it has acknowledged the change, it can only have refused an earlier one, or be at it.
            refused=confirmed and self.refusal_of(node_id) is not None,
            applied=confirmed and self.pending_reason_of(node_id) is None,
            not_here=confirmed and self.says_not_here(node_id),
        )

    def says_not_here(self, node_id: str) -> bool:
        """Whether it reports that the node is none of its own; what it refuses, or has not done yet, is."""
        not_here = self.report.not_here
        if not not_here or self.listener.role is not ListenerRole.RESOURCE_MANAGER:
            return False
        listed = self._reported_name("not_here", not_here, node_id) is not None
        return listed and self.refusal_of(node_id) is None and self.pending_reason_of(node_id) is None

    @property
    def reports_task_managers(self) -> bool:
        """Whether it has reported where all its tasks run; that it has no TaskManager is a report, too."""
        return self.report.task_managers is not None and not self.has_unplaced_tasks

    def refusal_of(self, node_id: str) -> str | None:
        """The reason why it does not carry out the block of this node, reported under any name of the machine."""
        return self._reason("refused", self.refused, node_id)

    def pending_reason_of(self, node_id: str) -> str | None:
        """The reason why the node's last change is not in force yet, reported under any name of the machine."""
        if not self.pending or self.refusal_of(node_id) is not None:
            return None
        return self._reason("pending", self.pending, node_id)

    def _reason(self, field_name: str, reasons: Mapping[str, str], node_id: str) -> str | None:
        name = self._reported_name(field_name, reasons, node_id)
        return None if name is None else reasons[name]

    def _reported_name(self, field_name: str, names: Collection[str], node_id: str) -> str | None:
        """The name under which a part of the report has the node; None if it has not."""
        if not names or node_id in names:
            return node_id if names else None
        known = self._names_of_parts.get(field_name)
        if known is None or known[0] is not names:
            known = self._names_of_parts[field_name] = names, NameSet(names, self.aliases)
        return next(known[1].matching(node_id), None)

    def acked_at(self, revision: int) -> int | None:
        """When it acknowledged `revision` (Unix ms); None if it has not, or the time is no longer known."""
        if not self.has_acked(revision) or (self.acks.maxlen == len(self.acks) and self.acks[0][0] > revision):
            return None
        return next((at for acked, at in self.acks if acked >= revision), None)

    def applied_at(self, revision: int, node_id: str) -> int | None:
        """When the change of the node was in force (Unix ms); None if it is not, or the time is no longer known."""
        if not self.state_of(revision, node_id).is_applied or (acked := self.acked_at(revision)) is None:
            return None
        return max(acked, self.in_force_since.get(node_id, 0))

    def note_in_force(self, before: Report, at: int) -> None:
        """What the report before this one, which is of `at` (Unix ms), had as not in force is in force since."""
        for node_id in _not_in_force(before) - _not_in_force(self.report):
            self.in_force_since.pop(node_id, None)
            self.in_force_since[node_id] = at
        for oldest in list(self.in_force_since)[: max(0, len(self.in_force_since) - MAX_ACKS)]:
            del self.in_force_since[oldest]

    def lag_ms(self, feed: ChangeFeed, now: int) -> int:
        """Age of the oldest change that it has not applied, in milliseconds; 0 if it has applied all."""
        if not self.listener.is_behind(feed.revision):
            return 0
        since = None if self.listener.acked is None else feed.timestamp_of(self.listener.acked + 1)
        return max(0, now - (self.listener.registered_at if since is None else since))


_SOURCE_KINDS: Final = {ListenerRole.RESOURCE_MANAGER: SourceKind.MANAGER, ListenerRole.JOB_MASTER: SourceKind.AGENT}


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangeProgress:
    """How many live listeners a change is for; the ids of those that refused it or have not applied it yet.

    Those that have none of its nodes, `not_here`, are not among them, nor those that do not apply blocks, `observing`.
    """

    total: int
    refused: Sequence[str]
    pending: Sequence[str]
    not_here: Sequence[str]
    observing: Sequence[str] = ()

    @property
    def applied(self) -> int:
        return self.total - len(self.refused) - len(self.pending)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Standing:
    """The revisions that listeners have confirmed, sorted, and how many refuse any block, or say not here of any."""

    confirmed: Sequence[int]
    refusing: int
    elsewhere: int

    @classmethod
    def of(cls, entries: Collection[ListenerEntry]) -> Self:
        return cls(
            confirmed=sorted(entry.confirmed_revision for entry in entries),
            refusing=sum(bool(entry.refused) for entry in entries),
            elsewhere=sum(bool(entry.report.not_here) for entry in entries),
        )

    def is_open(self, revision: int, by: AppliedBy) -> bool:
        """Whether it is certain that too few have applied a change, and that enough still may."""
        total = len(self.confirmed)
        confirmed = total - bisect_left(self.confirmed, revision)
        counted = total - self.elsewhere
        return not by.is_met(confirmed, total) and by.is_met(counted - self.refusing, counted)


class ListenerDirectory:
    """All listeners, live or expired. `acks` notifies when a listener acknowledged, expired or was removed.

    `inventory` has all that anybody reports, `last_reports` what lapsed listeners reported before. `renewals_known_at`
    is the time up to which the renewals at other replicas have been read (Unix ms); None if there are no others.

    `modes` are those that admins have set.

    Belongs to the event loop.
    """

    def __init__(
        self,
        view: ListView,
        evidence: EvidenceStore,
        confirmed_nodes: ConfirmedNodes,
        inventory: Inventory,
        quota: ListenerQuota,
        clock: Callable[[], int],
    ) -> None:
        self.acks = Broadcast()
        self.last_reports = LastReports()
        self._view = view
        self._evidence = evidence
        self._confirmed_nodes = confirmed_nodes
        self.inventory = inventory
        self.inventory_updater = InventoryUpdater(inventory, self._machines_changed)
        self._quota = quota
        self._clock = clock
        self._entries: dict[str, ListenerEntry] = {}
        self._resource_managers: dict[str, ListenerEntry] = {}
        self._with_minimum: set[str] = set()
        self._signal_scheduled = False
        # By whether only managers count, as long as the event loop runs the same turn.
        self._standings: dict[bool, _Standing] = {}
        self.renewals_known_at: int | None = None
        self.modes = Modes()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ListenerEntry]:
        return (self._entries[listener_id] for listener_id in sorted(self._entries))

    @property
    def entries(self) -> Iterable[ListenerEntry]:
        """All entries, in no order."""
        return self._entries.values()

    @property
    def ids(self) -> set[str]:
        return set(self._entries)

    def get(self, listener_id: str) -> ListenerEntry | None:
        return self._entries.get(listener_id)

    def is_current(self, entry: ListenerEntry) -> bool:
        """Whether the entry is the listener's registration now: not expired, removed or replaced."""
        return not entry.expired and self._entries.get(entry.id) is entry

    def lease_time(self) -> int:
        """The time with which to compare leases (Unix ms).

        It stands still while this replica cannot read the renewals at others, so that no lease seems to have ended.
        """
        now = self._clock()
        return now if self.renewals_known_at is None else min(now, self.renewals_known_at)

    def live(self) -> list[ListenerEntry]:
        """The listeners whose lease is valid, as far as is known here."""
        now = self.lease_time()
        return [entry for entry in self._entries.values() if entry.is_live(now)]

    def applying(self, *, managers: bool = False) -> list[ListenerEntry]:
        """The live listeners, all or the managers, that apply blocks: the others do not count."""
        return [entry for entry in (self.live_managers() if managers else self.live()) if entry.applies]

    @property
    def any_minimum(self) -> bool:
        """Whether any listener, live or not, has a minimum number of usable nodes."""
        return bool(self._with_minimum)

    def silent_on(self) -> Callable[[str], bool]:
        """A function that tells whether any job may run tasks on a node that it does not report; for many nodes.

        A job that has lapsed may. What a manager reports tells nothing about nodes of other clusters.
        """
        now = self.lease_time()
        jobs = (entry for entry in self._entries.values() if entry.listener.role is ListenerRole.JOB_MASTER)
        reporting = [entry.is_live(now) and entry.reports_task_managers for entry in jobs]
        silent, with_managers = any_silent(reporting), any_silent(reporting, managers_report=True)
        managers = [entry for entry in self.live_managers() if entry.reports_task_managers]

        def is_silent(node_id: str) -> bool:
            here = silent and any(not entry.says_not_here(node_id) for entry in managers)
            return with_managers if here else silent

        return is_silent

    def live_managers(self) -> list[ListenerEntry]:
        now = self.lease_time()
        return [entry for entry in self._resource_managers.values() if entry.is_live(now)]

    def cluster_of(self, entry: ListenerEntry) -> str | None:
        """The cluster as it registered; else, of a job, that of the nodes where it runs. None if unknown."""
        if entry.listener.cluster is not None or entry.listener.role is ListenerRole.RESOURCE_MANAGER:
            return entry.listener.cluster
        nodes = islice((entry.report.task_managers or {}).values(), _NODES_FOR_CLUSTER)
        found = {self.inventory.labels_of(node).get(CLUSTER_LABEL) for node in nodes} - {None}
        return found.pop() if len(found) == 1 else None

    def is_nowhere(self, node_id: str) -> bool:
        """Whether no cluster has the node: every manager says so, and nobody else knows it either."""
        managers = self.live_managers()
        nowhere = bool(managers) and all(entry.says_not_here(node_id) for entry in managers)
        return nowhere and not self.inventory.known_as(node_id)

    def tasks_on(self, node_id: str, *, silent: bool) -> TaskCount:
        """The tasks on a node, under any name of the machine. `silent` is whether there may be others."""
        reported = self._view.task_managers.with_listeners_on(node_id)
        return TaskCount.of((self.running_tasks(*each) for each in reported), silent=silent)

    def running_tasks(self, task_manager: str, listener: str) -> int | None:
        """The tasks of a TaskManager as this listener last reported them; None if it does not."""
        entry = self._entries.get(listener)
        return None if entry is None else entry.running_tasks.get(task_manager)

    def any_pending(self, revision: int, node_ids: Collection[str]) -> bool:
        """Whether any live listener has neither applied nor refused the change of these nodes at `revision`.

        Of hundreds of requests that wait, all ask this at each acknowledgement: most of them for a number.
        """
        confirmed = self._standing().confirmed
        if confirmed and confirmed[0] < revision:
            return True
        return any(not _is_settled(entry, revision, node_ids) for entry in self.applying())

    def is_applied(self, revision: int, node_ids: Collection[str], by: AppliedBy) -> bool:
        """Whether those that are waited for have applied the change, or cannot any more, as too many refuse it.

        Hundreds of requests may wait, as for any_pending: most of them are answered by numbers.
        """
        if by == ALL_LISTENERS:
            return not self.any_pending(revision, node_ids)
        if self._standing(managers=by.managers).is_open(revision, by):
            return False
        progress = self.progress(revision, node_ids, by)
        still_possible = by.is_met(progress.applied + len(progress.pending), progress.total)
        return not still_possible or by.is_met(progress.applied, progress.total)

    def _standing(self, *, managers: bool = False) -> _Standing:
        if not self._standings:
            asyncio.get_running_loop().call_soon(self._standings.clear)
        if managers not in self._standings:
            self._standings[managers] = _Standing.of(self.applying(managers=managers))
        return self._standings[managers]

    def progress(self, revision: int, node_ids: Collection[str], by: AppliedBy = ALL_LISTENERS) -> ChangeProgress:
        """Which live listeners, of those that `by` counts, have applied the change of these nodes at `revision`."""
        refused, pending, not_here, total = list[str](), list[str](), list[str](), 0
        for entry in sorted(self.applying(managers=by.managers), key=lambda it: it.id):
            settled = _is_settled(entry, revision, node_ids)
            states = {entry.state_of(revision, node_id) for node_id in node_ids} if settled else set()
            if states == {BlockState.NOT_HERE}:
                not_here.append(entry.id)
                continue
            total += 1
            if not settled:
                pending.append(entry.id)
            elif BlockState.REFUSED in states:
                refused.append(entry.id)
        counted = self.live_managers() if by.managers else self.live()
        observing = sorted(entry.id for entry in counted if not entry.applies)
        return ChangeProgress(total=total, refused=refused, pending=pending, not_here=not_here, observing=observing)

    def unknown_progress(self, by: AppliedBy = ALL_LISTENERS) -> ChangeProgress:
        """If it is unknown which registrations are current: none of the live listeners is known to have applied it."""
        live = sorted(entry.id for entry in self.applying(managers=by.managers))
        return ChangeProgress(total=len(live), refused=[], pending=live, not_here=[])

    def resource_managers_applied(self, revision: int) -> bool:
        """Whether every live ResourceManager that counts has acknowledged `revision`, even if it refuses a block."""
        return all(entry.has_acked(revision) for entry in self.applying(managers=True))

    def add(self, entry: ListenerEntry) -> None:
        """Add a registration; it replaces the listener's earlier one."""
        self.remove(entry.id)
        self._entries[entry.id] = entry
        entry.aliases = self.inventory.aliases
        self.index(entry)
        self._signal()

    def index(self, entry: ListenerEntry) -> None:
        """Update the indexes: the listener's role, minimum or principal may have changed."""
        self._confirmed_nodes.add_listener(entry.id, entry.listener.principal)
        self._count_nodes(entry)
        self._quota.add(entry.id, entry.listener.principal)
        self._resource_managers.pop(entry.id, None)
        self._with_minimum.discard(entry.id)
        if entry.listener.min_nodes:
            self._with_minimum.add(entry.id)
        if entry.listener.role is ListenerRole.RESOURCE_MANAGER:
            self._resource_managers[entry.id] = entry
            # Only JobMasters may give evidence.
            self._evidence.remove_application(entry.id)
        if self.inventory_updater.remove_source(_source_with_other_role(entry)):
            self._update_inventory(entry, {"nodes", "task_managers"})
        elif entry.report.nodes is not None and entry.indexed_cluster != entry.listener.cluster:
            self._update_inventory(entry, {"nodes"})
        entry.indexed_cluster = entry.listener.cluster

    def remove(self, listener_id: str) -> None:
        if (entry := self._entries.pop(listener_id, None)) is not None:
            self._resource_managers.pop(listener_id, None)
            self._with_minimum.discard(listener_id)
            self.expire(entry)
            self.last_reports.discard(listener_id)
            self._quota.remove(listener_id)

    def expire(self, entry: ListenerEntry) -> None:
        """The lease has expired: drop the TaskManagers and the evidence that the listener reported."""
        entry.expired = True
        self.last_reports.record(entry.id, entry.report)
        reported_applications = entry.report.applications is not None
        self._drop_report(entry)
        if reported_applications:
            # That nobody tells any more which jobs run there has to be shown.
            entry.report = Report(applications={})
        self._view.task_managers_moved(self._view.task_managers.remove_listener(entry.id))
        self._evidence.remove_application(entry.id)
        self._confirmed_nodes.remove_listener(entry.id)
        self.inventory_updater.remove_source(source_of(entry))
        self._signal()

    def _drop_report(self, entry: ListenerEntry) -> None:
        """Keep nothing that only counts while the listener is live."""
        self._confirmed_nodes.set_trusted(entry.id, ())
        entry.report, entry.nodes, entry.task_manager_nodes, entry.believed_nodes = EMPTY_REPORT, None, None, None
        entry.has_unplaced_tasks = False
        self._quota.record(entry.id, 0)

    def check_size(self, entry: ListenerEntry, report: Report) -> None:
        """Raises ReportsTooLargeError if the principal of the listener reports more than is kept."""
        if self._quota.applies_to(entry.id):
            self._quota.check(entry.id, self._size_with(entry, report))

    def _record_size(self, entry: ListenerEntry) -> None:
        if self._quota.applies_to(entry.id):
            self._quota.record(entry.id, self.counted_size(entry))

    def counted_size(self, entry: ListenerEntry) -> int:
        """The bytes that count against the limit of its principal."""
        return self._size_with(entry, EMPTY_REPORT)

    def _size_with(self, entry: ListenerEntry, report: Report) -> int:
        """The bytes that are kept of a listener after this report."""
        findings = {piece.node: piece.finding for piece in self._evidence.of_application(entry.id)}
        return size_of(report.over(entry.report), {**findings, **(report.evidence or {})})

    def renew(self, entry: ListenerEntry, listener: Listener) -> None:
        """A heartbeat of the registration has arrived, here or at another replica."""
        before, entry.listener = entry.listener, listener
        if listener.acked is not None and listener.acked != before.acked:
            entry.acks.append((listener.acked, self._clock()))
            self._signal()
        if listener.confirmed and not before.confirmed:
            self._signal()

    def apply_report(self, entry: ListenerEntry, report: Report, at: int) -> set[str]:
        """Apply a report of `at` (Unix ms); the parts that other replicas must know."""
        # Evidence is kept, limited and counted in its own store.
        kept = replace(report, evidence=None)
        changed = kept.changed_from(entry.report)
        parts = part_names(changed)
        before, entry.report = entry.report, kept.over(entry.report)
        if changed & {"refused", "pending", "not_here", "mode"}:
            entry.note_in_force(before, at)
            self._signal()
        if changed & {"task_managers", "running_tasks"}:
            placed = entry.report.task_managers or {}
            entry.has_unplaced_tasks = any(count and it not in placed for it, count in entry.running_tasks.items())
        if changed & {"task_managers", "nodes"}:
            self._confirmed_nodes.set_nodes(entry.id, entry.report.named_nodes())
            self._count_nodes(entry)
            self._update_inventory(entry, changed)
        if report.task_managers is not None:
            moved = self._view.task_managers.set_for_listener(
                entry.id, entry.listener.principal, report.task_managers, at
            )
            self._view.task_managers_moved(moved)
            # Also without a change: it has them again after another listener had claimed them.
            parts |= {TASK_MANAGERS} if moved else set()
        if report.nodes is not None:
            nodes = frozenset(map(normalize_name, report.node_ids()))
            entry.nodes = entry.nodes if entry.nodes == nodes else nodes
        if report.evidence is not None:
            self._evidence.record(entry.id, report.evidence, at)
            # Also without a change: evidence that is reported again is valid for longer.
            parts |= {EVIDENCE} if report.evidence else set()
        self._record_size(entry)
        return parts

    def _update_inventory(self, entry: ListenerEntry, changed: Collection[str]) -> None:
        source, report = source_of(entry), entry.report
        if "nodes" in changed:
            cluster = entry.listener.cluster if source.kind is SourceKind.MANAGER else None
            self.inventory_updater.set_nodes(source, in_cluster(report.nodes or (), cluster))
        if "task_managers" in changed:
            self.inventory_updater.set_running(source, (report.task_managers or {}).values())

    def _machines_changed(self, names: Collection[str]) -> None:
        """These names may mean other machines now, on which other TaskManagers run; or all that is known is applied."""
        self._view.table.names_changed(names)
        if names:
            self._view.task_managers_moved(names)
            self._confirmed_nodes.machines_changed(names)
            self._evidence.machines_changed()

    def _count_nodes(self, entry: ListenerEntry) -> None:
        """The nodes that a manager reports count for limits; those of a job only if another principal names them."""
        trusted = not self._confirmed_nodes.authenticated or entry.listener.role is ListenerRole.RESOURCE_MANAGER
        self._confirmed_nodes.set_trusted(entry.id, entry.report.node_ids() if trusted else ())

    def export_part(self, entry: ListenerEntry, part: str) -> str:
        """A part of the listener's report, as text for other replicas.

        Evidence is exported with the times at which it was first and last reported; a replica that missed earlier
        exports would otherwise take it for new.
        """
        if part == ERROR:
            return json.dumps(entry.error)
        if part == EVIDENCE:
            return dump_evidence(self._evidence.of_application(entry.id))
        return dump_part(entry.report, part)

    def import_part(self, entry: ListenerEntry, part: str, text: str, at: int) -> None:
        """Apply what `export_part` returned, usually on another replica. Raises InvalidError if it cannot be read."""
        if part == ERROR:
            entry.error = json.loads(text)
        elif part == EVIDENCE:
            # A manager may have reported it earlier, when it was a JobMaster: only those may give evidence.
            if entry.listener.role is ListenerRole.JOB_MASTER:
                self._evidence.restore(entry.id, load_evidence(entry.id, text))
                self._record_size(entry)
        else:
            self.apply_report(entry, load_part(part, text), at)

    def reset(self) -> None:
        """The list was reloaded: earlier revisions mean nothing, and every listener gets the whole list."""
        for entry in self._entries.values():
            entry.listener = replace(entry.listener, acked=None)
            entry.acks.clear()
        self._signal()

    def _signal(self) -> None:
        self._standings.clear()
        # Once for all that happens in one turn of the event loop.
        if not self._signal_scheduled:
            self._signal_scheduled = True
            asyncio.get_running_loop().call_soon(self._signal_now)

    def _signal_now(self) -> None:
        self._signal_scheduled = False
        self.acks.notify_all()


def _not_in_force(report: Report) -> set[str]:
    return {*(report.refused or ()), *(report.pending or ()), *(report.not_here or ())}


def _is_settled(entry: ListenerEntry, revision: int, node_ids: Collection[str]) -> bool:
    """Whether it has applied or refused the change of all these nodes at `revision`."""
    if not entry.has_confirmed(revision):
        return False
    return not entry.pending or all(entry.pending_reason_of(node_id) is None for node_id in node_ids)


def source_of(entry: ListenerEntry) -> NodeSource:
    return NodeSource(_SOURCE_KINDS[entry.listener.role], entry.id)


def _source_with_other_role(entry: ListenerEntry) -> NodeSource:
    """The source that it was, if it has changed its role."""
    other = next(role for role in ListenerRole if role is not entry.listener.role)
    return NodeSource(_SOURCE_KINDS[other], entry.id)


class UsableNodes:
    """The nodes that registered listeners may use, and how many of them are not blocked. Belongs to the event loop.

    Reported nodes are in memory: after a restart heartbeats report them again.
    """

    def __init__(self, directory: ListenerDirectory, view: ListView, confirmed_nodes: ConfirmedNodes) -> None:
        self._directory = directory
        self._view = view
        self._confirmed_nodes = confirmed_nodes

    def nodes_of(self, entry: ListenerEntry) -> frozenset[str] | None:
        """The nodes that it reported and is believed, else those of its TaskManagers; None if it reported neither.

        One name for each machine.
        """
        runs_on = self._runs_on(entry)
        if entry.nodes is None and not runs_on:
            return None
        state = (entry.nodes, runs_on, self._confirmed_nodes.version)
        if entry.believed_nodes is None or entry.believed_nodes[0] != state:
            entry.believed_nodes = state, self._confirmed_nodes.one_name_each(self._believed(entry, runs_on))
        return entry.believed_nodes[1]

    def _believed(self, entry: ListenerEntry, runs_on: frozenset[str]) -> frozenset[str]:
        if entry.nodes is None:
            return runs_on
        is_job = entry.listener.role is ListenerRole.JOB_MASTER
        return nodes_in_use(entry.nodes, runs_on) if is_job and self._confirmed_nodes.authenticated else entry.nodes

    def counter(self) -> Callable[[ListenerEntry], int | None]:
        """A function that returns the number of nodes of a listener that are not blocked now; None if it has none."""

        @cache
        def blocked() -> set[str]:
            return blocked_names(self.names, Draft(self._view.tracker, self._view.clock()))

        def count(entry: ListenerEntry) -> int | None:
            nodes = self.nodes_of(entry)
            return None if nodes is None else count_usable(nodes, blocked())

        return count

    @property
    def any_minimum(self) -> bool:
        """Whether any listener, live or not, has a minimum; a cheap check."""
        return self._directory.any_minimum

    @property
    def names(self) -> MachineSet:
        return self._confirmed_nodes.names

    def minimums(self, changes: Iterable[Change]) -> list[ListenerNodes]:
        """The live listeners with a minimum that name a machine which these changes block or free, by id."""
        touched = matching_names(self.names, changes)
        entries = [
            entry
            for entry in self._directory.live()
            if entry.listener.min_nodes and not touched.isdisjoint(self._confirmed_nodes.named_by(entry.id))
        ]
        return [
            ListenerNodes(id=entry.id, nodes=nodes, minimum=entry.listener.min_nodes)
            for entry in sorted(entries, key=lambda entry: entry.id)
            if (nodes := self.nodes_of(entry)) is not None
        ]

    @property
    def known(self) -> ReportedMachines:
        """The nodes that count for shares."""
        return self._confirmed_nodes.known

    def _runs_on(self, entry: ListenerEntry) -> frozenset[str]:
        """The nodes of its TaskManagers, in normal form."""
        nodes = self._view.task_managers.nodes_of(entry.id)
        if entry.task_manager_nodes is None or entry.task_manager_nodes[0] != nodes:
            entry.task_manager_nodes = nodes, frozenset(map(normalize_name, nodes))
        return entry.task_manager_nodes[1]
