"""Known nodes with labels, for the rules that need them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from blocklist.model.host_matching import NameIndex


class FakeNodes:
    """Known nodes with labels, known also by their short names."""

    def __init__(self, labels: Mapping[str, Mapping[str, str]]) -> None:
        self._labels = labels
        self._names = NameIndex(labels)

    def __iter__(self) -> Iterator[str]:
        return iter(self._labels)

    def spelling(self, node_id: str) -> str:
        return node_id.capitalize()

    def label_keys(self) -> Collection[str]:
        return {key for labels in self._labels.values() for key in labels}

    def known_as(self, node_id: str) -> Collection[str]:
        return set(self._names.matching(node_id))

    def labels_of(self, known_id: str) -> Mapping[str, str]:
        return self._labels[known_id]

    def count_with(self, key: str, value: str) -> int:
        return sum(labels.get(key) == value for labels in self._labels.values())
