"""Which blocked nodes `list` shows, and in which order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blocklist.model.listing import NodeDetails


class ActionName(StrEnum):
    """The actions as tables show them."""

    MARK = "mark"
    EVACUATE = "evacuate"


class SortKey(StrEnum):
    """The values of --sort."""

    NODE = "node"
    REMAINING = "remaining"
    EXPIRES = "expires"
    SINCE = "since"
    OWNER = "owner"
    BY = "by"
    REASON = "reason"
    ACTION = "action"


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockFilter:
    """What a block must satisfy to be shown; None is satisfied by each."""

    by: str | None = None
    owner: str | None = None
    reason: str | None = None
    action: ActionName | None = None

    def apply(self, nodes: Iterable[NodeDetails], sort: SortKey) -> list[NodeDetails]:
        """The nodes that match, in order; nodes that are equal there stay in order of their ids."""
        return sorted(filter(self._matches, nodes), key=lambda node: _sort_value(node, sort))

    def _matches(self, listed: NodeDetails) -> bool:
        return (
            self.by in (None, listed.created_by)
            and (self.owner is None or any(_is_owner(owner, self.owner) for owner in owners_of(listed)))
            and (self.reason is None or self.reason.casefold() in listed.node.cause.casefold())
            and self.action in (None, listed.node.action.short_name)
        )


def owners_of(listed: NodeDetails) -> tuple[str, ...]:
    """The owners of its claims; the author of the last change where they are not known, as in the past."""
    return listed.owners or ((listed.created_by,) if listed.created_by else ())


def _is_owner(owner: str, pattern: str) -> bool:
    return owner.startswith(pattern[:-1]) if pattern.endswith("*") else owner == pattern


def _sort_value(listed: NodeDetails, sort: SortKey) -> tuple[int, str]:
    match sort:
        case SortKey.EXPIRES | SortKey.REMAINING:
            return listed.node.end, ""
        case SortKey.SINCE:
            return listed.node.start, ""
        case SortKey.OWNER:
            return 0, ",".join(owners_of(listed))
        case SortKey.BY:
            return 0, listed.created_by or ""
        case SortKey.REASON:
            return 0, listed.node.cause
        case SortKey.ACTION:
            return 0, listed.node.action.short_name
        case SortKey.NODE:
            return 0, listed.node.id
