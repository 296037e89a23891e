"""The claims on the current list, and the dismissals, by node and owner."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from app.engine.dismissals import Dismissal, Dismissals
from blocklist.model.claims import Claims, ClaimsOrAuthor, expand, live_claims, own_owner, owner_matches
from blocklist.model.node import BlockedNode
from blocklist.model.tracker import BlocklistTracker


class NodeOwners(NamedTuple):
    """The claims of owners on a node, and their dismissals, the oldest first."""

    id: str
    claims: Claims
    dismissals: Sequence[Dismissal]


class ClaimedNodes(NamedTuple):
    """The nodes that are blocked at one time, their claims, and the dismissals by node: a copy for another thread."""

    nodes: Mapping[str, BlockedNode]
    claims: Mapping[str, ClaimsOrAuthor]
    dismissals: Mapping[str, Mapping[str, Dismissal]]
    now: int

    @classmethod
    def of(cls, tracker: BlocklistTracker, dismissals: Dismissals, now: int) -> ClaimedNodes:
        """Those of the list at `now`."""
        return cls(tracker.blocked(now), tracker.all_stored_claims(), dismissals.by_node(), now)

    def page(self, pattern: str, *, after: str, limit: int) -> list[NodeOwners]:
        """The first `limit` nodes after the id `after` with claims or dismissals of matching owners, sorted by id."""
        ids = (node_id for node_id in self._ids() if node_id > after and self._matches(node_id, pattern))
        return [
            NodeOwners(node_id, self._matching(node_id, pattern), self._dismissed(node_id, pattern))
            for node_id in heapq.nsmallest(limit, ids)
        ]

    def _ids(self) -> Iterator[str]:
        return chain(self.nodes, (node_id for node_id in self.dismissals if node_id not in self.nodes))

    def _matches(self, node_id: str, pattern: str) -> bool:
        stored = self.claims.get(node_id)
        if node_id in self.nodes and not isinstance(stored, tuple) and owner_matches(own_owner(stored), pattern):
            return True
        return bool(self._matching(node_id, pattern) or self._dismissed(node_id, pattern))

    def _matching(self, node_id: str, pattern: str) -> Claims:
        node = self.nodes.get(node_id)
        claims = () if node is None else live_claims(expand(self.claims.get(node_id), node), self.now)
        return tuple(claim for claim in claims if owner_matches(claim.owner, pattern))

    def _dismissed(self, node_id: str, pattern: str) -> Sequence[Dismissal]:
        found = self.dismissals.get(node_id, {}).values()
        return sorted(
            (it for it in found if it.counts(self.now) and owner_matches(it.owner, pattern)),
            key=lambda dismissal: (dismissal.at, dismissal.owner),
        )
