"""Which nodes of Kubernetes a node id on the list means: the rules of the service's inventory. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from blocklist.model.host_matching import ambiguous_message, normalize_name
from blocklist.model.inventory import Inventory
from blocklist.model.node_facts import NodeFacts, report_nodes
from blocklist.model.reported_node import NodeSource, SourceKind

_SOURCE = NodeSource(SourceKind.MANAGER, "kubernetes")


class NodeNames:
    """The nodes of one cluster under all their names and addresses. Not thread-safe."""

    def __init__(self) -> None:
        self._inventory = Inventory()
        self._names: dict[str, str] = {}
        self._facts: Sequence[NodeFacts] = ()
        self._shared: dict[str, list[str]] = {}

    def update(self, facts: Iterable[NodeFacts]) -> None:
        """Replace the nodes; costs little if none has changed."""
        nodes = tuple(facts)
        if nodes == self._facts:
            return
        self._facts = nodes
        self._names = {normalize_name(node.id): node.id for node in nodes}
        self._inventory.stage_nodes(_SOURCE, report_nodes(nodes))
        self._inventory.apply_staged()
        users: defaultdict[str, list[str]] = defaultdict(list)
        for node in nodes:
            for name in set(map(normalize_name, node.names)):
                users[name].append(node.id)
        # What several nodes have is not reported, as it tells none of them apart.
        self._shared = {name: sorted(using) for name, using in users.items() if len(using) > 1}

    def meant_by(self, node_id: str) -> list[str]:
        """The names of the nodes that an id means: one, none, or all those of which it is the short name."""
        return sorted(self._names[name] for name in self._inventory.known_as(node_id) if name in self._names)

    def refusal(self, node_id: str) -> str | None:
        """Why an id means no node; None if it means some."""
        if self.meant_by(node_id):
            return None
        if sharing := self._shared.get(normalize_name(node_id)):
            return ambiguous_message(node_id, sharing)
        return f"Kubernetes has no node {node_id}."
