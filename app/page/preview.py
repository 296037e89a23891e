"""What a change would do, shown before it is confirmed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.api.applied import TaskManager, task_managers_on
from app.api.dry_run import known_nodes
from app.components import Components
from app.engine.handler import Command
from app.page.forms import BlockForm
from app.page.visitor import Visitor
from blocklist.model.draft import Draft, check_distinct
from blocklist.model.node import BlockedNode
from blocklist.model.task_count import TaskCount
from blocklist.model.usable_nodes import Shortfall

_Result = dict[str, tuple[BlockedNode | None, BlockedNode | None]]
"""Node id to the node before and after; None if it is not blocked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePreview:
    """A node before and after (None: not blocked), and what runs there."""

    id: str
    before: BlockedNode | None
    after: BlockedNode | None
    task_managers: Sequence[TaskManager]

    @property
    def tasks(self) -> TaskCount:
        return TaskCount.of(each.running_tasks for each in self.task_managers)

    @property
    def unchanged(self) -> bool:
        return self.before == self.after


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """The effects of a change. `limit_error` is the message if a limit rejects it.

    `unknown` are the nodes that no listener knows, with a similar node that one knows, or None.
    """

    nodes: Sequence[NodePreview]
    shortfalls: Sequence[Shortfall]
    limit_error: str | None
    unknown: Mapping[str, str | None]

    @property
    def already_blocked(self) -> int:
        """The number of nodes that are already blocked."""
        return sum(node.before is not None for node in self.nodes)

    @property
    def task_managers(self) -> int:
        return sum(len(node.task_managers) for node in self.nodes)

    @property
    def tasks(self) -> TaskCount:
        return TaskCount.of(each.running_tasks for node in self.nodes for each in node.task_managers)

    @property
    def applications(self) -> int:
        return len({task_manager.listener for node in self.nodes for task_manager in node.task_managers})


async def preview_block(components: Components, requested: BlockForm, visitor: Visitor) -> Preview:
    """Preview blocking nodes, or merging with existing blocks. Raises InvalidError, UnavailableError."""
    check_distinct(requested.nodes)

    def command(draft: Draft) -> _Result:
        return {
            node.id: (draft.get_blocked(node.id), draft.block(node, allow_merge=True))
            for node in nodes_to_block(requested, draft.now)
        }

    return await _preview(components, visitor, command)


async def preview_unblock(components: Components, node_id: str, visitor: Visitor) -> Preview:
    """Preview unblocking a node. Raises NotFoundError, UnavailableError."""
    return await _preview(components, visitor, lambda draft: {node_id: (draft.unblock(node_id), None)})


def nodes_to_block(requested: BlockForm, now: int) -> list[BlockedNode]:
    """The requested blocks. Raises InvalidError."""
    return [
        BlockedNode(id=node_id, action=requested.action, start=now, end=requested.end, cause=requested.cause)
        for node_id in requested.nodes
    ]


async def _preview(components: Components, visitor: Visitor, command: Command[_Result]) -> Preview:
    dry_run = components.engine.limit_guard.dry_run(command, visitor.principal.role)
    result = (await components.engine.handler.submit(dry_run, visitor.author())).value
    nodes = [
        NodePreview(id=node_id, before=before, after=after, task_managers=task_managers_on(components, node_id))
        for node_id, (before, after) in result.value.items()
    ]
    unknown = known_nodes(components).unknown(node.id for node in nodes if node.before is None)
    return Preview(nodes=nodes, shortfalls=result.shortfalls, limit_error=result.refusal, unknown=unknown)
