"""What a selector selects among the known nodes, and hints for labels that no node has. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blocklist.model.errors import InvalidError, NotFoundError, UnknownNodeError
from blocklist.model.inventory import Inventory
from blocklist.model.selector import Selector, unknown_keys


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The selected nodes, sorted, under the ids by which they are known and as these are spelt.

    `hints` has a sentence for each label in the selector that no node has.
    """

    selector: Selector
    nodes: Sequence[str]
    spelt: Sequence[str]
    hints: Sequence[str]

    def require_nodes(self, max_nodes: int | None = None) -> Sequence[str]:
        """The nodes as they are spelt, to be changed.

        Raises NotFoundError if there are none, InvalidError for more than the maximum.
        """
        if not self.nodes:
            sentence = f"The selector {self.selector} selects no node. Nothing was changed."
            raise NotFoundError(" ".join([sentence, *self.hints]))
        if max_nodes is not None and len(self.nodes) > max_nodes:
            raise InvalidError(
                f"The selector {self.selector} selects {len(self.nodes):,} nodes; at most {max_nodes:,} can be changed"
                " at once. Nothing was changed."
            )
        return self.spelt

    def require_known_labels(self) -> None:
        """Raise UnknownNodeError if no node has one of the labels."""
        if self.hints:
            raise UnknownNodeError(self.hints[0], self.hints)


def select_nodes(selector: Selector, nodes: Inventory) -> Selection:
    """The known nodes with labels that satisfy the selector."""
    selected = sorted(node for node in nodes if selector.matches(nodes.labels_of(node)))
    spelt = [nodes.spelling(node) for node in selected]
    return Selection(selector=selector, nodes=selected, spelt=spelt, hints=label_hints(selector, nodes))


def selects(selector: Selector, nodes: Inventory, node_id: str) -> bool:
    """Whether a machine that `node_id` means is selected. A node that is not known has no labels."""
    labels: list[Mapping[str, str]] = [nodes.labels_of(known) for known in nodes.known_as(node_id)]
    return any(selector.matches(each) for each in labels or [{}])


def label_hints(selector: Selector, nodes: Inventory) -> list[str]:
    """A sentence for each label in the selector that no known node has."""
    return [
        f"No node has the label {key}" + ("." if similar is None else f"; did you mean {similar}?")
        for key, similar in unknown_keys(selector, nodes.label_keys()).items()
    ]
