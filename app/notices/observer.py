"""ListenerObserver: what listeners report about blocked nodes: evacuated, refused, drift."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple

from app.engine.list_view import ListView
from app.listeners.drift import DriftMonitor
from app.listeners.state import ListenerDirectory, ListenerEntry
from blocklist.model.changes import Change, ChangeType, Source
from blocklist.model.draft import find_blocked
from blocklist.model.listener import Drift, DriftReport
from blocklist.model.node import BlockState, block_state

# Grouping: events with the same cause and author become one notice, and notices per minute are limited. Pure.
#
# Memory is bounded, whatever happens: a group keeps a few names and a number, and there are few groups.

# Events: what notices are about. Pure values.


class NoticeKind(StrEnum):
    """Blocked; evacuated: nothing runs there any more; freed: unblocked or expired; refused by a listener; drift."""

    BLOCKED = "blocked"
    EVACUATED = "evacuated"
    FREED = "freed"
    REFUSED = "refused"
    DRIFT = "drift"


class Subject(NamedTuple):
    """What the events of one notice have in common.

    `what` says more about the kind, `cause` is the cause of the block or what differs, `by` is who: the author of the
    change, or the listener that refuses or reports.
    """

    kind: NoticeKind
    what: str
    cause: str
    by: str


class Event(NamedTuple):
    """Something happened to a node, at a time (Unix milliseconds). `reason` is the reason of a refusal, or of drift."""

    subject: Subject
    node: str
    at: int
    reason: str = ""


WINDOW_SECONDS: Final = 5.0
"""How long a group is open, from its first event."""
MAX_PER_MINUTE: Final = 10
"""Maximum number of notices in any 60 seconds: more than that nobody reads."""
MAX_NAMED: Final = 20
"""Maximum number of nodes that a notice names."""
MAX_REASONS: Final = 3
"""Maximum number of reasons in a notice."""
MAX_GROUPS_OF_KIND: Final = 5
"""Maximum number of groups of one kind at a time; further events of the kind share one more group."""
MINUTE: Final = 60.0
VARIOUS: Final = "various"
"""The cause, and the author, of a group whose events differ in these."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """One notice: the first nodes, the number of all, and the clusters of all as far as they are known.

    Without a subject it only says how many were left out.
    """

    subject: Subject | None = None
    at: int = 0
    nodes: Sequence[str] = ()
    count: int = 0
    clusters: Sequence[str] = ()
    reasons: Sequence[str] = ()
    left_out: int = 0

    def with_left_out(self, more: int) -> Notice:
        """The same notice, which says that this number of notices more was left out before it."""
        return replace(self, left_out=self.left_out + more)


@dataclass(kw_only=True, slots=True)
class _Group:
    subject: Subject
    opened_at: float
    at: int
    nodes: dict[str, None] = field(default_factory=dict)
    clusters: set[str] = field(default_factory=set)
    reasons: dict[str, None] = field(default_factory=dict)

    def add(self, event: Event, cluster: str | None) -> None:
        self.nodes[event.node] = None
        if cluster is not None and len(self.clusters) < MAX_NAMED:
            self.clusters.add(cluster)
        if event.reason and len(self.reasons) < MAX_REASONS:
            self.reasons[event.reason] = None

    def notice(self) -> Notice:
        named = [*islice(self.nodes, MAX_NAMED)]
        return Notice(
            subject=self.subject,
            at=self.at,
            nodes=named,
            count=len(self.nodes),
            clusters=sorted(self.clusters),
            reasons=[*self.reasons],
        )


class NoticeGroups:
    """Events come in, notices come out. `now` is in seconds and never goes back; `cluster_of` tells that of a node.

    What is beyond MAX_PER_MINUTE is left out, counted, and said in the next notice.
    """

    def __init__(self, cluster_of: Callable[[str], str | None] = lambda _: None) -> None:
        self._cluster_of = cluster_of
        self._groups: dict[Subject, _Group] = {}
        self._of_kind: Counter[NoticeKind] = Counter()
        self._sent_at: deque[float] = deque(maxlen=MAX_PER_MINUTE)
        self._left_out = 0

    def add(self, event: Event, now: float) -> None:
        group = self._groups.get(event.subject) or self._open(event, now)
        group.add(event, self._cluster_of(event.node))

    def due(self, now: float, *, all_groups: bool = False) -> tuple[list[Notice], int]:
        """The notices to send now, and how many were left out; `all_groups`: also of groups that are still open."""
        notices: list[Notice] = []
        left_out = 0
        for group in self._close(now, all_groups=all_groups):
            if self._take(now):
                notices.append(self._say_left_out(group.notice()))
            else:
                self._left_out += 1
                left_out += 1
        if self._left_out and not self._groups and self._take(now):
            notices.append(self._say_left_out(Notice()))
        return notices, left_out

    def _open(self, event: Event, now: float) -> _Group:
        subject, kind = event.subject, event.subject.kind
        if self._of_kind[kind] >= MAX_GROUPS_OF_KIND:
            subject = Subject(kind, "", VARIOUS, VARIOUS)
        if (group := self._groups.get(subject)) is None:
            group = self._groups[subject] = _Group(subject=subject, opened_at=now, at=event.at)
            self._of_kind[kind] += 1
        return group

    def _close(self, now: float, *, all_groups: bool) -> Iterable[_Group]:
        closed = [group for group in self._groups.values() if all_groups or now - group.opened_at >= WINDOW_SECONDS]
        for group in closed:
            del self._groups[group.subject]
            self._of_kind[group.subject.kind] -= 1
        return closed

    def _take(self, now: float) -> bool:
        """Whether one more notice may be sent now; if so, it counts."""
        if len(self._sent_at) == MAX_PER_MINUTE and now - self._sent_at[0] < MINUTE:
            return False
        self._sent_at.append(now)
        return True

    def _say_left_out(self, notice: Notice) -> Notice:
        left_out, self._left_out = self._left_out, 0
        return notice.with_left_out(left_out)


# TrackedNodes: the nodes that were blocked since the start, and what was noticed about each.

_EVACUATES: Final = "with evacuation"
_CANARY: Final = "with a canary"


@dataclass(kw_only=True, slots=True)
class TrackedNode:
    """A blocked node, the revision of its last change, its author, and what was noticed since it was blocked."""

    revision: int
    cause: str
    by: str
    evacuates: bool
    canary: bool = False
    is_evacuated: bool = False
    refused_by: set[str] = field(default_factory=set)


class TrackedNodes:
    """Follows all changes; has an entry for each node that was blocked since the start, and no others."""

    def __init__(self) -> None:
        self._nodes: dict[str, TrackedNode] = {}

    def get(self, node_id: str) -> TrackedNode | None:
        """The node, if it was blocked since the start, and still is."""
        return self._nodes.get(node_id)

    def evacuating(self) -> list[tuple[str, TrackedNode]]:
        """The nodes on which something may still run."""
        return [(name, node) for name, node in self._nodes.items() if node.evacuates and not node.is_evacuated]

    def apply(self, changes: Iterable[Change]) -> list[Event]:
        """These changes were committed; what a notice is about."""
        return [event for change in changes if (event := self._apply(change)) is not None]

    def clear(self) -> None:
        """The list was read again: what changed meanwhile is unknown."""
        self._nodes.clear()

    def _apply(self, change: Change) -> Event | None:
        node, by = change.node, _author(change)
        if change.type.frees:
            self._nodes.pop(node.id, None)
            return _event(NoticeKind.FREED, change.type.value, change, by)
        evacuates = node.evacuates
        before = self._nodes.get(node.id)
        if change.type is ChangeType.BLOCKED or before is None:
            self._nodes[node.id] = TrackedNode(
                revision=change.revision, cause=node.cause, by=by, evacuates=evacuates, canary=node.canary,
                # A merge into an older block: whether it was evacuated is not known.
                is_evacuated=change.type is not ChangeType.BLOCKED,
            )  # fmt: skip
            notable = change.type is ChangeType.BLOCKED
        else:
            # Most merges only extend a block, such as those of an alert that goes on firing: that is no news.
            notable = (evacuates and not before.evacuates) or (before.canary and not node.canary)
            before.revision, before.cause = change.revision, node.cause
            before.evacuates, before.canary = evacuates, node.canary
        what = _EVACUATES if evacuates else _CANARY if node.canary else ""
        return _event(NoticeKind.BLOCKED, what, change, by) if notable else None


def _author(change: Change) -> str:
    """Who made the change; what made it, if it was not a person."""
    automatic = str(change.source) if change.source in {Source.EVIDENCE, Source.ALERTMANAGER} else ""
    return change.created_by or automatic


def _event(kind: NoticeKind, what: str, change: Change, by: str) -> Event:
    return Event(Subject(kind, what, change.node.cause, by), change.node.id, change.at)


REPEAT_MS: Final = 10 * 60_000
"""Drift that ends and begins again within this time is not news (milliseconds)."""
_NODES_PER_TURN: Final = 500


class ListenerObserver:
    """Each event is returned once. Only about nodes that were blocked since the start, and drift that began since then.

    Belongs to the event loop, and lets other tasks run in between, as there may be many nodes.
    """

    def __init__(
        self,
        nodes: TrackedNodes,
        directory: ListenerDirectory,
        view: ListView,
        drift: DriftMonitor,
        clock: Callable[[], int],
    ) -> None:
        self._nodes = nodes
        self._directory = directory
        self._view = view
        self._drift = drift
        self._clock = clock
        self._started_at = clock()
        self._last_report: DriftReport | None = None
        self._drift_seen_at: dict[tuple[str, str, str], int] = {}

    async def observe(self) -> list[Event]:
        """What has happened since the last observation."""
        live = self._directory.applying()
        return [*self._refused(live), *await self._evacuated(live), *self._new_drift()]

    def _refused(self, live: list[ListenerEntry]) -> list[Event]:
        return [event for entry in live for name in entry.refused for event in self._refused_by(entry, name)]

    def _refused_by(self, entry: ListenerEntry, name: str) -> Iterator[Event]:
        for blocked in find_blocked(self._view.tracker, name, self._clock()):
            node = self._nodes.get(blocked.id)
            # Before it has acknowledged the change, it can only have refused an earlier one.
            if node is None or entry.id in node.refused_by or not entry.has_confirmed(node.revision):
                continue
            node.refused_by.add(entry.id)
            subject = Subject(NoticeKind.REFUSED, "", node.cause, entry.id)
            yield Event(subject, blocked.id, self._clock(), entry.refused[name])

    async def _evacuated(self, live: list[ListenerEntry]) -> list[Event]:
        if not live:
            return []
        # What all nodes share, once, as there may be many.
        silent_on = self._directory.silent_on()
        acked = min(entry.confirmed_revision for entry in live)
        reporting = [entry for entry in live if entry.refused or entry.pending]
        found: list[Event] = []
        for number, (name, node) in enumerate(self._nodes.evacuating()):
            if number % _NODES_PER_TURN == 0:
                await asyncio.sleep(0)
            state = block_state(
                self._directory.tasks_on(name, silent=silent_on(name)),
                refused=any(entry.refusal_of(name) is not None for entry in reporting),
                applied=acked >= node.revision and all(entry.pending_reason_of(name) is None for entry in reporting),
                not_here=self._directory.is_nowhere(name),
            )
            if state is BlockState.EMPTY:
                found += self._mark_evacuated(name, node)
        return found

    def _mark_evacuated(self, name: str, node: TrackedNode) -> list[Event]:
        """The event, unless the node was freed or blocked again in between."""
        if self._nodes.get(name) is not node:
            return []
        node.is_evacuated = True
        return [Event(Subject(NoticeKind.EVACUATED, "", node.cause, node.by), name, self._clock())]

    def _new_drift(self) -> list[Event]:
        latest = self._drift.latest
        if latest is None or latest is self._last_report:
            return []
        self._last_report = latest
        now = latest.observed_at
        seen = {key: at for key, at in self._drift_seen_at.items() if now - at < REPEAT_MS}
        new = [each for each in latest.drift if _key(each) not in seen and self._began_since_start(each)]
        self._drift_seen_at = seen | dict.fromkeys(map(_key, latest.drift), now)
        return [_drift_event(each) for each in new]

    def _began_since_start(self, drift: Drift) -> bool:
        """After a restart, listeners report again what they had reported before."""
        entry = self._directory.get(drift.listener)
        is_new = entry is not None and entry.listener.registered_at >= self._started_at
        return drift.begin_observed or is_new


def _key(drift: Drift) -> tuple[str, str, str]:
    return drift.node, drift.kind.value, drift.listener


def _drift_event(drift: Drift) -> Event:
    subject = Subject(NoticeKind.DRIFT, "", drift.kind.value, drift.listener)
    return Event(subject, drift.node, drift.since, drift.reason)
