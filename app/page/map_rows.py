"""The rows of the map: hosts by rack, or by what else is known about them. Pure.

The group of a host is its label `rack`; without it `pool`; without it the zone; else its name up to the first number,
or of an address its network. Blocked hosts that nobody reports are groups of their own, as they may be misspelt.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from blocklist.model.names import normalize_address

MAX_ROW: Final = 200
"""Maximum number of hosts in a row; a group with more has several rows."""
_LABELS: Final = (
    ("rack", "rack"),
    ("pool", "pool"),
    ("zone", "zone"),
    ("zone", "topology.kubernetes.io/zone"),
)
"""Kinds of groups, each with the label that it comes from; the first that a host has counts."""
BY_NAME: Final = "name"
UNREPORTED: Final = "not reported"
_KINDS: Final = ("rack", "pool", "zone", BY_NAME, UNREPORTED)
_NUMBER: Final = re.compile(r"(\d+)", re.ASCII)


@dataclass(frozen=True, order=True, slots=True)
class Group:
    """A group of hosts: of which kind, and its name."""

    kind: str
    name: str

    @property
    def key(self) -> str:
        """Names it in a URL: `rack=r12`."""
        return f"{self.kind}={self.name}"


@dataclass(frozen=True, slots=True)
class MapRow:
    """A row: hosts of a group, in order. `part` of `parts` counts from 1."""

    group: Group
    hosts: Sequence[str]
    part: int
    parts: int


def group_of(host: str, labels: Mapping[str, str]) -> Group:
    """The group of a reported host."""
    for kind, label in _LABELS:
        if value := labels.get(label):
            return Group(kind, value)
    return Group(BY_NAME, _prefix(host))


def map_rows(hosts: Iterable[tuple[str, Group]]) -> list[MapRow]:
    """The rows: racks first, then pools, zones and names, each in natural order, as are the hosts in them."""
    groups = defaultdict[Group, list[str]](list)
    for host, group in hosts:
        groups[group].append(host)
    rows = []
    for group in sorted(groups, key=lambda each: (_KINDS.index(each.kind), natural_order(each.name))):
        members = sorted(groups[group], key=natural_order)
        parts = -(-len(members) // MAX_ROW)
        rows += [
            MapRow(group, members[part * MAX_ROW : (part + 1) * MAX_ROW], part + 1, parts) for part in range(parts)
        ]
    return rows


def natural_order(name: str) -> tuple[tuple[str, int, str], ...]:
    """A key that sorts `n2` before `n10`."""
    parts = _NUMBER.split(name.lower())
    numbers = [*parts[1::2], "0"]
    # The text as well, so that n1 and n01 have an order.
    return tuple((text, int(number), number) for text, number in zip(parts[::2], numbers, strict=True))


def _prefix(host: str) -> str:
    """`worker` of `worker-017.example.com`; the first part of an address."""
    if normalize_address(host) is not None:
        separator = ":" if ":" in host else "."
        return host.rsplit(separator, 1)[0] + separator
    label = host.split(".", 1)[0].lower()
    return _NUMBER.split(label, maxsplit=1)[0].rstrip("-_") or label
