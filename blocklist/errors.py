"""The public import path of the errors of blocklist.model.errors."""

from blocklist.model.errors import (
    BlocklistError,
    CompactedError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    LimitError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
)

__all__ = [
    "BlocklistError",
    "CompactedError",
    "ConflictError",
    "ForbiddenError",
    "InvalidError",
    "LimitError",
    "NotFoundError",
    "UnauthorizedError",
    "UnavailableError",
]
