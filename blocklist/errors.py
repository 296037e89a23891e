"""What can go wrong with a blocklist: raised by the rules in the service, and raised again by the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blocklist.node import BlockedNode


class BlocklistError(Exception):
    """Root of the tree. `lines` says what is wrong, one sentence for each fault."""

    def __init__(self, detail: str, lines: Sequence[str] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.lines = tuple(lines) or (detail,)


class InvalidError(BlocklistError, ValueError):
    """The request or value is malformed; nothing was changed."""


class NotFoundError(BlocklistError):
    """The node is not blocked (any more)."""


class ConflictError(BlocklistError):
    """At least one node is blocked already and merging was not allowed; nothing was changed.

    `blocked` maps each conflicting node id to the node as it is blocked at present.
    """

    def __init__(self, detail: str, blocked: Mapping[str, BlockedNode], lines: Sequence[str] = ()) -> None:
        super().__init__(detail, lines)
        self.blocked = dict(blocked)


class CompactedError(BlocklistError):
    """The changes asked for are no longer in the log; `oldest` is the first revision that still is."""

    def __init__(self, detail: str, oldest: int) -> None:
        super().__init__(detail)
        self.oldest = oldest


class UnavailableError(BlocklistError):
    """The service, or its database, is out of reach; try again (after `retry_after` seconds where known)."""

    def __init__(self, detail: str, retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.retry_after = retry_after
