"""The nodes on which a listener's tasks run: what is blocked there, and what still runs. Pure.

What a listener does not report is unknown, never zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from app.listeners.reports import TasksOnHost
from blocklist.model.node import BlockAction, BlockedNode, TaskCount


class HostState(StrEnum):
    """What happens to the tasks of a listener on a node. In the order in which people look at them."""

    REFUSED = "refused"
    EVACUATING = "evacuating"
    UNKNOWN = "unknown"
    PENDING = "not applied yet"
    LEFT_ALONE = "left alone"
    EMPTY = "empty"
    FREE = "free"


STATE_ORDER: Final = {state: place for place, state in enumerate(HostState)}
EXPLANATIONS: Final = {
    HostState.REFUSED: "The listener does not carry out the block.",
    HostState.EVACUATING: "Tasks that run there are being stopped and restart elsewhere.",
    HostState.UNKNOWN: "It is not known whether tasks run there.",
    HostState.PENDING: "The listener has not applied the last change of the block.",
    HostState.LEFT_ALONE: "No new tasks start there; those that run may finish.",
    HostState.EMPTY: "No task runs there.",
    HostState.FREE: "The node is not blocked.",
}


@dataclass(frozen=True, slots=True)
class BlockAtListener:
    """A block, whether the listener has applied its last change, and why it refuses the block, if it does."""

    node: BlockedNode
    applied: bool
    refused: str | None

    @property
    def evacuates(self) -> bool:
        return self.node.action is BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS


@dataclass(frozen=True, kw_only=True, slots=True)
class HostRow:
    """A node with TaskManagers of a listener; `block` is None if it is free."""

    node: str
    task_managers: int
    tasks: TaskCount
    block: BlockAtListener | None
    state: HostState

    @property
    def explanation(self) -> str:
        return EXPLANATIONS[self.state]

    @property
    def settled(self) -> bool:
        return is_settled(self.block, self.tasks)


def host_state(block: BlockAtListener | None, tasks: TaskCount, *, reports: bool) -> HostState:
    """What happens to the tasks; `reports` is whether the listener still reports them."""
    if block is None:
        return HostState.FREE
    if not reports:
        return HostState.UNKNOWN
    if block.refused is not None:
        return HostState.REFUSED
    if not block.applied:
        return HostState.PENDING
    if tasks.known:
        return HostState.EVACUATING if block.evacuates else HostState.LEFT_ALONE
    if tasks.unreported:
        return HostState.UNKNOWN
    return HostState.EMPTY


def is_settled(block: BlockAtListener | None, tasks: TaskCount) -> bool:
    """Whether the block is refused; or applied, and no task runs or may run there if the node is evacuated."""
    if block is None or block.refused is not None:
        return True
    return block.applied and not (block.evacuates and tasks.may_run)


def host_rows(
    hosts: Iterable[TasksOnHost], block_of: Callable[[str], BlockAtListener | None], *, reports: bool
) -> list[HostRow]:
    """The rows, those that need attention first; `block_of` returns the block of a node."""
    rows = []
    for host in hosts:
        block = block_of(host.node)
        state = host_state(block, host.tasks, reports=reports)
        rows.append(
            HostRow(node=host.node, task_managers=host.task_managers, tasks=host.tasks, block=block, state=state)
        )
    return sorted(rows, key=lambda row: (STATE_ORDER[row.state], -row.tasks.known, row.node))


def count_states(rows: Iterable[HostRow]) -> Sequence[tuple[HostState, int]]:
    """The number of blocked nodes in each state, without states that no node has."""
    counts = Counter(row.state for row in rows)
    return [(state, counts[state]) for state in HostState if counts[state] and state is not HostState.FREE]
