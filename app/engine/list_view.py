"""ListView: the current list in memory, rendered once for each state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from app.engine.broadcast import Broadcast
from app.engine.cached_list import CachedList
from app.engine.host_labels import HostLabels
from app.engine.table_view import TableView
from app.engine.task_managers import TaskManagers
from blocklist.model.changes import Change, Snapshot
from blocklist.model.node import PERMANENT, BlockedNode
from blocklist.model.node_lookup import find_blocked, find_one_blocked
from blocklist.model.tracker import BlocklistTracker
from blocklist.wire.json import Json
from blocklist.wire.nodes import dump_list_entry, dump_node, node_body


class ListView:
    """The tracker's list as readers see it. The handler advances the tracker. Belongs to the event loop.

    Each node is rendered once per change, and the whole list at the first read after a change. A block is left out from
    its end on, even before its `expired` change is committed, so a rendered list is valid until the earliest end in it.
    `age()` is how long the list may have been out of date, in seconds: since an outage of the database began, until
    everything was read again. None if it is up to date. `table` is the same list for drivers.
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
        self.fast_reads = 0
        self.route_reads = 0
        self._cached: CachedList | None = None
        self._fragments: dict[str, bytes] = {}
        self._shown_hosts = HostLabels()
        self._stale = {node.id for node in tracker}

    def apply(self, changes: Sequence[Change]) -> None:
        """The tracker has applied these changes."""
        changed = {change.node.id for change in changes}
        self._stale |= changed
        self._cached = None
        self.changed.notify_all()
        self.table.apply(changed)

    def reset(self) -> None:
        """The tracker was reset."""
        self._stale = {*self._fragments, *(node.id for node in self.tracker)}
        self._cached = None
        self.changed.notify_all()
        self.table.reset()

    def task_managers_moved(self, nodes: Iterable[str]) -> None:
        """The TaskManagers on these nodes have changed, or these names may mean other machines now.

        A name that is ambiguous now no longer leads to the blocks that show its TaskManagers, so these are kept.
        """
        names = set(nodes)
        blocked = {node_id for name in names for node_id in self.tracker.matching(name)}
        blocked |= self._shown_hosts.shown_by(names)
        if blocked:
            self._stale |= blocked
            self._cached = None
            self.changed.notify_all()

    def node_body(self, node: BlockedNode) -> Json:
        """A node as responses show it, with the TaskManagers on it."""
        return node_body(node, self.task_managers.on_node(node.id))

    def node_json(self, node: BlockedNode) -> bytes:
        """Like `node_body`, serialized."""
        return dump_node(node, self.task_managers.on_node(node.id))

    def list_unless_stale(self) -> CachedList | None:
        """The current list; None while it may be out of date, when responses need an Age header."""
        return None if self.age() is not None else self.current_list()

    def _valid_cached(self) -> CachedList | None:
        cached = self._cached
        return cached if cached is not None and self.clock() < cached.valid_until else None

    def current_list(self) -> CachedList:
        """The current list, rendered now unless the cached one is valid."""
        self._cached = self._valid_cached() or self._render(self.clock())
        return self._cached

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
        until = self.tracker.next_end()
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
