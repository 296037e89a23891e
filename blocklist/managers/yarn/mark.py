"""The node labels by which the manager marks a node, and what they remember. Pure.

A node of YARN has one label. While the manager's label is on it, the label's name holds what the manager found: the
node's own label, and during an evacuation its resources. So nothing is lost if the manager is killed at any moment, or
starts again on another machine: the ResourceManager stores labels, and the next manager reads the name.

`blocklist` marks a node without a label of its own, `blocklist--gpu` one with the label `gpu`, and
`blocklist-restore-8192-4--gpu` one that is being evacuated and has 8192 MB and 4 vcores. Of each further resource the
name and the unit follow in hexadecimal digits, and its value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

DEFAULT_LABEL: Final = "blocklist"
MAX_LABEL_LENGTH: Final = 255
"""Of YARN, in characters."""
_LABEL: Final = re.compile("[0-9A-Za-z][0-9A-Za-z_-]*", re.ASCII)
_OWN: Final = "--"
_RESTORE: Final = "-restore-"
_CAPACITY: Final = re.compile("([0-9]+)-([0-9]+)((?:-[0-9a-f]+-[0-9]+)*)", re.ASCII)
_FURTHER: Final = re.compile("-([0-9a-f]+)-([0-9]+)", re.ASCII)


class Further(NamedTuple):
    """A resource besides memory and vcores, such as yarn.io/gpu, in YARN's unit."""

    name: str
    unit: str
    value: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Capacity:
    """The resources of a node."""

    megabytes: int
    vcores: int
    further: Sequence[Further] = ()

    @property
    def is_zero(self) -> bool:
        return self.megabytes == self.vcores == 0

    def __str__(self) -> str:
        return ", ".join(
            [f"{self.megabytes} MB", f"{self.vcores} vcores", *(f"{it.value} {it.name}" for it in self.further)]
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeMark:
    """What a label of the manager remembers: the node's own label, empty if it has none, and its resources.

    `capacity` is None except during an evacuation.
    """

    own: str = ""
    capacity: Capacity | None = None

    @property
    def lasting(self) -> NodeMark:
        """The mark after the evacuation."""
        return replace(self, capacity=None)


class MarkLabels:
    """The names of the manager's labels: all begin with `prefix`. Raises ValueError for an invalid one."""

    def __init__(self, prefix: str = DEFAULT_LABEL) -> None:
        # With a final `-` the own label would begin one character too early.
        if not _LABEL.fullmatch(prefix) or len(prefix) > 64 or _OWN in prefix or prefix.endswith("-"):
            raise ValueError(
                f"{prefix[:64]!a} is not the name of a node label: at most 64 letters, digits, _ and single - between"
                " them."
            )
        self.prefix = prefix

    def name(self, mark: NodeMark) -> str | None:
        """The label for this mark; None if its name would be longer than YARN allows."""
        name = self.prefix
        if mark.capacity is not None:
            name += _RESTORE + _encode(mark.capacity)
        if mark.own:
            name += _OWN + mark.own
        return name if len(name) <= MAX_LABEL_LENGTH else None

    def mark(self, label: str) -> NodeMark | None:
        """What this label remembers; None if it is not one of the manager's."""
        head, separator, own = label.partition(_OWN)
        if bool(separator) != bool(own):
            return None
        if head == self.prefix:
            return NodeMark(own=own)
        if not head.startswith(self.prefix + _RESTORE):
            return None
        capacity = _decode(head.removeprefix(self.prefix + _RESTORE))
        return None if capacity is None else NodeMark(own=own, capacity=capacity)


def _encode(capacity: Capacity) -> str:
    further = [f"{f'{it.name}|{it.unit}'.encode().hex()}-{it.value}" for it in capacity.further]
    return "-".join([str(capacity.megabytes), str(capacity.vcores), *further])


def _decode(text: str) -> Capacity | None:
    if not (found := _CAPACITY.fullmatch(text)):
        return None
    further = []
    for digits, value in _FURTHER.findall(found[3]):
        try:
            name, _, unit = bytes.fromhex(digits).decode().rpartition("|")
        except ValueError:
            return None
        further.append(Further(name, unit, int(value)))
    return Capacity(megabytes=int(found[1]), vcores=int(found[2]), further=tuple(further))
