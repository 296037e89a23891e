"""The errors of the rules; each message is written where it is raised. The client raises them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blocklist.model.node import BlockedNode


class BlocklistError(Exception):
    """Base class. `detail` is the message; `lines` has one sentence for each fault.

    `title` is the title of the service's error response, if the error comes from one. `revision` is that of the list on
    which a change was refused, if it was.
    """

    title: str | None = None
    revision: int | None = None

    def __init__(self, detail: str, lines: Sequence[str] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.lines = tuple(lines) or (detail,)


class InvalidError(BlocklistError, ValueError):
    """The request or value is malformed; nothing was changed."""


class NotFoundError(BlocklistError):
    """The node is not blocked, or what the request names does not exist."""


class ConflictError(BlocklistError):
    """At least one node is already blocked and merging was not allowed; nothing was changed.

    `blocked` maps each requested node id to the existing block, which may have another name of the same machine.
    """

    def __init__(self, detail: str, blocked: Mapping[str, BlockedNode], lines: Sequence[str] = ()) -> None:
        super().__init__(detail, lines)
        self.blocked = dict(blocked)


class AmbiguousNodeError(BlocklistError):
    """The name means several blocked nodes, `blocked`; nothing was changed."""

    def __init__(self, detail: str, blocked: Sequence[BlockedNode]) -> None:
        super().__init__(detail)
        self.blocked = {node.id: node for node in blocked}


class UnknownNodeError(BlocklistError):
    """A node is not known that had to be known; nothing was changed. `lines` names each node."""


class LimitError(BlocklistError):
    """The change exceeds a limit; nothing was changed. `lines` names each limit, its value and what is possible."""


class DismissedError(BlocklistError):
    """What a claim rests on was observed before somebody dismissed its owner on the node; nothing was changed."""


class PreconditionFailedError(BlocklistError):
    """The node or claim is not as `If-Match` or `If-None-Match` requires; nothing was changed."""


class CompactedError(BlocklistError):
    """The requested changes are no longer in the log; `oldest` is the first revision that is."""

    def __init__(self, detail: str, oldest: int) -> None:
        super().__init__(detail)
        self.oldest = oldest


class UnavailableError(BlocklistError):
    """The service or its database is unavailable; retry, after `retry_after` seconds if given.

    `passed_on`: the response does not come from the service, or is damaged, but the service may have got the request.
    """

    def __init__(self, detail: str, retry_after: float | None = None, *, passed_on: bool = False) -> None:
        super().__init__(detail)
        self.retry_after = retry_after
        self.passed_on = passed_on


class UnauthorizedError(BlocklistError):
    """The credentials are missing, invalid or expired; nothing was changed.

    `given` is false if they were missing. The message never contains a credential.
    """

    def __init__(self, detail: str, lines: Sequence[str] = (), *, given: bool = False) -> None:
        super().__init__(detail, lines)
        self.given = given


class ForbiddenError(BlocklistError):
    """The role of the credentials does not allow this; the message names the required role. Nothing was changed."""
