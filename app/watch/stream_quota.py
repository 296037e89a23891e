"""StreamQuota: limits the number of watches and waiting requests per client."""

from __future__ import annotations

from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from blocklist.model.errors import UnavailableError

RETRY_SECONDS: Final = 5


class ClientKey(NamedTuple):
    """Identifies a client by its name and address."""

    name: str | None
    address: str


class ClientSlots:
    """The open streams of one client. Enter it as a context manager once per stream, while that is open."""

    __slots__ = ("__weakref__", "open")

    def __init__(self) -> None:
        self.open = 0

    def __enter__(self) -> None:
        self.open += 1

    def __exit__(self, *_: object) -> None:
        self.open -= 1


class StreamQuota:
    """The slots of all clients; those of a client are dropped with its last request."""

    def __init__(self, max_open: int) -> None:
        self._max_open = max_open
        self._slots: WeakValueDictionary[ClientKey, ClientSlots] = WeakValueDictionary()

    def slots_of(self, client: ClientKey) -> ClientSlots:
        """The client's slots. Raises UnavailableError if all are in use."""
        slots = self._slots.get(client)
        if slots is None:
            slots = self._slots[client] = ClientSlots()
        if slots.open >= self._max_open:
            raise UnavailableError(
                f"This client has {slots.open} watches and waiting requests open; the limit is {self._max_open}.",
                retry_after=RETRY_SECONDS,
            )
        return slots
