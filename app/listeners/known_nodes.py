"""KnownNodes: whether any listener knows a node, and which known node was probably meant by an unknown one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain, islice
from string import ascii_lowercase, digits
from typing import Final

from app.engine.task_managers import TaskManagers
from app.listeners.usable_nodes import UsableNodes
from blocklist.model.errors import UnknownNodeError
from blocklist.model.host_matching import normalize_name
from blocklist.model.usable_nodes import NodeSet

MAX_SUGGESTIONS: Final = 5
"""Maximum number of suggestions for one request: each takes a few milliseconds of the event loop."""
MAX_LABEL: Final = 32
"""Maximum length of a first label, in characters, for which typing errors are tried."""
MAX_COMPARED: Final = 200
"""Maximum number of known nodes with each of which a name is compared."""
_CHARACTERS: Final = ascii_lowercase + digits + "-_"


@dataclass(frozen=True, slots=True)
class KnownNodes:
    """The nodes that live listeners report as theirs, None if none does, and the nodes of TaskManagers."""

    reported: NodeSet | None
    task_managers: TaskManagers

    @classmethod
    def now(cls, usable_nodes: UsableNodes, task_managers: TaskManagers) -> KnownNodes:
        """The nodes that are known at this moment."""
        return cls(usable_nodes.known(), task_managers)

    def __bool__(self) -> bool:
        """Whether any node is known."""
        return bool(self.reported) or bool(self.task_managers)

    def unknown(self, node_ids: Iterable[str]) -> dict[str, str | None]:
        """Those that no listener knows, with the node that was probably meant. Empty if no node is known at all."""
        unknown = [node_id for node_id in node_ids if not any(self._matching(node_id))] if self else []
        suggestions = [self._suggestion(node_id) for node_id in unknown[:MAX_SUGGESTIONS]]
        return dict.fromkeys(unknown) | dict(zip(unknown, suggestions, strict=False))

    def require(self, node_ids: Sequence[str]) -> None:
        """Raise UnknownNodeError if no listener knows one of these nodes, or if none reports any."""
        if node_ids and not self:
            raise UnknownNodeError("No listener reports any nodes, so it is unknown whether these nodes exist.")
        if unknown := self.unknown(node_ids):
            raise UnknownNodeError(*_error_of(unknown))

    def _matching(self, name: str) -> Iterator[str]:
        reported = () if self.reported is None else self.reported.names_matching(name)
        return chain(self.task_managers.nodes_matching(name), reported)

    def _suggestion(self, node_id: str) -> str | None:
        """A known node with one typing error in its first label; of few nodes, else the most similar one."""
        name = normalize_name(node_id)
        found: dict[str, str] = {}
        for candidate in _with_one_error(name):
            for known in islice(self._matching(candidate), 1):
                found[candidate] = known
        if not found:
            nodes = list(
                islice(
                    chain(self.task_managers.nodes, () if self.reported is None else self.reported.names),
                    MAX_COMPARED + 1,
                )
            )
            found = {normalize_name(node): node for node in nodes} if len(nodes) <= MAX_COMPARED else {}
            return _closest(name, found, cutoff=0.6)
        return _closest(name, found, cutoff=0)


def _closest(name: str, known: Mapping[str, str], cutoff: float) -> str | None:
    best = get_close_matches(name, sorted(known), n=1, cutoff=cutoff)
    return known[best[0]] if best else None


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


def _error_of(unknown: Mapping[str, str | None]) -> tuple[str, Sequence[str]]:
    lines = [
        f"No listener knows {node_id}" + ("." if suggestion is None else f"; did you mean {suggestion}?")
        for node_id, suggestion in unknown.items()
    ]
    return (lines[0] if len(lines) == 1 else f"No listener knows {len(lines)} of the nodes."), lines
