"""The state of a host on the map: one of a few, each with a colour, a sign and a word. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from blocklist.model.node import BlockAction, BlockedNode, TaskCount


class MapState(StrEnum):
    """What is known about a host. The value is its code in the page and in static/map.css."""

    REFUSED = "r"
    PENDING = "p"
    UNKNOWN = "u"
    EVACUATING = "e"
    EVACUATED = "d"
    MARKED = "m"
    NOT_READY = "n"
    FREE = "f"


@dataclass(frozen=True, slots=True)
class Legend:
    """How people read a state."""

    word: str
    explanation: str


LEGENDS: Final = {
    MapState.REFUSED: Legend("refused", "A listener does not carry out the block."),
    MapState.PENDING: Legend("not applied yet", "A listener has not applied the last change of the block."),
    MapState.UNKNOWN: Legend("unknown", "It is evacuated, but not known whether tasks run there."),
    MapState.EVACUATING: Legend("evacuating", "Tasks that run there are being stopped and restart elsewhere."),
    MapState.EVACUATED: Legend("evacuated", "It is evacuated, and no task runs there."),
    MapState.MARKED: Legend("no new tasks", "No new tasks start there; those that run may finish."),
    MapState.NOT_READY: Legend("not ready", "It is not blocked, but a listener reports that it gets no work."),
    MapState.FREE: Legend("free", "It is not blocked."),
}
"""In the order in which people look at them."""
UNSETTLED: Final = frozenset({MapState.PENDING, MapState.EVACUATING})
"""States that are expected to change soon, without a change of the list."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockReports:
    """What listeners report about a block. `complete` is whether all that may run tasks there report them."""

    refused: bool
    applied: bool
    tasks: TaskCount
    complete: bool


def state_of_blocked(node: BlockedNode, reports: BlockReports) -> MapState:
    """The state of a blocked host."""
    if reports.refused:
        return MapState.REFUSED
    if not reports.applied:
        return MapState.PENDING
    if node.action is BlockAction.MARK_BLOCKED:
        return MapState.MARKED
    if reports.tasks.known:
        return MapState.EVACUATING
    if reports.tasks.unreported or not reports.complete:
        return MapState.UNKNOWN
    return MapState.EVACUATED
