"""What an operation on the list returns: a change, or the whole list as a snapshot. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from blocklist.model.node import BlockedNode


class ChangeType(StrEnum):
    """Blocked, merged or unblocked by request; expired by time."""

    BLOCKED = "blocked"
    MERGED = "merged"
    UNBLOCKED = "unblocked"
    EXPIRED = "expired"

    def __init__(self, _: str) -> None:
        # Whether the node is free after the change. No property: it is asked several times of each change.
        self.frees = self in {"unblocked", "expired"}


class Source(StrEnum):
    """Which way a change came: by a request, from the page, from evidence, from Alertmanager, or by time."""

    REQUEST = "request"
    PAGE = "page"
    EVIDENCE = "evidence"
    ALERTMANAGER = "alertmanager"
    TIME = "time"


class Author(NamedTuple):
    """Who asks for a change: a name where known, by which way, and why a limit was forced, if one was.

    `request_id` is of the request in which he does, as its log lines have it.
    """

    name: str | None = None
    source: Source = Source.REQUEST
    forced: str | None = None
    request_id: str | None = None


@dataclass(kw_only=True, slots=True)
class Change:
    """One committed change of the list.

    `node` is the node after the change, for a change that frees it the node as it last was. `at` is the moment of
    the change in Unix milliseconds, `created_by` the name of who asked for it, where known, `forced` the reason that
    was given for going beyond a limit. `request_id` is known where the change was made, not kept in the log.
    """

    # Frozen by Final, that is by mypy: `frozen` makes each one at run time, too, and takes longer than all the rest.
    revision: Final[int]
    type: Final[ChangeType]
    at: Final[int]
    node: Final[BlockedNode]
    created_by: Final[str | None] = None
    forced: Final[str | None] = None
    source: Final[Source | None] = field(default=None, compare=False)
    request_id: Final[str | None] = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """The whole list at a revision of a history (eight hex digits; revisions of two histories do not compare)."""

    revision: int
    history: str
    nodes: Mapping[str, BlockedNode] = field(default_factory=lambda: MappingProxyType({}))
