"""Known nodes with labels, for the rules that need them."""

from __future__ import annotations

from collections.abc import Mapping

from blocklist.model.inventory import Inventory
from blocklist.model.reported_node import FILE_SOURCE, make_reported_node


def labelled_nodes(labels: Mapping[str, Mapping[str, str]]) -> Inventory:
    """Nodes with these labels by id; whoever reports them begins the ids with a capital letter."""
    nodes = Inventory()
    nodes.stage_nodes(FILE_SOURCE, [make_reported_node(name.capitalize(), labels=its) for name, its in labels.items()])
    nodes.apply_staged()
    return nodes
