"""The public import path of the errors of blocklist.model.errors."""

from blocklist.model.errors import (
    AmbiguousNodeError,
    BlocklistError,
    CompactedError,
    ConflictError,
    DismissedError,
    ForbiddenError,
    InvalidError,
    LimitError,
    NotFoundError,
    PreconditionFailedError,
    UnauthorizedError,
    UnavailableError,
    UnknownNodeError,
)

__all__ = [
    "AmbiguousNodeError",
    "BlocklistError",
    "CompactedError",
    "ConflictError",
    "DismissedError",
    "ForbiddenError",
    "InvalidError",
    "LimitError",
    "NotFoundError",
    "PreconditionFailedError",
    "UnauthorizedError",
    "UnavailableError",
    "UnknownNodeError",
]
