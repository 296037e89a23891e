"""Changes of the list, and snapshots of it. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from blocklist.model.claims import Claims, Repeat
from blocklist.model.node import BlockedNode


class ChangeType(StrEnum):
    """Blocked, merged or unblocked by request; expired by time; narrowed when a claim ends and others remain."""

    BLOCKED = "blocked"
    MERGED = "merged"
    NARROWED = "narrowed"
    UNBLOCKED = "unblocked"
    EXPIRED = "expired"

    def __init__(self, _: str) -> None:
        # Whether the node is not blocked after the change. An attribute, as it is read several times per change.
        self.frees = self in {"unblocked", "expired"}


class Source(StrEnum):
    """What made a change: an API request, the page, evidence, Alertmanager, another machine of the node's name, or time
    (expiry).
    """

    REQUEST = "request"
    PAGE = "page"
    EVIDENCE = "evidence"
    ALERTMANAGER = "alertmanager"
    REPLACEMENT = "replacement"
    TIME = "time"


class Author(NamedTuple):
    """The author of a change: name if known, source, and the reason if the change bypasses limits.

    `request_id` is the id of the request in its log lines.
    """

    name: str | None = None
    source: Source = Source.REQUEST
    forced: str | None = None
    request_id: str | None = None


@dataclass(kw_only=True, slots=True)
class Change:
    """One committed change of the list.

    `node` is the node after the change; after unblocking or expiry, the node as it was last blocked, but not as a
    canary, which the log knows by its claims. `at` is the time of the change in Unix milliseconds, `created_by` the
    author's name if known, `forced` the reason for bypassing limits. `claims` are those after the change;
    `dismissed` are those of automatic owners that unblocking removed. `request_id` is only known to the process that
    made the change; the change log does not keep it.
    """

    # Final (checked by mypy) instead of `frozen`, which would dominate the time to create a change.
    revision: Final[int]
    type: Final[ChangeType]
    at: Final[int]
    node: Final[BlockedNode]
    created_by: Final[str | None] = None
    forced: Final[str | None] = None
    claims: Final[Claims] = ()
    dismissed: Final[Claims] = ()
    source: Final[Source | None] = field(default=None, compare=False)
    request_id: Final[str | None] = field(default=None, compare=False)

    @property
    def repeat(self) -> Repeat | None:
        """Why the block lasts longer than usual, if it is a repeated automatic one; the last of several claims."""
        repeats = (claim.repeat for claim in reversed(self.claims))
        return next((repeat for repeat in repeats if repeat is not None), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """The whole list at a revision of a history (eight hex digits; revisions of two histories do not compare).

    `claims` are those of each node; where they are not known, as in a client, `anonymous` claims the node.
    """

    revision: int
    history: str
    nodes: Mapping[str, BlockedNode] = field(default_factory=lambda: MappingProxyType({}))
    claims: Mapping[str, Claims] = field(default_factory=lambda: MappingProxyType({}))
