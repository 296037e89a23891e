"""ListView: the current list in memory, rendered once for each state. TableView: the same for drivers. TaskManagers."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Final

from app.engine.cached_list import CachedList
from app.store.queries import LastChange, PastList
from blocklist.model.changes import Change, Snapshot
from blocklist.model.claims import Claims, live_claims
from blocklist.model.draft import BlocklistTracker, claims_on, find_blocked, find_one_blocked
from blocklist.model.driver_table import DriverTable
from blocklist.model.inventory import Inventory, selects
from blocklist.model.names import Aliases, Multimap, NameSet, first_label, no_aliases
from blocklist.model.node import PERMANENT, BlockedNode
from blocklist.model.selector import Selector
from blocklist.wire.body import Json, dump_json
from blocklist.wire.nodes import dump_list_entry, dump_node, node_body

# TableView: the current table for drivers, rendered once for each state of the list and of the known names.

MAX_HELD_BACK_MS: Final = 2000
"""Maximum time for which the revision waits for names that are being applied: no reports may stop acknowledgements."""
_ETAG: Final = re.compile(rb'"([0-9a-f]{8})-([0-9]{1,16})-[0-9a-f]{16}(?:-gzip)?"')


class TableView:
    """The tracker's nodes as a table. Nothing is kept before the first read. Belongs to the event loop.

    `names_pending` is true while a long report of names is being applied. A table that may lack names has the revision
    of the last one that did not, so that a driver does not acknowledge what it cannot have in force yet.

    A block is left out from its end on. That notifies nobody: drivers know the end of each block.
    """

    def __init__(
        self,
        tracker: BlocklistTracker,
        clock: Callable[[], int],
        identifiers: Aliases = no_aliases,
        names_pending: Callable[[], bool] = lambda: False,
    ) -> None:
        self.changed = Broadcast()
        self.fast_reads = 0
        self._tracker = tracker
        self._clock = clock
        self._identifiers = identifiers
        self._names_pending = names_pending
        self._table: DriverTable | None = None
        self._cached: CachedList | None = None
        self._ended: set[str] = set()
        self._complete = (tracker.history, 0)
        self._outdated = False
        self._pending_since: int | None = None

    def apply(self, node_ids: Iterable[str]) -> None:
        if self._table is not None:
            for node_id in node_ids:
                self._update(self._table, node_id)
        self._invalidate()

    def reset(self) -> None:
        self._table = None
        self._ended.clear()
        self._invalidate()

    def names_changed(self, names: Collection[str]) -> None:
        """These names may mean other machines now; `names_pending` may have changed."""
        if self._table is None:
            return
        awaiting = self._awaits_names(self._clock())
        self._outdated |= self._table.names_changed(names)
        if self._outdated and not awaiting:
            self._invalidate()

    def current(self) -> CachedList:
        """The current table, rendered now unless the cached one is valid."""
        if self._cached is None or self._clock() >= self._cached.valid_until:
            self._cached = self._render()
        return self._cached

    def revision_ahead(self, if_none_match: bytes) -> int | None:
        """The revision of an ETag that another replica sent, if this one does not have it yet."""
        history = self._tracker.history.encode()
        revisions = (int(revision) for own, revision in _ETAG.findall(if_none_match) if own == history)
        newest = max(revisions, default=0)
        return newest if newest > self._tracker.revision else None

    def _invalidate(self) -> None:
        self._cached = None
        self._outdated = False
        self.changed.notify_all()

    def _render(self) -> CachedList:
        now = self._clock()
        table, revision, history = self._current_table(now), self._revision(now), self._tracker.history
        body = table.text(revision).encode()
        tag = f"{history}-{revision}-{hashlib.sha256(body).hexdigest()[:16]}"
        return CachedList(
            body,
            revision=revision,
            history=history,
            valid_until=self._next_end(now),
            tag=tag.encode(),
            media_type=b"text/plain; charset=utf-8",
        )

    def _current_table(self, now: int) -> DriverTable:
        if self._table is None:
            self._table = DriverTable(self._tracker, self._tracker.aliases, self._identifiers)
        ended = {node.id for node in self._tracker.ended(now) if node.ended(now)}
        # Both ways, because the clock may be set back.
        for node_id in ended - self._ended:
            self._table.discard(node_id)
        for node_id in self._ended - ended:
            self._update(self._table, node_id)
        self._ended = ended
        return self._table

    def _update(self, table: DriverTable, node_id: str) -> None:
        self._ended.discard(node_id)
        if (node := self._tracker.get(node_id)) is None:
            table.discard(node_id)
        else:
            table.set(node)

    def _revision(self, now: int) -> int:
        """The revision whose nodes the table has with all their names."""
        tracker = self._tracker
        self._outdated = self._awaits_names(now)
        if not self._outdated:
            self._complete = (tracker.history, tracker.revision)
        history, revision = self._complete
        return revision if history == tracker.history else 0

    def _awaits_names(self, now: int) -> bool:
        """Whether names are being applied, and drivers are not notified until they are."""
        if not self._names_pending():
            self._pending_since = None
            return False
        if self._pending_since is None:
            self._pending_since = now
        return now - self._pending_since < MAX_HELD_BACK_MS

    def _next_end(self, now: int) -> int:
        """When the rendered table ceases to be right by itself, in Unix ms."""
        until = self._tracker.next_expiry()
        if until > now:
            return until
        return min((node.end for node in self._tracker if not node.ended(now)), default=PERMANENT)


class ListView:
    """The tracker's list as readers see it. The handler advances the tracker. Belongs to the event loop.

    Each node is rendered once per change, and the whole list at the first read after a change. A block is left out from
    its end on, even before its `expired` change is committed, so a rendered list is valid until the earliest end in it.
    `age()` is how long the list may have been out of date, in seconds: since an outage of the database began, until
    everything was read again. None if it is up to date. `table` is the same list for drivers. `version` grows with each
    change of what the list shows.
    """

    def __init__(
        self,
        tracker: BlocklistTracker,
        clock: Callable[[], int],
        age: Callable[[], int | None],
        table: TableView | None = None,
    ) -> None:
        self.tracker = tracker
        self.table = table or TableView(tracker, clock)
        self.task_managers = TaskManagers(tracker.aliases)
        self.clock = clock
        self.age = age
        self.changed = Broadcast()
        self.closed = False
        self.version = 0
        self.fast_reads = 0
        self.route_reads = 0
        self._cached: CachedList | None = None
        self._fragments: dict[str, bytes] = {}
        self._shown_hosts = ShownHosts()
        self._stale = {node.id for node in tracker}

    def apply(self, changes: Sequence[Change]) -> None:
        changed = {change.node.id for change in changes}
        self._stale |= changed
        self._invalidate()
        self.table.apply(changed)

    def reset(self) -> None:
        self._stale = {*self._fragments, *(node.id for node in self.tracker)}
        self._invalidate()
        self.table.reset()

    def task_managers_moved(self, nodes: Iterable[str]) -> None:
        """The TaskManagers on these nodes have changed, or these names may mean other machines now.

        A name that is ambiguous now no longer leads to the blocks that show its TaskManagers, so these are kept.
        """
        names = set(nodes)
        if len(names) > len(self.tracker):
            # A start brings all names at once: a lookup of each costs more than to render the list again.
            blocked = {node.id for node in self.tracker}
        else:
            blocked = {node_id for name in names for node_id in self.tracker.matching(name)}
        blocked |= self._shown_hosts.shown_by(names)
        if blocked:
            self._stale |= blocked
            self._invalidate()

    def _invalidate(self) -> None:
        self._cached = None
        self.version += 1
        self.changed.notify_all()

    def node_body(self, node: BlockedNode) -> Json:
        """A node as responses show it, with the TaskManagers on it."""
        return node_body(node, self.task_managers.on_node(node.id))

    def node_json(self, node: BlockedNode) -> bytes:
        return dump_node(node, self.task_managers.on_node(node.id))

    def current_list(self) -> CachedList:
        """The current list, rendered now unless the cached one is valid."""
        cached, now = self._cached, self.clock()
        if cached is None or now >= cached.valid_until:
            cached = self._cached = self._render(now)
        return cached

    def get(self, node_id: str) -> BlockedNode | None:
        """The blocked node that this id means; None if it is not blocked. Raises AmbiguousNodeError."""
        return find_one_blocked(self.tracker, node_id, self.clock())

    def find(self, node_id: str) -> list[BlockedNode]:
        """The blocked nodes that this id means: several if it is the short name of several."""
        return find_blocked(self.tracker, node_id, self.clock())

    def snapshot(self) -> tuple[int, Snapshot]:
        """When the whole list ceases to be valid unless it changes before (Unix ms), and the list."""
        nodes = self.tracker.blocked(self.clock())
        snapshot = Snapshot(revision=self.tracker.revision, history=self.tracker.history, nodes=nodes)
        return _earliest_end(nodes), snapshot

    async def wait_for_revision(self, revision: int, seconds: float) -> bool:
        """Wait until the list is at `revision` or later; False after `seconds`, or if the service stops before."""
        await self.changed.wait_for(lambda: self.tracker.revision >= revision or self.closed, seconds)
        return self.tracker.revision >= revision

    @property
    def is_current(self) -> bool:
        """Whether the list is up to date: no outage since it was read, and the service is not stopping."""
        return not self.closed and self.age() is None

    def close(self) -> None:
        """The service stops: wake all waiting tasks."""
        self.closed = True
        self.changed.notify_all()
        self.table.changed.notify_all()

    def fragments(self) -> tuple[int, list[tuple[str, bytes]]]:
        """Like `snapshot`, with pairs of id and JSON of each blocked node, sorted by id."""
        self._refresh()
        visible = self.tracker.blocked(self.clock())
        return _earliest_end(visible), [(node_id, self._fragments[node_id]) for node_id in sorted(visible)]

    def _render(self, now: int) -> CachedList:
        self._refresh()
        visible = self.tracker.blocked(now)
        fragments = self._fragments
        body = _json_object([fragments[node_id] for node_id in sorted(visible)])
        until = self.tracker.next_expiry()
        if until <= now:
            until = _earliest_end(visible)
        return CachedList(body, revision=self.tracker.revision, history=self.tracker.history, valid_until=until)

    def _refresh(self) -> None:
        for node_id in self._stale:
            node = self.tracker.get(node_id)
            hosts = [] if node is None else list(self.task_managers.nodes_matching(node_id))
            self._shown_hosts.record(node_id, hosts)
            if node is None:
                self._fragments.pop(node_id, None)
            else:
                self._fragments[node_id] = dump_list_entry(node, self.task_managers.on_hosts(hosts))
        self._stale.clear()


def _json_object(members: list[bytes]) -> bytes:
    """A JSON object and a newline. Its members are copied only once: copying dominates the time for a long list."""
    if not members:
        return b"{}\n"
    members[0] = b"{" + members[0]
    members[-1] += b"}\n"
    return b",".join(members)


def _earliest_end(nodes: Mapping[str, BlockedNode]) -> int:
    return min((node.end for node in nodes.values()), default=PERMANENT)


# ShownHosts: which blocks show the TaskManagers of which hosts.


class ShownHosts:
    """The blocks by the first label of the hosts whose TaskManagers they show.

    All names that can become the same machine, or no longer, by their form have the same first label.
    """

    def __init__(self) -> None:
        self._labels: dict[str, frozenset[str]] = {}
        self._blocks = Multimap()

    def record(self, node_id: str, hosts: Iterable[str]) -> None:
        before, after = self._labels.pop(node_id, frozenset()), frozenset(map(first_label, hosts))
        if after:
            self._labels[node_id] = after
        self._blocks.move(node_id, before, after)

    def shown_by(self, names: Iterable[str]) -> set[str]:
        """The blocks that show TaskManagers of a host with one of these names."""
        if not self._labels:
            return set()  # As at a start, which brings thousands of names.
        return {node_id for label in map(first_label, names) for node_id in self._blocks[label]}


# TaskManagers: which TaskManagers run on which node, as last reported by their listeners.


class TaskManagers:
    """If two listeners of a principal report one TaskManager, the newer report wins, as in Flink.

    Principals do not take TaskManagers from each other: what both report counts for both. Without authentication
    everybody is the same principal. Belongs to the event loop.
    """

    def __init__(self, aliases: Aliases = no_aliases) -> None:
        self._reported: dict[str, dict[str, str]] = {}
        self._reported_at: dict[str, int] = {}
        self._principals: dict[str, str | None] = {}
        self._owners: dict[str, tuple[str, ...]] = {}
        self._by_node = Multimap()
        self._nodes = NameSet(aliases=aliases)

    def __len__(self) -> int:
        return len(self._owners)

    def set_for_listener(
        self, listener: str, principal: str | None, reported: Mapping[str, str], reported_at: int
    ) -> set[str]:
        """Replace the TaskManagers of a principal's listener, id -> node id, by those reported at this time (Unix ms).

        Returns the nodes that changed.
        """
        self._reported_at[listener] = reported_at
        self._principals[listener] = principal
        previous = self._reported.get(listener, {})
        if reported == previous:
            return set()
        changed = self._remove(listener, [name for name, node in previous.items() if reported.get(name) != node])
        for task_manager, node in reported.items():
            if previous.get(task_manager) != node:
                changed |= self._claim(listener, task_manager, node)
        return changed

    def remove_listener(self, listener: str) -> set[str]:
        """Forget a listener and its TaskManagers; return the nodes that changed."""
        changed = self._remove(listener, list(self._reported.get(listener, ())))
        self._reported.pop(listener, None)
        self._reported_at.pop(listener, None)
        self._principals.pop(listener, None)
        return changed

    @property
    def nodes(self) -> Iterable[str]:
        """The nodes that have TaskManagers, by the names that listeners use."""
        return self._by_node

    def nodes_matching(self, node: str) -> Iterator[str]:
        """Those of them that are this machine."""
        return self._nodes.matching(node)

    def on_node(self, node: str) -> list[str]:
        """Ids of the TaskManagers on a node, whatever name its listeners use, sorted."""
        return self.on_hosts(self._nodes.matching(node))

    def on_hosts(self, names: Iterable[str]) -> list[str]:
        """Ids of the TaskManagers that listeners report under these very names, sorted."""
        return sorted({task_manager for name in names for task_manager in self._by_node[name]})

    def with_listeners_on(self, node: str) -> list[tuple[str, str]]:
        """The TaskManagers on a node, each with the listener that reports it there, sorted."""
        return sorted(
            (task_manager, listener)
            for name in self._nodes.matching(node)
            for task_manager in self._by_node[name]
            for listener in self._owners[task_manager]
            if self._reported[listener][task_manager] == name
        )

    def nodes_of(self, listener: str) -> set[str]:
        return set(self._reported.get(listener, {}).values())

    def reported_by(self, listener: str) -> Mapping[str, str]:
        """The TaskManagers of a listener, id -> node id, without those that a newer report of another one took."""
        return self._reported.get(listener, {})

    def nodes_of_task_manager(self, task_manager: str) -> set[str]:
        """The nodes on which a TaskManager is reported: none if it is unknown, several if principals disagree."""
        return {self._reported[listener][task_manager] for listener in self._owners.get(task_manager, ())}

    def _claim(self, listener: str, task_manager: str, node: str) -> set[str]:
        owners = self._owners.get(task_manager, ())
        principal = self._principals[listener]
        rival = next((owner for owner in owners if self._principals[owner] == principal), None)
        if rival is not None and (self._reported_at[rival], rival) > (self._reported_at[listener], listener):
            return set()  # The rival's report is newer: it went to another replica.
        changed = set() if rival is None else self._remove(rival, [task_manager])
        self._reported.setdefault(listener, {})[task_manager] = node
        self._owners[task_manager] = (*self._owners.get(task_manager, ()), listener)
        self._by_node.add(node, task_manager)
        self._nodes.add(node)
        return changed | {node}

    def _remove(self, listener: str, task_managers: Iterable[str]) -> set[str]:
        nodes = set()
        for task_manager in task_managers:
            node = self._reported[listener].pop(task_manager)
            self._remove_owner(task_manager, listener)
            if node not in self.nodes_of_task_manager(task_manager):
                self._remove_from_node(task_manager, node)
            nodes.add(node)
        return nodes

    def _remove_owner(self, task_manager: str, listener: str) -> None:
        owners = tuple(owner for owner in self._owners[task_manager] if owner != listener)
        if owners:
            self._owners[task_manager] = owners
        else:
            del self._owners[task_manager]

    def _remove_from_node(self, task_manager: str, node: str) -> None:
        self._by_node.discard(node, task_manager)
        if node not in self._by_node:
            self._nodes.discard(node)


# Details of the list: who changed each node last and who claims it, and lists rendered with that.

MAX_SELECTIONS: Final = 32
"""Maximum number of rendered selections that are kept."""
_UNKNOWN = LastChange(None, 0)


class LastChanges:
    """The last change of each blocked node, in memory: one entry for each. Belongs to the event loop."""

    def __init__(self, stored: Mapping[str, LastChange]) -> None:
        self._by_node = dict(stored)

    def apply(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.type.frees:
                self._by_node.pop(change.node.id, None)
            else:
                self._by_node[change.node.id] = LastChange(change.created_by, change.revision)

    def forget(self, changes: Sequence[Change]) -> None:
        """These changes could not be applied: the last changes of their nodes are unknown."""
        for change in changes:
            self._by_node.pop(change.node.id, None)

    def reset(self, stored: Mapping[str, LastChange]) -> None:
        self._by_node = dict(stored)

    def get(self, node_id: str) -> LastChange | None:
        """The last change of a node that is on the list, or has ended without its `expired` change; else None."""
        return self._by_node.get(node_id)

    def revision_of(self, node_id: str, newest: int) -> int:
        """The revision of a blocked node's last change; an unknown one counts as the newest of the list."""
        last_change = self._by_node.get(node_id)
        return newest if last_change is None else last_change.revision

    def created_by(self, node_id: str) -> str | None:
        """The author of a blocked node's last change; None if unknown, or if the node is free."""
        last_change = self._by_node.get(node_id)
        return None if last_change is None else last_change.created_by


class SelectedLists:
    """Selections of the current list, with details or without: each is rendered once, for all who ask for it.

    That holds until the list changes, or what is known of nodes: then thousands of waiting requests ask for it again.
    """

    def __init__(self, view: ListView, inventory: Inventory, last_changes: LastChanges) -> None:
        self._view = view
        self._inventory = inventory
        self._last_changes = last_changes
        self._state = (-1, -1)
        self._lists: dict[tuple[str, bool], CachedList] = {}
        self._parts: dict[bool, tuple[int, list[tuple[str, bytes]]]] = {}

    def get(self, selector: Selector, *, details: bool) -> CachedList:
        """The nodes of the current list that are selected, by their labels now; an empty selector selects all."""
        now, state = self._view.clock(), (self._view.version, self._inventory.version)
        if state != self._state or len(self._lists) >= MAX_SELECTIONS:
            self._state = state
            self._lists.clear()
            self._parts.clear()
        key = (str(selector), details)
        found = self._lists.get(key)
        if found is None or now >= found.valid_until:
            found = self._lists[key] = self._render(selector, now, details=details)
        return found

    def _render(self, selector: Selector, now: int, *, details: bool) -> CachedList:
        parts = self._parts.get(details)
        if parts is None or now >= parts[0]:
            parts = self._parts[details] = self._with_details(now) if details else self._view.fragments()
        valid_until, fragments = parts
        chosen = [part for node_id, part in fragments if not selector or selects(selector, self._inventory, node_id)]
        return _cached_list(chosen, self._view, self._view.tracker.revision, valid_until)

    def _with_details(self, now: int) -> tuple[int, list[tuple[str, bytes]]]:
        until, fragments = self._view.fragments()
        tracker, parts = self._view.tracker, []
        for node_id, part in fragments:
            node = tracker.get(node_id)
            claims = () if node is None else claims_on(tracker, node, now)
            until = min([until, *(claim.block.end for claim in claims)])
            parts.append((node_id, part[:-1] + _details(self._last_changes.get(node_id) or _UNKNOWN, claims)))
        return until, parts


def past_list(past: PastList, view: ListView, *, details: bool) -> CachedList:
    """A past list. Its TaskManagers are empty: they are not stored."""
    parts = []
    for node_id in sorted(past.nodes):
        node = past.nodes[node_id]
        part = dump_list_entry(node, [])
        claims = live_claims(past.claims[node_id], past.at)
        parts.append(part[:-1] + _details(past.last_changes[node_id], claims) if details else part)
    return _cached_list(parts, view, past.revision, PERMANENT)


def _details(last_change: LastChange, claims: Claims) -> bytes:
    created_by, owners = dump_json(last_change.created_by), dump_json([claim.owner for claim in claims])
    return b',"createdBy":%b,"revision":%d,"owners":%b}' % (created_by, last_change.revision, owners)


def _cached_list(parts: list[bytes], view: ListView, revision: int, valid_until: int) -> CachedList:
    body = b"{" + b",".join(parts) + b"}\n"
    return CachedList(body, revision=revision, history=view.tracker.history, valid_until=valid_until)


# Broadcast: tasks wait for the next event of one kind.

TURN_SECONDS: Final = 0.005
WOKEN_PER_TURN: Final = 100
"""Maximum number of tasks that are woken, or asked for their condition, before the event loop runs others."""


class Broadcast:
    """Any number of tasks wait for a notification. It wakes the tasks that wait now, not those that wait later.

    Unlike asyncio.Condition it has no lock: it belongs to the event loop.
    """

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], Callable[[], bool] | None] = {}

    def notify_all(self) -> None:
        """Wake all waiting tasks; of those that wait for a condition, those for which it is true now.

        If that takes longer than a few milliseconds, the event loop runs other tasks in between.
        """
        waiters, self._waiters = self._waiters, {}
        self._notify(iter(waiters.items()))

    def _notify(self, waiters: Iterator[tuple[asyncio.Future[None], Callable[[], bool] | None]]) -> None:
        until = monotonic() + TURN_SECONDS
        for number, (waiter, condition) in enumerate(waiters, 1):
            if waiter.done():
                continue
            if condition is None or _is_due(condition):
                waiter.set_result(None)
            else:
                self._waiters[waiter] = condition
            if number >= WOKEN_PER_TURN or monotonic() > until:
                asyncio.get_running_loop().call_soon(self._notify, waiters)
                return

    def subscribe(self, condition: Callable[[], bool] | None = None) -> asyncio.Future[None]:
        """A future that the next notification completes at which the condition, if there is one, is true.

        The caller may complete it, too, and must `unsubscribe`.
        """
        waiter = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = condition
        return waiter

    def unsubscribe(self, waiter: asyncio.Future[None]) -> None:
        """Remove a future that `subscribe` returned."""
        waiter.cancel()
        self._waiters.pop(waiter, None)

    async def wait(self, seconds: float) -> None:
        """Return at the next notification, or after `seconds`."""
        waiter = self.subscribe()
        try:
            await asyncio.wait((waiter,), timeout=max(0.0, seconds))
        finally:
            self.unsubscribe(waiter)

    async def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until `condition()` is true, checked at each notification; False if it is not after `seconds`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not condition():
            remaining = deadline - loop.time()
            if remaining <= 0:
                return False
            waiter = self.subscribe(condition)
            try:
                await asyncio.wait((waiter,), timeout=remaining)
            finally:
                self.unsubscribe(waiter)
        return True


def _is_due(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except Exception:
        return True  # The task asks again, and fails on its own.
