"""What a dry run says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from blocklist.cli import messages
from blocklist.cli.output import note, sentence

if TYPE_CHECKING:
    from blocklist.wire.dry_run import DryRunBody, DryRunNode


def tell(rehearsed: DryRunBody, at: int) -> None:
    """Say what would be done. Raises Exit with code 1 where a limit would refuse it."""
    for one in rehearsed.nodes:
        sentence(_would(one, at))
        for own in one.task_managers:
            tasks = "an unknown number of" if own.running_tasks is None else str(own.running_tasks)
            sentence(f"  TaskManager {own.id} of {own.listener} is there, running {tasks} tasks")
    for below in rehearsed.below_minimum:
        sentence(f"{below.listener} would be left with {below.usable} usable nodes; its minimum is {below.minimum}")
    if rehearsed.refused is not None:
        note(f"It would be refused: {rehearsed.refused}")
        raise typer.Exit(1)


def _would(one: DryRunNode, at: int) -> str:
    node = one.node.value()
    if one.status == 200:
        return f"{node.id} would be unblocked"
    return messages.blocked(node, at, how="would be blocked", merged=one.status == 202)
