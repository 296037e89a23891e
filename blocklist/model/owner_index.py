"""OwnerIndex: the nodes on which each owner has a claim. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from blocklist.model.claims import ClaimsOrAuthor


class OwnerIndex:
    """The ids of the nodes by the owner of a claim, also of one that has ended; without implied claims."""

    def __init__(self, claims: Mapping[str, ClaimsOrAuthor]) -> None:
        # Almost every owner has one node: a set for each would take four times the memory.
        self._nodes: dict[str, str | set[str]] = {}
        for node_id, stored in claims.items():
            self.replace(node_id, None, stored)

    def replace(self, node_id: str, before: ClaimsOrAuthor, after: ClaimsOrAuthor) -> None:
        """The claims on a node are others than before."""
        old, new = owners_in(before), owners_in(after)
        for owner in old - new:
            self._discard(owner, node_id)
        for owner in new - old:
            self._add(owner, node_id)

    def nodes_of(self, owner: str) -> Collection[str]:
        """The nodes on which an owner has a claim."""
        found = self._nodes.get(owner, ())
        return (found,) if isinstance(found, str) else found

    def _add(self, owner: str, node_id: str) -> None:
        found = self._nodes.get(owner)
        if isinstance(found, set):
            found.add(node_id)
        else:
            self._nodes[owner] = node_id if found is None else {found, node_id}

    def _discard(self, owner: str, node_id: str) -> None:
        found = self._nodes[owner]
        if isinstance(found, set) and len(found) > 1:
            found.discard(node_id)
        else:
            del self._nodes[owner]


def owners_in(stored: ClaimsOrAuthor) -> set[str]:
    """The owners of stored claims; none if they are implied."""
    return {claim.owner for claim in stored} if isinstance(stored, tuple) else set()
