"""What a dry run says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from blocklist.cli import messages
from blocklist.cli.output import print_message, print_stderr

if TYPE_CHECKING:
    from blocklist.wire.dry_run import DryRunBody, DryRunNode


def print_dry_run(result: DryRunBody, now: int) -> None:
    """Say what would be done. Raises Exit with code 1 where a limit would refuse it."""
    for entry in result.nodes:
        print_message(_node_message(entry, now))
        for task_manager in entry.task_managers:
            tasks = "an unknown number of" if task_manager.running_tasks is None else str(task_manager.running_tasks)
            print_message(f"  TaskManager {task_manager.id} of {task_manager.listener} is there, running {tasks} tasks")
    for below in result.below_minimum:
        print_message(
            f"{below.listener} would be left with {below.usable} usable nodes; its minimum is {below.minimum}"
        )
    if result.refused is not None:
        print_stderr(f"It would be refused: {result.refused}")
        raise typer.Exit(1)


def _node_message(entry: DryRunNode, now: int) -> str:
    node = entry.node.value()
    if entry.status == 200:
        return f"{node.id} would be unblocked"
    return messages.block_message(node, now, verb="would be blocked", merged=entry.status == 202)
