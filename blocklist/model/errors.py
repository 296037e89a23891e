"""What can go wrong with a blocklist: raised by the rules in the service, and raised again by the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blocklist.model.node import BlockedNode


class BlocklistError(Exception):
    """Root of the tree. `lines` says what is wrong, one sentence for each fault.

    `title` is that of the service's problem, where it was a service that said so.
    """

    title: str | None = None

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


class LimitError(BlocklistError):
    """A limit does not allow it; the sentences say which one, what is there, and what would be allowed.

    Nothing was changed.
    """


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


class UnauthorizedError(BlocklistError):
    """There are no credentials, or none that are good (any more); nothing was changed.

    `given` says whether there were any. No credential is ever repeated here.
    """

    def __init__(self, detail: str, lines: Sequence[str] = (), *, given: bool = False) -> None:
        super().__init__(detail, lines)
        self.given = given


class ForbiddenError(BlocklistError):
    """The credentials are good, but do not allow this; the sentence names the role that does. Nothing was changed."""
