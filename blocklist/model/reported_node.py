"""What one source reports about a node: its names, addresses and labels. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from sys import intern
from types import MappingProxyType
from typing import Final, NamedTuple

from blocklist.model.errors import InvalidError
from blocklist.model.host_matching import normalize_address, normalize_name
from blocklist.model.node import check_node_id
from blocklist.model.selector import check_label_key, check_label_value

MAX_NAMES: Final = 16
"""Maximum number of further names, and of addresses, of a node in one report."""
MAX_LABELS: Final = 32
"""Maximum number of labels of a node in one report."""
_NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})


class SourceKind(IntEnum):
    """Who reports a node; the first one is believed where two differ."""

    FILE = 0
    MANAGER = 1
    AGENT = 2


class NodeSource(NamedTuple):
    """A source of nodes; `name` is the id of the listener. Sources are sorted in the order in which they count."""

    kind: SourceKind
    name: str


FILE_SOURCE: Final = NodeSource(SourceKind.FILE, "file")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportedNode:
    """A node as one source reports it. Make it with `make_reported_node`: names and addresses are in normal form."""

    id: str
    names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=lambda: _NO_LABELS)

    def aliases(self) -> set[str]:
        """The further names and the addresses."""
        return {*self.names, *self.addresses}

    @property
    def is_bare(self) -> bool:
        """Whether only the id is reported."""
        return not (self.names or self.addresses or self.labels)


def make_reported_node(
    node_id: str, names: Iterable[str] = (), addresses: Iterable[str] = (), labels: Mapping[str, str] | None = None
) -> ReportedNode:
    """A node as it is kept: validated, each name and address once, equal labels as one object.

    A name that is an address counts as one. Raises InvalidError with what is wrong, without the place.
    """
    check_node_id(node_id)
    given = [check_node_id(name) for name in names]
    found = {normalize_address(name) or _no_address(name) for name in addresses}
    found |= {address for name in given if (address := normalize_address(name)) is not None}
    further = {normalize_name(name) for name in given if normalize_address(name) is None} - {normalize_name(node_id)}
    found -= {normalize_address(node_id) or ""}
    _check_number("names", further, MAX_NAMES)
    _check_number("addresses", found, MAX_NAMES)
    _check_number("labels", labels or (), MAX_LABELS)
    return ReportedNode(
        id=node_id, names=tuple(sorted(further)), addresses=tuple(sorted(found)), labels=_checked_labels(labels or {})
    )


def node_ids(nodes: Iterable[str | ReportedNode]) -> list[str]:
    """The ids of reported nodes, some of which are only ids."""
    return [node if isinstance(node, str) else node.id for node in nodes]


def _checked_labels(labels: Mapping[str, str]) -> Mapping[str, str]:
    return dict(_checked_label(*label) for label in sorted(labels.items()))


@lru_cache(maxsize=4096)
def _checked_label(key: str, value: str) -> tuple[str, str]:
    # Thousands of nodes have the same labels: each is checked, and its text kept, once.
    return intern(check_label_key(key)), intern(check_label_value(value))


def _no_address(text: str) -> str:
    raise InvalidError(f"{text[:80]!a} is not an IP address.")


def _check_number(what: str, values: Collection[str], maximum: int) -> None:
    if len(values) > maximum:
        raise InvalidError(f"{len(values)} {what} are too many: at most {maximum} are allowed.")
