"""The rules of a platform-wide list of blocked nodes, and a client of the service that holds it."""

from typing import TYPE_CHECKING

from blocklist.model.changes import Change, ChangeType, Snapshot
from blocklist.model.errors import BlocklistError, ConflictError, InvalidError, NotFoundError, UnavailableError
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode, merge
from blocklist.model.tracker import BlocklistTracker

if TYPE_CHECKING:
    from blocklist.client.client import BlocklistClient, Watch

__version__ = "0.1.0"

__all__ = [
    "PERMANENT",
    "BlockAction",
    "BlockedNode",
    "BlocklistClient",
    "BlocklistError",
    "BlocklistTracker",
    "Change",
    "ChangeType",
    "ConflictError",
    "InvalidError",
    "NotFoundError",
    "Snapshot",
    "UnavailableError",
    "Watch",
    "merge",
]


def __getattr__(name: str) -> object:
    # Imported lazily: the client needs httpx, the rules and the service do not.
    if name in {"BlocklistClient", "Watch"}:
        from blocklist.client import client  # noqa: PLC0415

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
