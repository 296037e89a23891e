"""TrackedNodes: the nodes that were blocked since the start, and what was noticed about each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from app.notices.grouping import Event, NoticeKind, Subject
from blocklist.model.changes import Change, ChangeType, Source
from blocklist.model.node import BlockAction

_EVACUATES: Final = "with evacuation"
_CANARY: Final = "with a canary"


@dataclass(kw_only=True, slots=True)
class TrackedNode:
    """A blocked node, the revision of its last change, its author, and what was noticed since it was blocked."""

    revision: int
    cause: str
    by: str
    evacuates: bool
    canary: bool = False
    is_evacuated: bool = False
    refused_by: set[str] = field(default_factory=set)


class TrackedNodes:
    """Follows all changes; has an entry for each node that was blocked since the start, and no others."""

    def __init__(self) -> None:
        self._nodes: dict[str, TrackedNode] = {}

    def get(self, node_id: str) -> TrackedNode | None:
        """The node, if it was blocked since the start, and still is."""
        return self._nodes.get(node_id)

    def evacuating(self) -> list[tuple[str, TrackedNode]]:
        """The nodes on which something may still run."""
        return [(name, node) for name, node in self._nodes.items() if node.evacuates and not node.is_evacuated]

    def apply(self, changes: Iterable[Change]) -> list[Event]:
        """These changes were committed; what a notice is about."""
        return [event for change in changes if (event := self._apply(change)) is not None]

    def clear(self) -> None:
        """The list was read again: what changed meanwhile is unknown."""
        self._nodes.clear()

    def _apply(self, change: Change) -> Event | None:
        node, by = change.node, _author(change)
        if change.type.frees:
            self._nodes.pop(node.id, None)
            return _event(NoticeKind.FREED, change.type.value, change, by)
        evacuates = node.action is BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS
        before = self._nodes.get(node.id)
        if change.type is ChangeType.BLOCKED or before is None:
            self._nodes[node.id] = TrackedNode(
                revision=change.revision, cause=node.cause, by=by, evacuates=evacuates, canary=node.canary,
                # A merge into an older block: whether it was evacuated is not known.
                is_evacuated=change.type is not ChangeType.BLOCKED,
            )  # fmt: skip
            notable = change.type is ChangeType.BLOCKED
        else:
            # Most merges only extend a block, such as those of an alert that goes on firing: that is no news.
            notable = (evacuates and not before.evacuates) or (before.canary and not node.canary)
            before.revision, before.cause = change.revision, node.cause
            before.evacuates, before.canary = evacuates, node.canary
        what = _EVACUATES if evacuates else _CANARY if node.canary else ""
        return _event(NoticeKind.BLOCKED, what, change, by) if notable else None


def _author(change: Change) -> str:
    """Who made the change; what made it, if it was not a person."""
    automatic = str(change.source) if change.source in {Source.EVIDENCE, Source.ALERTMANAGER} else ""
    return change.created_by or automatic


def _event(kind: NoticeKind, what: str, change: Change, by: str) -> Event:
    return Event(Subject(kind, what, change.node.cause, by), change.node.id, change.at)
