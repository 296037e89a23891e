"""Preview: what a change would do, for the page that asks whether it is meant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.api.applied import TaskManager, task_managers_on
from app.components import Components
from app.engine.handler import Command
from app.page.forms import BlockForm
from app.page.visitor import Visitor
from blocklist.model.draft import Draft
from blocklist.model.node import BlockedNode
from blocklist.model.usable_nodes import Shortfall

_Result = dict[str, tuple[BlockedNode | None, BlockedNode | None]]
"""Node id to the node before and after; None where it is free."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePreview:
    """A node before and after (None: free), and what is there now; `tasks` is None where nobody has said."""

    id: str
    before: BlockedNode | None
    after: BlockedNode | None
    task_managers: Sequence[TaskManager]
    running_tasks: int | None

    @property
    def unchanged(self) -> bool:
        return self.before == self.after


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """All of it. `refused` is the sentence with which a limit refuses it."""

    nodes: Sequence[NodePreview]
    shortfalls: Sequence[Shortfall]
    limit_error: str | None

    @property
    def already_blocked(self) -> int:
        """How many of the nodes are blocked already."""
        return sum(node.before is not None for node in self.nodes)

    @property
    def task_managers(self) -> int:
        return sum(len(node.task_managers) for node in self.nodes)

    @property
    def running_tasks(self) -> int:
        return sum(node.running_tasks or 0 for node in self.nodes)

    @property
    def applications(self) -> int:
        return len({task_manager.listener for node in self.nodes for task_manager in node.task_managers})


async def preview_block(service: Components, requested: BlockForm, visitor: Visitor) -> Preview:
    """What blocking, or merging with what is there, would do. Raises InvalidError, UnavailableError."""

    def command(draft: Draft) -> _Result:
        return {
            node.id: (draft.get_blocked(node.id), draft.block(node, allow_merge=True))
            for node in nodes_to_block(requested, draft.now)
        }

    return await _preview(service, visitor, command)


async def preview_unblock(service: Components, node_id: str, visitor: Visitor) -> Preview:
    """What unblocking would do. Raises NotFoundError, UnavailableError."""
    return await _preview(service, visitor, lambda draft: {node_id: (draft.unblock(node_id), None)})


def nodes_to_block(requested: BlockForm, now: int) -> list[BlockedNode]:
    """The nodes as they are to be. Raises InvalidError."""
    return [
        BlockedNode(id=node_id, action=requested.action, start=now, end=requested.end, cause=requested.cause)
        for node_id in requested.nodes
    ]


async def _preview(service: Components, visitor: Visitor, command: Command[_Result]) -> Preview:
    dry_run = service.limit_guard.dry_run(command, visitor.principal.role)
    result = (await service.handler.submit(dry_run, visitor.author())).value
    nodes = [_node_preview(service, node_id, *states) for node_id, states in result.value.items()]
    return Preview(nodes=nodes, shortfalls=result.shortfalls, limit_error=result.refusal)


def _node_preview(
    service: Components, node_id: str, before: BlockedNode | None, after: BlockedNode | None
) -> NodePreview:
    task_managers = task_managers_on(service, node_id)
    tasks = [each.running_tasks for each in task_managers if each.running_tasks is not None]
    return NodePreview(
        id=node_id, before=before, after=after, task_managers=task_managers, running_tasks=sum(tasks) if tasks else None
    )
