"""The blocked nodes that a name means. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, Protocol

from blocklist.model.claims import Claims, ClaimsOrAuthor, claim_of, expand, live_claims
from blocklist.model.errors import AmbiguousNodeError
from blocklist.model.host_matching import normalize_name, same_machine
from blocklist.model.node import BlockedNode

MAX_MATCHES: Final = 20
"""Maximum number of nodes that are looked up for one name: a short name may be the first label of thousands."""


class BlocklistView(Protocol):
    """The nodes at a revision: a BlocklistTracker, or a Draft."""

    @property
    def revision(self) -> int: ...

    def get(self, node_id: str) -> BlockedNode | None: ...

    def matching(self, node_id: str) -> Iterable[str]:
        """The ids on the list that mean the same machine, in no order."""

    def stored_claims(self, node_id: str) -> ClaimsOrAuthor:
        """The claims on a node on the list, those that have ended included; for implied ones their author."""

    def claimed_by(self, owner: str) -> Iterable[str]:
        """The ids on the list on which an owner has a claim that is not implied, those that have ended included."""

    def aliases(self, node_id: str) -> Collection[str]:
        """What else the machine is called, see blocklist.model.host_matching.Aliases."""

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
    return live_claims(expand(view.stored_claims(node.id), node), now)


def nodes_claimed_by(view: BlocklistView, owners: Collection[str], now: int) -> Mapping[str, Sequence[str]]:
    """The ids of the nodes that these owners claim at `now`, by owner, under whatever names.

    Without claims that are implied: their owner is an author.
    """
    return {
        owner: [node_id for node_id in view.claimed_by(owner) if _claims(view, owner, node_id, now)] for owner in owners
    }


def _claims(view: BlocklistView, owner: str, node_id: str, now: int) -> bool:
    stored = view.stored_claims(node_id)
    return isinstance(stored, tuple) and claim_of(live_claims(stored, now), owner) is not None
