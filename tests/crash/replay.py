"""The change log, and the list that results from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

UNBLOCKING = {"unblocked", "expired"}


@dataclass
class Replay:
    """Applies changes in order; `changes` has them all, `blocked` the nodes that are blocked after them."""

    changes: list[Any] = field(default_factory=list)
    blocked: dict[str, Any] = field(default_factory=dict)

    def apply(self, change: Any) -> None:
        """Apply the next change. Raises AssertionError if it cannot follow."""
        assert change["revision"] == len(self.changes) + 1, f"{change} follows {self.changes[-1:]}"
        node = dict(change["node"])
        before = self.blocked.pop(node.pop("id"), None)
        assert (before is None) == (change["type"] == "blocked"), f"{change} cannot follow {before}"
        if change["type"] in UNBLOCKING:
            assert node == before, f"{change} frees another node than {before}"
        else:
            self.blocked[change["node"]["id"]] = node
        self.changes.append(change)

    def check_list(self, listed: Mapping[str, Any], begin: int, end: int) -> None:
        """Assert that `listed` is the list at the last revision, from a GET between `begin` and `end` (Unix ms).

        A block that expires in between may be listed or not; an expired one is not, even before its change is logged.
        """
        nodes = {node_id: {**node} for node_id, node in listed.items()}
        for node in nodes.values():
            assert node.pop("taskManagers") == []
        assert nodes.items() <= self.blocked.items()
        missing = [self.blocked[node_id] for node_id in self.blocked.keys() - nodes.keys()]
        assert all(int(node["endTimestamp"]) <= end for node in missing), missing
        assert all(int(node["endTimestamp"]) > begin for node in nodes.values())
