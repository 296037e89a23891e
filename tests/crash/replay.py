"""The change log, and the list that it makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FREES = {"unblocked", "expired"}


@dataclass
class Replay:
    """Takes one change after the other; `log` has them all, `listed` the nodes that are blocked after them."""

    log: list[Any] = field(default_factory=list)
    listed: dict[str, Any] = field(default_factory=dict)

    def take(self, change: Any) -> None:
        """The next change. Fails unless it follows."""
        assert change["revision"] == len(self.log) + 1, f"{change} follows {self.log[-1:]}"
        node = dict(change["node"])
        before = self.listed.pop(node.pop("id"), None)
        assert (before is None) == (change["type"] == "blocked"), f"{change} cannot follow {before}"
        if change["type"] in FREES:
            assert node == before, f"{change} frees another node than {before}"
        else:
            self.listed[change["node"]["id"]] = node
        self.log.append(change)

    def check_list(self, told: Mapping[str, Any], begin: int, end: int) -> None:
        """Fails unless `told` is the list: a GET under way from `begin` to `end` (Unix ms), at the log's revision.

        What ends in between may be in it or not; an ended node is out before the log says so.
        """
        nodes = {node_id: {**node} for node_id, node in told.items()}
        for node in nodes.values():
            assert node.pop("taskManagers") == []
        assert nodes.items() <= self.listed.items()
        missing = [self.listed[node_id] for node_id in self.listed.keys() - nodes.keys()]
        assert all(int(node["endTimestamp"]) <= end for node in missing), missing
        assert all(int(node["endTimestamp"]) > begin for node in nodes.values())
