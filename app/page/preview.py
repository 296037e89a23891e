"""What a change would do, shown before it is confirmed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.api.applied import TaskManager, task_managers_on
from app.engine.handler import Command
from app.page.forms import BlockForm
from app.page.visitor import Visitor
from app.service import Service
from blocklist.model.draft import Draft
from blocklist.model.errors import ConflictError
from blocklist.model.node import BlockedNode, TaskCount
from blocklist.model.tracker import claims_on
from blocklist.model.usable_nodes import Shortfall

PreviewResult = tuple[str, dict[str, tuple[BlockedNode | None, BlockedNode | None]]]
"""What `seen_of` returns, and node id to the node before and after; None if it is not blocked."""


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

    `unknown` are the nodes that no listener knows, with a similar node that one knows, or None. `ambiguous` are those
    that several nodes claim, with the ids of these. `seen` identifies the blocks and claims on which the preview is
    based: a confirmation is for these only.
    """

    nodes: Sequence[NodePreview]
    shortfalls: Sequence[Shortfall]
    limit_error: str | None
    unknown: Mapping[str, str | None]
    ambiguous: Mapping[str, Sequence[str]]
    seen: str

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


async def preview_block(service: Service, requested: BlockForm, visitor: Visitor) -> Preview:
    """Preview blocking nodes, or merging with existing blocks. Raises InvalidError, UnavailableError."""

    def command(draft: Draft) -> PreviewResult:
        return seen_of(draft, requested.nodes), {
            node.id: (draft.get_blocked(node.id), draft.block(node, allow_merge=True))
            for node in nodes_to_block(requested, draft.now)
        }

    return await preview_command(service, visitor, command)


async def preview_unblock(service: Service, node_id: str, visitor: Visitor) -> Preview:
    """Preview unblocking a node. Raises NotFoundError, UnavailableError."""

    def command(draft: Draft) -> PreviewResult:
        return seen_of(draft, [node_id]), {node_id: (draft.unblock(node_id), None)}

    return await preview_command(service, visitor, command)


def check_seen(draft: Draft, node_ids: Iterable[str], seen: str) -> None:
    """Raise ConflictError unless these nodes are as in the preview with this `seen`."""
    if seen_of(draft, node_ids) != seen:
        raise ConflictError("Someone has changed this since the preview was shown.", {})


def nodes_to_block(requested: BlockForm, now: int) -> list[BlockedNode]:
    """The requested blocks. Raises InvalidError."""
    return [
        BlockedNode(id=node_id, action=requested.action, start=now, end=requested.end, cause=requested.cause)
        for node_id in requested.nodes
    ]


def seen_of(draft: Draft, node_ids: Iterable[str]) -> str:
    """Identifies the blocks of these nodes with all claims: another owner's claim may leave a block as it was."""
    blocks = [draft.get_blocked(node_id) for node_id in node_ids]
    state = [None if node is None else (node, claims_on(draft, node, draft.now)) for node in blocks]
    return hashlib.sha256(repr(state).encode()).hexdigest()[:16]


async def preview_command(service: Service, visitor: Visitor, command: Command[PreviewResult]) -> Preview:
    """Preview a command. Raises what it raises, UnavailableError."""
    dry_run = service.limit_guard.dry_run(command, visitor.principal.role)
    result = (await service.handler.submit(dry_run, visitor.author())).value
    seen, effects = result.value
    nodes = [
        NodePreview(id=node_id, before=before, after=after, task_managers=task_managers_on(service, node_id))
        for node_id, (before, after) in effects.items()
    ]
    known, created = service.known_nodes, [node.id for node in nodes if node.before is None]
    return Preview(
        nodes=nodes,
        shortfalls=result.shortfalls,
        limit_error=result.refusal,
        unknown=known.unknown(created),
        ambiguous=known.ambiguous(created),
        seen=seen,
    )
