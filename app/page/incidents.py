"""Incidents: blocks with one cause and one owner that were made close together. Pure.

Each block belongs to one incident. Its cause is that of the first part of the block's cause, as in the charts of the
history: text after a colon is a detail. Its owner is that of the block's oldest claim, up to a slash: each alert has an
owner of its own, and a storm of them is one incident. Blocks of one cause and owner are one incident as long as each
starts at most MAX_GAP_MS after the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from app.page.block_intervals import cause_group
from blocklist.model.node import BlockAction, BlockedNode

MAX_GAP_MS: Final = 15 * 60_000
"""Longest time between the starts of two blocks of one incident that follow each other, in milliseconds."""


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
class Incident:
    """The blocks of an incident, by their start. `owner` may be `alertmanager/*`, for all owners of this kind."""

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


def group_incidents(blocks: Iterable[OwnedBlock]) -> list[Incident]:
    """The incidents, the latest first."""
    groups: dict[tuple[str, str], list[BlockedNode]] = {}
    for block in blocks:
        groups.setdefault((cause_group(block.node.cause), block.owners), []).append(block.node)
    incidents = [
        Incident(cause=cause, owner=owner, nodes=nodes)
        for (cause, owner), members in groups.items()
        for nodes in _close_together(sorted(members, key=lambda node: (node.start, node.id)))
    ]
    return sorted(incidents, key=lambda incident: (-incident.last, incident.cause, incident.owner))


def _close_together(nodes: Sequence[BlockedNode]) -> Iterator[Sequence[BlockedNode]]:
    """Split nodes, sorted by their start, at each gap that is too long."""
    begin = 0
    for place in range(1, len(nodes)):
        if nodes[place].start - nodes[place - 1].start > MAX_GAP_MS:
            yield nodes[begin:place]
            begin = place
    yield nodes[begin:]
