"""blocklist: the rules of a platform-wide list of blocked nodes, and a client of the service that keeps it."""

from blocklist.changes import Change, ChangeType, Snapshot
from blocklist.client import BlocklistClient, Watch
from blocklist.errors import BlocklistError, ConflictError, InvalidError, NotFoundError, UnavailableError
from blocklist.node import PERMANENT, BlockAction, BlockedNode, merge
from blocklist.tracker import BlocklistTracker

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
