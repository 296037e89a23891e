"""Preview: what a change would do, for the page that asks whether it is meant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.api.applied import TaskManager, there_now
from app.components import Service
from app.engine.handler import Command
from app.page.forms import Wish
from app.page.visitor import Visitor
from blocklist.model.draft import Draft
from blocklist.model.node import BlockedNode
from blocklist.model.usable_nodes import Below

_Result = dict[str, tuple[BlockedNode | None, BlockedNode | None]]
"""Node id to the node before and after; None where it is free."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Touched:
    """A node before and after (None: free), and what is there now; `tasks` is None where nobody has said."""

    id: str
    before: BlockedNode | None
    after: BlockedNode | None
    task_managers: Sequence[TaskManager]
    tasks: int | None

    @property
    def same(self) -> bool:
        return self.before == self.after


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """All of it. `refused` is the sentence with which a limit refuses it."""

    nodes: Sequence[Touched]
    below: Sequence[Below]
    refused: str | None

    @property
    def known(self) -> int:
        """How many of the nodes are blocked already."""
        return sum(node.before is not None for node in self.nodes)

    @property
    def task_managers(self) -> int:
        return sum(len(node.task_managers) for node in self.nodes)

    @property
    def tasks(self) -> int:
        return sum(node.tasks or 0 for node in self.nodes)

    @property
    def applications(self) -> int:
        return len({own.listener for node in self.nodes for own in node.task_managers})


async def preview_block(service: Service, wish: Wish, visitor: Visitor) -> Preview:
    """What blocking, or merging with what is there, would do. Raises InvalidError, UnavailableError."""

    def command(draft: Draft) -> _Result:
        return {
            node.id: (draft.blocked(node.id), draft.block(node, allow_merge=True)) for node in blocked(wish, draft.now)
        }

    return await _preview(service, visitor, command)


async def preview_unblock(service: Service, node_id: str, visitor: Visitor) -> Preview:
    """What unblocking would do. Raises NotFoundError, UnavailableError."""
    return await _preview(service, visitor, lambda draft: {node_id: (draft.unblock(node_id), None)})


def blocked(wish: Wish, now: int) -> list[BlockedNode]:
    """The nodes as they are to be. Raises InvalidError."""
    return [BlockedNode(id=own, action=wish.action, start=now, end=wish.end, cause=wish.cause) for own in wish.nodes]


async def _preview(service: Service, visitor: Visitor, command: Command[_Result]) -> Preview:
    rehearsed = service.guard.rehearsed(command, visitor.principal.access)
    rehearsal = (await service.handler.submit(rehearsed, visitor.author())).value
    touched = [_touched(service, own, *result) for own, result in rehearsal.value.items()]
    return Preview(nodes=touched, below=rehearsal.below, refused=rehearsal.refused)


def _touched(service: Service, node_id: str, before: BlockedNode | None, after: BlockedNode | None) -> Touched:
    there = there_now(service, node_id)
    tasks = [own.tasks for own in there if own.tasks is not None]
    return Touched(id=node_id, before=before, after=after, task_managers=there, tasks=sum(tasks) if tasks else None)
