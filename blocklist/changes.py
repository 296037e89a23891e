"""What an operation on the list returns: a change, or the whole list as a snapshot. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from blocklist.node import BlockedNode


class ChangeType(StrEnum):
    """Blocked, merged or unblocked by request; expired by time."""

    BLOCKED = "blocked"
    MERGED = "merged"
    UNBLOCKED = "unblocked"
    EXPIRED = "expired"

    @property
    def frees(self) -> bool:
        """Whether the node is free after the change."""
        return self is ChangeType.UNBLOCKED or self is ChangeType.EXPIRED


class Source(StrEnum):
    """Which way a change came: by a request, from the page, from evidence, from Alertmanager, or by time."""

    REQUEST = "request"
    PAGE = "page"
    EVIDENCE = "evidence"
    ALERTMANAGER = "alertmanager"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Author:
    """Who asks for a change: a name where known, by which way, and why a limit was forced, if one was.

    `request_id` is of the request in which he does, as its log lines have it.
    """

    name: str | None = None
    source: Source = Source.REQUEST
    forced: str | None = None
    request_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One committed change of the list.

    `node` is the node after the change, for a change that frees it the node as it last was. `at` is the moment of
    the change in Unix milliseconds, `created_by` the name of who asked for it, where known, `forced` the reason that
    was given for going beyond a limit. `request_id` is known where the change was made, not kept in the log.
    """

    revision: int
    type: ChangeType
    at: int
    node: BlockedNode
    created_by: str | None = None
    forced: str | None = None
    source: Source | None = field(default=None, compare=False)
    request_id: str | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """The whole list at a revision of a history (eight hex digits; revisions of two histories do not compare)."""

    revision: int
    history: str
    nodes: Mapping[str, BlockedNode] = field(default_factory=lambda: MappingProxyType({}))
