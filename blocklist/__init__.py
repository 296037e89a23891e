"""The rules of a platform-wide list of blocked nodes, and a client of the service that holds it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blocklist.client.client import BlocklistClient
    from blocklist.client.watch import Watch
    from blocklist.model.changes import Change, ChangeType, Snapshot
    from blocklist.model.draft import BlocklistTracker
    from blocklist.model.errors import BlocklistError, ConflictError, InvalidError, NotFoundError, UnavailableError
    from blocklist.model.node import PERMANENT, BlockAction, BlockedNode, merge

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


# Imported when they are used: the command must start quickly, and only the client needs httpx.
_MODULES = {
    "PERMANENT": "model.node",
    "BlockAction": "model.node",
    "BlockedNode": "model.node",
    "BlocklistClient": "client.client",
    "BlocklistError": "model.errors",
    "BlocklistTracker": "model.draft",
    "Change": "model.changes",
    "ChangeType": "model.changes",
    "ConflictError": "model.errors",
    "InvalidError": "model.errors",
    "NotFoundError": "model.errors",
    "Snapshot": "model.changes",
    "UnavailableError": "model.errors",
    "Watch": "client.watch",
    "merge": "model.node",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
