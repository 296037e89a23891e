"""The answer to a dry run: what the change would do, while nothing is done."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from blocklist.model.usable_nodes import Shortfall
from blocklist.wire.nodes import Body, Json, NodeBody


class AffectedTaskManager(Body):
    """A TaskManager that is on the node now."""

    id: str
    listener: str
    running_tasks: Annotated[int | None, Field(description="Null if its listener does not tell.")]


class DryRunNode(Body):
    """One node: how its change would be answered, the node after it (or as it last was), and what runs there now."""

    status: Annotated[Literal[200, 201, 202], Field(description="201 blocked, 202 merged, 200 unblocked.")]
    node: NodeBody
    task_managers: list[AffectedTaskManager]


class ShortfallBody(Body):
    """A listener that would have fewer usable nodes than its minimum."""

    listener: str
    usable: int
    minimum: int


class DryRunBody(Body):
    """What the change would do. Nothing was done."""

    dry_run: Literal[True]
    nodes: list[DryRunNode]
    below_minimum: list[ShortfallBody]
    refused: Annotated[str | None, Field(description="The sentence with which a limit would refuse it.")]


def shortfall_body(shortfall: Shortfall) -> Json:
    """As DryRunBody has it."""
    return {"listener": shortfall.listener, "usable": shortfall.usable, "minimum": shortfall.minimum}
