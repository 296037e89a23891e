"""KnownNodes: whether anybody knows a node, and which known node was probably meant by an unknown one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product
from string import ascii_lowercase, digits
from typing import Final

from blocklist.model.errors import UnknownNodeError
from blocklist.model.host_matching import ambiguous_message, normalize_name
from blocklist.model.inventory import Inventory

MAX_SUGGESTIONS: Final = 5
"""Maximum number of suggestions for one request: each takes a few milliseconds of the event loop."""
MAX_LABEL: Final = 32
"""Maximum length of a first label, in characters, for which typing errors are tried."""
MAX_COMPARED: Final = 200
"""Maximum number of known nodes with each of which a name is compared."""
_LOOK_ALIKE: Final = {"o": "o0", "0": "0o", "l": "l1", "1": "1l", "i": "i1"}
"""Characters that look alike: `worker-O1O` is meant to be worker-010, rather than worker-019."""
_MAX_LOOK_ALIKE: Final = 6
"""Maximum number of such characters, the last ones of a name, that are tried: each doubles the number of names."""
_CHARACTERS: Final = ascii_lowercase + digits + "-_"


@dataclass(frozen=True, slots=True)
class KnownNodes:
    """The nodes of the inventory: all that listeners or the file of nodes name."""

    inventory: Inventory

    def __bool__(self) -> bool:
        """Whether any node is known."""
        return bool(self.inventory)

    def ambiguous(self, node_ids: Iterable[str]) -> dict[str, list[str]]:
        """Those that mean no node, because several claim them, with the ids of these."""
        claimed = {node_id: self.inventory.claimants(node_id) for node_id in node_ids}
        return {node_id: [*map(self.inventory.spelling, sorted(ids))] for node_id, ids in claimed.items() if ids}

    def unknown(self, node_ids: Iterable[str]) -> dict[str, str | None]:
        """Those that no listener knows, with the node that was probably meant. Empty if no node is known at all."""
        unknown = [node_id for node_id in node_ids if self and not self._is_named(node_id)]
        suggestions = [self._suggestion(node_id) for node_id in unknown[:MAX_SUGGESTIONS]]
        return dict.fromkeys(unknown) | dict(zip(unknown, suggestions, strict=False))

    def require(self, node_ids: Sequence[str]) -> None:
        """Raise UnknownNodeError if one of these nodes is unknown or ambiguous, or if no node is known at all."""
        if node_ids and not self:
            raise UnknownNodeError("No listener reports any nodes, so it is unknown whether these nodes exist.")
        lines = [_unknown_line(*item) for item in self.unknown(node_ids).items()]
        lines += [ambiguous_message(*item) for item in self.ambiguous(node_ids).items()]
        if lines:
            raise UnknownNodeError(
                lines[0] if len(lines) == 1 else f"No listener knows {len(lines)} of the nodes.", lines
            )

    def suggestion(self, node_id: str) -> str | None:
        """The known node that was probably meant; None if there is none, or the node is known."""
        return self.unknown([node_id]).get(node_id)

    def _is_named(self, node_id: str) -> bool:
        return bool(self.inventory.known_as(node_id) or self.inventory.claimants(node_id))

    def _suggestion(self, node_id: str) -> str | None:
        """A known node with one typing error in its first label; of few nodes, else the most similar one."""
        name = normalize_name(node_id)
        for candidate in _look_alikes(name):
            if known := self.inventory.known_as(candidate):
                return self.inventory.spelling(min(known))
        found: dict[str, str] = {}
        for candidate in _with_one_error(name):
            if known := self.inventory.known_as(candidate):
                found[candidate] = self.inventory.spelling(min(known))
        if not found:
            few = len(self.inventory) <= MAX_COMPARED
            found = {node: self.inventory.spelling(node) for node in self.inventory} if few else {}
            return _closest(name, found, cutoff=0.6)
        return _closest(name, found, cutoff=0)


def _closest(name: str, known: Mapping[str, str], cutoff: float) -> str | None:
    best = get_close_matches(name, sorted(known), n=1, cutoff=cutoff)
    return known[best[0]] if best else None


def _look_alikes(name: str) -> Iterator[str]:
    """The names that look like this one, itself included; none for a long one."""
    if len(name.partition(".")[0]) > MAX_LABEL:
        return
    places = [place for place, character in enumerate(name) if character in _LOOK_ALIKE][-_MAX_LOOK_ALIKE:]
    characters = list(name)
    for choice in product(*(_LOOK_ALIKE[name[place]] for place in places)):
        for place, character in zip(places, choice, strict=True):
            characters[place] = character
        yield "".join(characters)


def _with_one_error(name: str) -> set[str]:
    """The names that differ in one character of the first label: left out, added, wrong, or swapped with the next."""
    label, dot, domain = name.partition(".")
    if len(label) > MAX_LABEL or ":" in name:
        return set()
    splits = [(label[:i], label[i:]) for i in range(len(label) + 1)]
    labels = {
        *(left + right[1:] for left, right in splits if right),
        *(left + right[1] + right[0] + right[2:] for left, right in splits if len(right) > 1),
        *(left + character + right[1:] for left, right in splits if right for character in _CHARACTERS),
        *(left + character + right for left, right in splits for character in _CHARACTERS),
    }
    return {label + dot + domain for label in labels if label}


def _unknown_line(node_id: str, suggestion: str | None) -> str:
    return f"No listener knows {node_id}" + ("." if suggestion is None else f"; did you mean {suggestion}?")
