"""Multimap: texts by key. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet


class Multimap:
    """Texts by key; a key without any is not there.

    Almost every key has one text: a set for each would take four times the memory.
    """

    def __init__(self) -> None:
        self._values: dict[str, str | set[str]] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        """The keys, in the order in which they came."""
        return iter(self._values)

    def __getitem__(self, key: str) -> Collection[str]:
        """Those of a key, each once; none if the key is not there."""
        found = self._values.get(key, ())
        return (found,) if isinstance(found, str) else found

    def add(self, key: str, value: str) -> None:
        """Add a text to a key, if it is not there."""
        found = self._values.get(key)
        if found is None:
            self._values[key] = value
        elif isinstance(found, set):
            found.add(value)
        elif found != value:
            self._values[key] = {found, value}

    def discard(self, key: str, value: str) -> None:
        """Remove a text from a key, if it is there."""
        found = self._values.get(key)
        if isinstance(found, set):
            found.discard(value)
            if len(found) == 1:
                self._values[key] = found.pop()
        elif found == value:
            del self._values[key]

    def move(self, value: str, before: AbstractSet[str], after: AbstractSet[str]) -> None:
        """Move a text from some keys to others."""
        for key in before - after:
            self.discard(key, value)
        for key in after - before:
            self.add(key, value)
