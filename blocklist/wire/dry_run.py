"""The bodies of dry runs: the effect that a change would have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from blocklist.wire.body import Body, Doc
from blocklist.wire.json import Json
from blocklist.wire.nodes import NodeBody

if TYPE_CHECKING:
    from blocklist.model.usable_nodes import Shortfall


@dataclass(kw_only=True)
class AffectedTaskManager(Body):
    """A TaskManager that is currently on the node."""

    id: str
    listener: str
    running_tasks: Annotated[int | None, Doc("Null if its listener does not report it.")]


@dataclass(kw_only=True)
class DryRunNode(Body):
    """The status of the response for one node, the node after the change, and the TaskManagers currently on it."""

    status: Annotated[Literal[200, 201, 202], Doc("201 blocked, 202 merged, 200 unblocked.")]
    node: NodeBody
    task_managers: list[AffectedTaskManager]
    known: Annotated[
        bool | None,
        Doc("Whether it was blocked, or a live listener reports it; null if none reports any nodes."),
    ] = None
    did_you_mean: Annotated[str | None, Doc("A similar node that a listener knows.")] = None
    ambiguous: Annotated[
        list[str], Doc("The nodes that claim this name or address, if several do: it means none of them.")
    ] = field(default_factory=list)


@dataclass(kw_only=True)
class ShortfallBody(Body):
    """A listener that would have fewer usable nodes than its minimum."""

    listener: str
    usable: int
    minimum: int


@dataclass(kw_only=True)
class DryRunBody(Body):
    """The effect that the change would have. Nothing was changed."""

    dry_run: Literal[True]
    nodes: list[DryRunNode]
    below_minimum: list[ShortfallBody]
    refused: Annotated[str | None, Doc("The error of the limit that would refuse the change.")]


def shortfall_body(shortfall: Shortfall) -> Json:
    """An entry of `belowMinimum`."""
    return {"listener": shortfall.listener, "usable": shortfall.usable, "minimum": shortfall.minimum}
