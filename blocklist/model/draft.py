"""BlocklistTracker: the list at a revision. Draft: the rules of changing it, uncommitted changes on top of it. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple, Protocol

from blocklist.model.changes import Author, Change, ChangeType, Snapshot, Source
from blocklist.model.claims import (
    Claim,
    Claims,
    Repeat,
    author_claim,
    automatic_claims,
    check_room,
    claim_of,
    default_owner,
    live_claims,
    merge_claims,
    narrows,
    with_claim,
    without_owner,
)
from blocklist.model.errors import AmbiguousNodeError, ConflictError, InvalidError, NotFoundError
from blocklist.model.names import Aliases, Multimap, NameSet, no_aliases, normalize_name, same_machine
from blocklist.model.node import PERMANENT, BlockedNode, format_utc, merge

# BlocklistTracker: the blocked nodes at one revision, in the service, agents and managers.
#
# Pure, without a lock: use it from one thread or event loop at a time.


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


_EXPIRY: Final = Author(source=Source.TIME)
# By how much a change alters the number of blocked nodes. An expired node has not counted since its end.
_COUNT_DELTA: Final = {ChangeType.BLOCKED: 1, ChangeType.UNBLOCKED: -1}


class PutClaim(NamedTuple):
    """A claim that was put, the node after it, and whether its owner had none before."""

    claim: Claim
    node: BlockedNode
    created: bool


class Draft:
    """Changes on top of `base`, decided at `now` (Unix milliseconds). The base is never modified.

    `changes` are in order of revision, and the first follows the base's revision. Set `author` before making changes.
    """

    def __init__(self, base: BlocklistView, now: int) -> None:
        self.now = now
        self.author = Author()
        self.changes: list[Change] = []
        self._base = base
        self._nodes: dict[str, BlockedNode | None] = {}
        self._claims: dict[str, Claims] = {}
        self._names = NameSet(aliases=base.aliases)
        self._count_delta = 0

    @property
    def revision(self) -> int:
        return self._base.revision + len(self.changes)

    def __iter__(self) -> Iterator[BlockedNode]:
        """All nodes in this draft, including those whose end has passed."""
        yield from (node for node in self._base if node.id not in self._nodes)
        yield from (node for node in self._nodes.values() if node is not None)

    def count(self, now: int) -> int:
        """Number of nodes blocked at `now`, which must be the draft's own time."""
        return self._base.count(now) + self._count_delta

    def fork(self) -> Draft:
        """A draft on top of this one, with the same author, to be adopted or dropped."""
        fork = Draft(self, self.now)
        fork.author = self.author
        return fork

    def adopt(self, fork: Draft) -> None:
        """Add the changes of `fork`, which must be a fork of this draft without changes made here since."""
        self.changes += fork.changes
        self._nodes |= fork._nodes
        self._claims |= fork._claims
        for node_id in fork._nodes:
            self._names.add(node_id)
        self._count_delta += fork._count_delta

    def get(self, node_id: str) -> BlockedNode | None:
        """The node in this draft, even if its end has passed."""
        return self._nodes[node_id] if node_id in self._nodes else self._base.get(node_id)

    def claims(self, node_id: str) -> Claims:
        """The claims on a node in this draft, those that have ended included; none if it is not on the list."""
        return self._claims[node_id] if node_id in self._nodes else self._base.claims(node_id)

    def claimed_by(self, owner: str) -> Iterator[str]:
        """The ids on which an owner has a claim in this draft, those that have ended included."""
        yield from (node_id for node_id in self._base.claimed_by(owner) if node_id not in self._nodes)
        yield from (node_id for node_id, claims in self._claims.items() if claim_of(claims, owner) is not None)

    def matching(self, node_id: str) -> Iterator[str]:
        """The ids in this draft that mean the same machine, in no order."""
        yield from (name for name in self._base.matching(node_id) if name not in self._nodes)
        yield from (name for name in self._names.matching(node_id) if self._nodes[name] is not None)

    def changes_of(self, node_id: str) -> Iterator[Change]:
        """The changes of a machine, in order, in this draft and in those of which it is a fork."""
        if isinstance(self._base, Draft):
            yield from self._base.changes_of(node_id)
        names = set(self._names.matching(node_id))
        yield from (change for change in self.changes if names and change.node.id in names)

    def aliases(self, node_id: str) -> Collection[str]:
        """What else the machine is called."""
        return self._base.aliases(node_id)

    def get_blocked(self, node_id: str) -> BlockedNode | None:
        """The block that a new block of this node would be merged with: of this id, or of the only one that matches.

        A short name that matches several blocked nodes is a node of its own.
        """
        found = find_blocked(self, node_id, self.now)
        return found[0] if len(found) == 1 else None

    def block(
        self, node: BlockedNode, *, allow_merge: bool, repeat: Repeat | None = None, replace_own: bool = False
    ) -> BlockedNode:
        """Block a node, or merge with its existing block (FLIP-224, Add); return the resulting node.

        It becomes a claim of the author, or is merged into that. The existing block keeps its id, which may be another
        name of the machine. If the claim does not change, nothing does. `repeat` is that of a new claim. `node` is no
        canary: only `put_claim` makes one. With `replace_own` the author's claim becomes this block, which may be
        shorter or weaker; those of others stay. Raises ConflictError if the node is blocked, unless `allow_merge` or
        `replace_own`.
        """
        if replace_own:
            return self.put_claim(default_owner(self.author.name), node).node
        current = self.get_blocked(node.id)
        if current is None:
            return self._record_new((self._own_claim(node, repeat),))
        if not allow_merge:
            raise ConflictError(self._already_blocked(current), {node.id: current})
        block = node if node.id == current.id else replace(node, id=current.id)
        claims = claims_on(self, current, self.now)
        own = claim_of(claims, default_owner(self.author.name))
        if own is not None:
            block = merge(own.block, block)
            if block is own.block:
                return current
            repeat = own.repeat
        after = with_claim(claims, self._own_claim(block, repeat))
        return self._record_claims(self._expire_claims(current), after)

    def block_many(
        self, nodes: Mapping[str, tuple[BlockedNode, bool]], *, replace_own: bool = False
    ) -> dict[str, BlockedNode]:
        """Block several nodes, all or none: id to node and allow_merge. `replace_own` is as in `block`.

        Raises InvalidError if two ids mean one machine, ConflictError with every conflict; then nothing was changed.
        """
        check_distinct(nodes, self.aliases)
        conflicts = {
            node_id: current
            for node_id, (_, allow_merge) in nodes.items()
            if not (allow_merge or replace_own) and (current := self.get_blocked(node_id))
        }
        if conflicts:
            lines = [self._already_blocked(node) for node in conflicts.values()]
            raise ConflictError(f"{len(lines)} of {len(nodes)} nodes are already blocked.", conflicts, lines)
        return {
            node_id: self.block(node, allow_merge=allow_merge, replace_own=replace_own)
            for node_id, (node, allow_merge) in nodes.items()
        }

    def unblock(self, node_id: str) -> BlockedNode:
        """Unblock a node before its end, whoever claims it; return it as it was. Dismisses what automatic owners claim.

        Raises NotFoundError if it is not blocked, and AmbiguousNodeError if the name matches several blocked nodes.
        """
        node = self._expire_claims(self._find(node_id))
        self._record(ChangeType.UNBLOCKED, node, dismissed=automatic_claims(self.live_claims(node)))
        return node

    def put_claim(self, owner: str, node: BlockedNode) -> PutClaim:
        """Create or replace the claim of an owner, for whom the author acts. It may become shorter or weaker.

        A claim that is replaced keeps its start; if it does not change, nothing does. Raises LimitError if the node has
        too many claims.
        """
        current = self.get_blocked(node.id)
        before = None if current is None else claim_of(self.live_claims(current), owner)
        block = replace(node, id=node.id if current is None else current.id, start=_start(before, node))
        if before is not None and current is not None and before.block == block:
            return PutClaim(before, current, created=False)
        claim = Claim(owner=owner, author=self.author.name, block=block)
        after = self.change_claims(node.id, [claim], ())
        return PutClaim(claim, after, created=before is None)

    def remove_claim(self, node_id: str, owner: str) -> BlockedNode:
        """Remove the claim of an owner; return the node as the other claims have it, or as it was if there are none.

        Raises NotFoundError if he has none on it, and AmbiguousNodeError if the name matches several blocked nodes.
        """
        current = self._find(node_id)
        if claim_of(self.live_claims(current), owner) is None:
            raise NotFoundError(no_claim_message(current.id, owner))
        return self.change_claims(current.id, (), [owner])

    def put_claims(self, owner: str, nodes: Mapping[str, BlockedNode]) -> dict[str, PutClaim]:
        """Create or replace claims of an owner on several nodes, all or none.

        Raises InvalidError if two ids mean one machine, LimitError if one of them has too many claims.
        """
        check_distinct(nodes, self.aliases)
        self._check_rooms(nodes, owner)
        return {node_id: self.put_claim(owner, node) for node_id, node in nodes.items()}

    def remove_claims(self, owner: str, node_ids: Collection[str]) -> dict[str, BlockedNode]:
        """Remove the claims of an owner on several nodes, all or none; the nodes after that as from `remove_claim`.

        Raises NotFoundError with each node on which he has none, and AmbiguousNodeError if a name matches several
        blocked nodes.
        """
        found = {node_id: find_one_blocked(self, node_id, self.now) for node_id in node_ids}
        missing = [
            not_blocked_message(node_id) if node is None else no_claim_message(node.id, owner)
            for node_id, node in found.items()
            if node is None or claim_of(self.live_claims(node), owner) is None
        ]
        if missing:
            summary = f"{owner} has no claim on {len(missing)} of {len(found)} nodes."
            raise NotFoundError(missing[0] if len(found) == 1 else summary, missing)
        ids = {node_id: node.id for node_id, node in found.items() if node is not None}
        after = {name: self.remove_claim(name, owner) for name in dict.fromkeys(ids.values())}
        return {node_id: after[name] for node_id, name in ids.items()}

    def change_claims(self, node_id: str, put: Iterable[Claim], removed_owners: Iterable[str]) -> BlockedNode:
        """Put claims on a node, and remove those of some owners, in one change; return the node after it.

        One that is free then is returned as it was. Raises LimitError if it has too many claims, and ValueError if
        there are none to put on a free node.
        """
        current = self.get_blocked(node_id)
        claims: Claims = () if current is None else self.live_claims(current)
        for owner in removed_owners:
            claims = without_owner(claims, owner)
        for claim in put:
            check_room(claims, claim.owner, claim.author)
            claims = with_claim(claims, claim if current is None else _on(current.id, claim))
        if current is None and not claims:
            raise ValueError(f"there are no claims to put on {node_id}, which is free")
        if current is None:
            return self._record_new(claims)
        return self._record_claims(self._expire_claims(current), claims)

    def live_claims(self, node: BlockedNode) -> Claims:
        """The claims on a node of this draft that have not ended."""
        return claims_on(self, node, self.now)

    def expire(self, node_id: str) -> None:
        """Record that the node has expired, or that some of its claims have, if their end has passed."""
        node = self.get(node_id)
        if node is None:
            return
        if node.ended(self.now):
            self._record(ChangeType.EXPIRED, node, author=_EXPIRY)
        else:
            self._expire_claims(node)

    def _expire_claims(self, node: BlockedNode) -> BlockedNode:
        """Record that claims on a blocked node have expired, if so; return the node as it is then."""
        live = self.live_claims(node)
        if len(live) == len(self.claims(node.id)):
            return node
        node = merge_claims(live)
        self._record(ChangeType.NARROWED, node, live, _EXPIRY)
        return node

    def _check_rooms(self, node_ids: Iterable[str], owner: str) -> None:
        """Raise LimitError if the owner would be one too many on one of the nodes."""
        for node_id in node_ids:
            current = self.get_blocked(node_id)
            if current is not None:
                check_room(self.live_claims(current), owner, self.author.name)

    def _already_blocked(self, node: BlockedNode) -> str:
        """The message of a conflict. It names the owners, unless the author is the only one."""
        owners = [claim.owner for claim in self.live_claims(node)]
        return already_blocked_message(node, () if owners == [default_owner(self.author.name)] else owners)

    def _own_claim(self, block: BlockedNode, repeat: Repeat | None) -> Claim:
        return Claim(owner=default_owner(self.author.name), author=self.author.name, block=block, repeat=repeat)

    def _find(self, node_id: str) -> BlockedNode:
        node = find_one_blocked(self, node_id, self.now)
        if node is None:
            raise NotFoundError(not_blocked_message(node_id))
        return node

    def _record_new(self, claims: Claims) -> BlockedNode:
        node = merge_claims(claims)
        self.expire(node.id)
        self._record(ChangeType.BLOCKED, node, claims)
        return node

    def _record_claims(self, current: BlockedNode, claims: Claims) -> BlockedNode:
        if not claims:
            self._record(ChangeType.UNBLOCKED, current)
            return current
        after = merge_claims(claims)
        removed = {claim.owner for claim in self.live_claims(current)} - {claim.owner for claim in claims}
        kind = ChangeType.NARROWED if removed or narrows(current, after) else ChangeType.MERGED
        self._record(kind, after, claims)
        return after

    def _record(
        self,
        kind: ChangeType,
        node: BlockedNode,
        claims: Claims = (),
        author: Author | None = None,
        dismissed: Claims = (),
    ) -> None:
        """Record a change. Without `claims` the node is free."""
        by = author or self.author
        if kind.frees and node.canary:
            node = replace(node, canary=False)
        change = Change(
            revision=self.revision + 1,
            type=kind,
            at=self.now,
            node=node,
            created_by=by.name,
            forced=by.forced,
            claims=claims,
            dismissed=dismissed,
            source=by.source,
            request_id=by.request_id,
        )
        self.changes.append(change)
        self._nodes[node.id] = None if kind.frees else node
        self._claims[node.id] = claims
        self._names.add(node.id)
        self._count_delta += _COUNT_DELTA.get(kind, 0)


def _on(node_id: str, claim: Claim) -> Claim:
    """The claim on a node by the id under which it is blocked, which may be another name of the machine."""
    return claim if claim.block.id == node_id else replace(claim, block=replace(claim.block, id=node_id))


def _start(before: Claim | None, node: BlockedNode) -> int:
    return node.start if before is None else before.block.start


def check_distinct(node_ids: Collection[str], aliases: Aliases = no_aliases) -> None:
    """Raise InvalidError if two of the ids mean one machine."""
    names = NameSet(node_ids, aliases)
    for node_id in node_ids:
        other = next((name for name in names.matching(node_id) if name != node_id), None)
        if other is not None:
            raise InvalidError(f"{node_id} and {other} mean the same machine: give one of them. Nothing was changed.")


MERGE_HINT: Final = "; send allowMerge true to merge with that block"
"""For programs, at the end of the message of a conflict: the page and the command say it in another way."""

_MAX_OWNERS: Final = 5
"""Maximum number of owners that the message of a conflict names: it may be one of a thousand."""


def already_blocked_message(node: BlockedNode, owners: Sequence[str] = ()) -> str:
    """`Node n1 is already blocked until 2026-11-21T18:00:00Z by anna, bob (disk); send …`."""
    more = f" and {len(owners) - _MAX_OWNERS} more" if len(owners) > _MAX_OWNERS else ""
    by = f" by {', '.join(owners[:_MAX_OWNERS])}{more}" if owners else ""
    until = "without end" if node.permanent else f"until {format_utc(node.end)}"
    canary = ", with a canary" if node.canary else ""
    return f"Node {node.id} is already blocked {until}{canary}{by} ({node.cause}){MERGE_HINT}."


def not_blocked_message(node_id: str) -> str:
    return f"Node {node_id} is not blocked."


def no_claim_message(node_id: str, owner: str) -> str:
    return f"{owner} has no claim on node {node_id}."
