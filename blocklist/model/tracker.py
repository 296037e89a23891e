"""BlocklistTracker: the blocked nodes at one revision, in the service, agents and managers.

Pure, without a lock: use it from one thread or event loop at a time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, Protocol

from blocklist.model.changes import Change, Snapshot
from blocklist.model.claims import Claims, author_claim, claim_of, live_claims
from blocklist.model.errors import AmbiguousNodeError
from blocklist.model.names import Aliases, Multimap, NameSet, no_aliases, normalize_name, same_machine
from blocklist.model.node import PERMANENT, BlockedNode


class OutOfOrderError(Exception):
    """A change does not follow the tracker's revision: changes were missed, and a snapshot is needed."""


class BlocklistTracker:
    """FLIP-224's BlocklistTracker, updated by snapshots and by changes in order of revision.

    `aliases` matter for questions only: the same changes lead to the same list, whatever is known about machines.
    """

    def __init__(self, snapshot: Snapshot, aliases: Aliases = no_aliases) -> None:
        self._aliases = aliases
        self.reset(snapshot)

    def reset(self, snapshot: Snapshot) -> None:
        """Replace the list by the snapshot."""
        self.revision = snapshot.revision
        self.history = snapshot.history
        self._nodes = dict(snapshot.nodes)
        self._names = NameSet(snapshot.nodes, self._aliases)
        self._claims = dict(snapshot.claims)
        self._by_owner = Multimap()
        for node_id, claims in self._claims.items():
            self._by_owner.move(node_id, set(), _owners(claims))
        self._ends = EndQueue(self._nodes, self._first_end)

    def apply(self, change: Change) -> None:
        """Apply the next change. Raises OutOfOrderError unless it has the next revision."""
        if change.revision != self.revision + 1:
            raise OutOfOrderError(f"revision {change.revision} does not follow {self.revision}")
        self.revision = change.revision
        node = change.node
        if change.type.frees:
            self._nodes.pop(node.id, None)
            self._names.discard(node.id)
            self._by_owner.move(node.id, _owners(self._claims.pop(node.id, ())), set())
            return
        if node.id not in self._nodes:
            self._names.add(node.id)
        end_before = self._first_end(node.id)
        self._by_owner.move(node.id, _owners(self._claims.get(node.id, ())), _owners(change.claims))
        self._nodes[node.id], self._claims[node.id] = node, change.claims
        end = self._first_end(node.id)
        if end is not None and end != end_before:
            self._ends.push(end, node.id)

    def get(self, node_id: str) -> BlockedNode | None:
        """The node, even if its end has passed and the `expired` change is not committed yet."""
        return self._nodes.get(node_id)

    def matching(self, node_id: str) -> Iterator[str]:
        """The ids on the list that mean the same machine, in no order."""
        return self._names.matching(node_id)

    def aliases(self, node_id: str) -> Collection[str]:
        """What else the machine is called."""
        return self._aliases(node_id)

    def blocked(self, now: int) -> dict[str, BlockedNode]:
        """The nodes that are blocked at `now` (FLIP-224, getAllBlockedNodes), in no particular order."""
        if self.next_expiry() > now:
            return dict(self._nodes)
        return {node_id: node for node_id, node in self._nodes.items() if not node.ended(now)}

    def count(self, now: int) -> int:
        """Number of nodes blocked at `now`."""
        return len(self._nodes) if self.next_expiry() > now else len(self.blocked(now))

    def next_expiry(self) -> int:
        """The earliest end of all claims, and so of all nodes (Unix ms); PERMANENT if nothing will expire."""
        return self._ends.next()

    def ended(self, now: int) -> list[BlockedNode]:
        """The nodes of which the end has passed, or that of one of their claims; the earliest first."""
        nodes = (self._nodes[node_id] for node_id in self._ends.ended(now))
        return sorted(nodes, key=lambda node: (node.end, node.id))

    def claims(self, node_id: str) -> Claims:
        """The claims on a node, those that have ended included; none if it is not on the list."""
        node = self._nodes.get(node_id)
        return () if node is None else self._claims.get(node_id) or author_claim(None, node)

    def claimed_by(self, owner: str) -> Collection[str]:
        """The ids of the nodes on which an owner has a claim, those that have ended included."""
        return self._by_owner[owner]

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[BlockedNode]:
        return iter(self._nodes.values())

    def known_claims(self) -> dict[str, Claims]:
        """A copy of the claims on each node: in the service on all, in a client on those that have changed."""
        return dict(self._claims)

    def _first_end(self, node_id: str) -> int | None:
        """The end of a node, or of the first of its claims; None if it is not on the list."""
        node = self._nodes.get(node_id)
        if node is None:
            return None
        return min((claim.block.end for claim in self._claims.get(node_id, ())), default=node.end)


def _owners(claims: Claims) -> set[str]:
    return {claim.owner for claim in claims}


# EndQueue: which of many things ends first. Pure.

_SLACK: Final = 64


class EndQueue:
    """Ends, in Unix milliseconds, by id. `end_of` returns the end of one of the `ids`; None if it has none.

    An end that has changed is pushed again; the former entry is stale, and skipped.
    """

    def __init__(self, ids: Collection[str], end_of: Callable[[str], int | None]) -> None:
        self._ids = ids
        self._end_of = end_of
        self._heap: list[tuple[int, str]] = []
        self._rebuild()

    def push(self, end: int, id_: str) -> None:
        """The end of an id is now this one."""
        if end == PERMANENT:
            return
        heapq.heappush(self._heap, (end, id_))
        if len(self._heap) > 2 * len(self._ids) + _SLACK:  # bounds the stale entries
            self._rebuild()

    def next(self) -> int:
        """The earliest end; PERMANENT if nothing ends."""
        while self._heap and self._end_of(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else PERMANENT

    def ended(self, now: int) -> list[str]:
        """The ids whose end has passed at `now`."""
        if self.next() > now:
            return []
        return [id_ for id_ in self._ids if (end := self._end_of(id_)) is not None and end <= now]

    def _rebuild(self) -> None:
        ends = ((self._end_of(id_), id_) for id_ in self._ids)
        self._heap = [(end, id_) for end, id_ in ends if end is not None and end != PERMANENT]
        heapq.heapify(self._heap)


# The blocked nodes that a name means. Pure.

MAX_MATCHES: Final = 20
"""Maximum number of nodes that are looked up for one name: a short name may be the first label of thousands."""


class BlocklistView(Protocol):
    """The nodes at a revision: a BlocklistTracker, or a Draft."""

    @property
    def revision(self) -> int: ...

    def get(self, node_id: str) -> BlockedNode | None: ...

    def matching(self, node_id: str) -> Iterable[str]:
        """The ids on the list that mean the same machine, in no order."""

    def claims(self, node_id: str) -> Claims:
        """The claims on a node, those that have ended included; none if it is not on the list."""

    def claimed_by(self, owner: str) -> Iterable[str]:
        """The ids on the list on which an owner has a claim, those that have ended included."""

    def aliases(self, node_id: str) -> Collection[str]:
        """What else the machine is called, see blocklist.model.names.Aliases."""

    def count(self, now: int) -> int: ...

    def __iter__(self) -> Iterator[BlockedNode]: ...


def find_blocked(view: BlocklistView, node_id: str, now: int) -> list[BlockedNode]:
    """The nodes blocked at `now` (Unix ms) that `node_id` means, sorted by id, at most MAX_MATCHES.

    The node with this very id; else those with the same name in another case, or the same address in another spelling;
    else those of which one name is the short form of the other; else those under another known name or address.
    """
    exact = view.get(node_id)
    if exact is not None and not exact.ended(now):
        return [exact]
    nodes = (view.get(name) for name in view.matching(node_id))
    found = list(islice((node for node in nodes if node is not None and not node.ended(now)), MAX_MATCHES))
    if len(found) < 2:
        return found
    same_name = [node for node in found if normalize_name(node.id) == normalize_name(node_id)]
    short_or_full = [node for node in found if same_machine(node.id, node_id)]
    return sorted(same_name or short_or_full or found, key=lambda node: node.id)


def find_one_blocked(view: BlocklistView, node_id: str, now: int) -> BlockedNode | None:
    """Like find_blocked, if there is one. Raises AmbiguousNodeError if there are several."""
    found = find_blocked(view, node_id, now)
    if len(found) > 1:
        names = ", ".join(node.id for node in found)
        more = "at least " if len(found) == MAX_MATCHES else ""
        detail = f"{node_id} means {more}{len(found)} blocked nodes: {names}. Give the id of one of them."
        raise AmbiguousNodeError(detail, found)
    return found[0] if found else None


def claims_on(view: BlocklistView, node: BlockedNode, now: int) -> Claims:
    """The claims on a node of the view that have not ended at `now`; none if its block has."""
    return live_claims(view.claims(node.id), now)


def nodes_claimed_by(view: BlocklistView, owners: Collection[str], now: int) -> Mapping[str, Sequence[str]]:
    """The ids of the nodes that these owners claim at `now`, by owner, under whatever names."""
    return {
        owner: [
            node_id for node_id in view.claimed_by(owner) if claim_of(live_claims(view.claims(node_id), now), owner)
        ]
        for owner in owners
    }
