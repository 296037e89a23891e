"""The list by cause and owner: how many nodes each group has, where, and which listeners have applied all of it.

The cause of a group is the first part of a block's cause, as in the charts of the history: text after a colon is a
detail. The owner is that of the block's oldest claim, up to a slash: each alert has an owner of its own, and a storm of
them is one group.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from app.api.applied import task_managers_on
from app.listeners.state import ListenerEntry
from app.page.block_intervals import cause_group
from app.page.list_model import ListFilter, authors_of, matching_nodes
from app.page.shared import SharedValues, in_turns
from app.service import Service
from blocklist.model.claims import ANONYMOUS
from blocklist.model.node import BlockAction, BlockedNode, TaskCount
from blocklist.model.tracker import claims_on, find_blocked

PAGE_SIZE: Final = 30
"""Groups of a page."""
MAX_AGE_MS: Final = 2000
"""All visitors share one computation for this long, unless the list changes."""
RACK_LABEL: Final = "rack"


@dataclass(frozen=True, slots=True)
class OwnedBlock:
    """A block, and the owner of its oldest claim."""

    node: BlockedNode
    owner: str

    @property
    def owners(self) -> str:
        """`alertmanager/*` for `alertmanager/809c736d`: all owners of this kind; any other owner as it is."""
        kind, slash, _ = self.owner.partition("/")
        return f"{kind}/*" if slash else kind


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockGroup:
    """The blocks of a group, by their start. `owner` may be `alertmanager/*`, for all owners of this kind."""

    cause: str
    owner: str
    nodes: Sequence[BlockedNode]

    @property
    def common_cause(self) -> str | None:
        """The whole cause of each block; None if they differ in details or further causes."""
        causes = {node.cause for node in self.nodes}
        return causes.pop() if len(causes) == 1 else None

    @property
    def first(self) -> int:
        """The earliest start (Unix ms)."""
        return self.nodes[0].start

    @property
    def last(self) -> int:
        """The latest start (Unix ms)."""
        return self.nodes[-1].start

    @property
    def earliest_end(self) -> int:
        return min(node.end for node in self.nodes)

    @property
    def latest_end(self) -> int:
        return max(node.end for node in self.nodes)

    @property
    def evacuated(self) -> int:
        """The number of nodes that are evacuated."""
        return sum(node.action is BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS for node in self.nodes)

    @property
    def canaries(self) -> int:
        """The number of nodes on which an executor of each Spark application may stay."""
        return sum(node.canary for node in self.nodes)


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupRow:
    """A group as it is shown. `racks` has the number of nodes of each rack, `no_rack` those whose rack is not known.

    Of the `listeners` that are live, `pending` have not applied the last change of each of its nodes yet, and `refused`
    do not carry out a block of it.
    """

    group: BlockGroup
    racks: Sequence[tuple[str, int]]
    no_rack: int
    listeners: int
    pending: Sequence[str]
    refused: Sequence[str]
    task_managers: int
    tasks: TaskCount

    @property
    def applied(self) -> int:
        """The number of listeners that have applied the whole group."""
        return self.listeners - len(self.pending) - len(self.refused)

    @property
    def settled(self) -> bool:
        """All listeners have applied it, and no task runs on a node that is evacuated."""
        return self.applied == self.listeners and not (self.group.evacuated and self.tasks.may_run)


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupedPage:
    """A page of the groups of the `matched` nodes, of all that are `blocked`, at a revision; `total` counts groups."""

    rows: Sequence[GroupRow]
    filter: ListFilter
    revision: int
    blocked: int
    matched: int
    total: int
    authors: Sequence[str]

    @property
    def pages(self) -> int:
        return _pages(self.total)

    @property
    def settled(self) -> bool:
        return all(row.settled for row in self.rows)


async def grouped_page(service: Service, shared: SharedValues, list_filter: ListFilter) -> GroupedPage:
    """The groups of the nodes that match, at most MAX_AGE_MS old and with all changes of the list."""

    async def compute() -> GroupedPage:
        revision, groups = service.view.tracker.revision, await groups_of(service, list_filter)
        page = min(list_filter.page, _pages(len(groups)))
        refused = await refused_nodes(service)
        shown = groups[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]
        nodes = list(service.view.tracker.blocked(service.clock()).values())
        return GroupedPage(
            rows=[await _row(service, group, refused) for group in shown],
            filter=list_filter.at_page(page),
            revision=revision,
            blocked=len(nodes),
            matched=sum(len(group.nodes) for group in groups),
            total=len(groups),
            authors=authors_of(service, nodes),
        )

    # Whoever has just changed something sees the change.
    key = "groups", list_filter, service.view.tracker.revision
    return await shared.get(key, compute, lambda _: MAX_AGE_MS)


async def groups_of(service: Service, list_filter: ListFilter) -> list[BlockGroup]:
    """The groups of the nodes that match."""
    tracker, now = service.view.tracker, service.clock()
    blocks = []
    async for node in in_turns(matching_nodes(service, list_filter)):
        claims = claims_on(tracker, node, now) if tracker.get(node.id) is node else ()
        blocks.append(OwnedBlock(node, claims[0].owner if claims else ANONYMOUS))
    # In a thread, because of 10,000 blocks this takes some 25 ms.
    return await asyncio.to_thread(group_blocks, blocks)


def group_blocks(blocks: Iterable[OwnedBlock]) -> list[BlockGroup]:
    """The groups, the one with the latest block first."""
    groups: dict[tuple[str, str], list[BlockedNode]] = {}
    for block in blocks:
        groups.setdefault((cause_group(block.node.cause), block.owners), []).append(block.node)
    found = [
        BlockGroup(cause=cause, owner=owner, nodes=sorted(nodes, key=lambda node: (node.start, node.id)))
        for (cause, owner), nodes in groups.items()
    ]
    return sorted(found, key=lambda group: (-group.last, group.cause, group.owner))


async def refused_nodes(service: Service) -> list[tuple[ListenerEntry, set[str]]]:
    """The live listeners, by id, with the blocked nodes that each refuses under any name."""
    tracker, now = service.view.tracker, service.clock()
    found = []
    for entry in sorted(service.directory.live(), key=lambda entry: entry.id):
        nodes = set[str]()
        async for name in in_turns(list(entry.refused)):
            nodes.update(node.id for node in find_blocked(tracker, name, now))
        found.append((entry, nodes))
    return found


async def _row(service: Service, group: BlockGroup, refused: Sequence[tuple[ListenerEntry, set[str]]]) -> GroupRow:
    newest = service.view.tracker.revision
    revision, racks, running, task_managers = 0, Counter[str](), list[int | None](), 0
    async for node in in_turns(group.nodes):
        revision = max(revision, service.last_changes.revision_of(node.id, newest))
        racks[service.inventory.labels_of(node.id).get(RACK_LABEL, "")] += 1
        there = task_managers_on(service, node.id)
        task_managers += len(there)
        running += [each.running_tasks for each in there]
    names = {node.id for node in group.nodes}
    refusing = [entry.id for entry, nodes in refused if entry.has_confirmed(revision) and not names.isdisjoint(nodes)]
    no_rack = racks.pop("", 0)
    return GroupRow(
        group=group,
        racks=sorted(racks.items(), key=lambda rack: (-rack[1], rack[0])),
        no_rack=no_rack,
        listeners=len(refused),
        pending=[entry.id for entry, _ in refused if not entry.has_confirmed(revision)],
        refused=refusing,
        task_managers=task_managers,
        tasks=TaskCount.of(running),
    )


def _pages(groups: int) -> int:
    return max(1, -(-groups // PAGE_SIZE))
