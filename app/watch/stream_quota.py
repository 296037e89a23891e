"""How many watches and waiting requests each client has open."""

from __future__ import annotations

from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from blocklist.model.errors import UnavailableError

RETRY_SECONDS: Final = 5


class ClientKey(NamedTuple):
    """Who waits: by what name, and from which address."""

    name: str | None
    address: str


class ClientSlots:
    """One client's waits. Entered as a context for as long as one of them is open; there may be many at once."""

    __slots__ = ("__weakref__", "open")

    def __init__(self) -> None:
        self.open = 0

    def __enter__(self) -> None:
        self.open += 1

    def __exit__(self, *_: object) -> None:
        self.open -= 1


class StreamQuota:
    """The places of all clients; one is forgotten with the last request that holds it."""

    def __init__(self, max_open: int) -> None:
        self._max_open = max_open
        self._slots: WeakValueDictionary[ClientKey, ClientSlots] = WeakValueDictionary()

    def slots_of(self, client: ClientKey) -> ClientSlots:
        """The client's place. Raises UnavailableError if it has no room."""
        place = self._slots.get(client)
        if place is None:
            place = self._slots[client] = ClientSlots()
        if place.open >= self._max_open:
            raise UnavailableError(
                f"This client has {place.open} watches and waiting requests open, and may have {self._max_open}.",
                retry_after=RETRY_SECONDS,
            )
        return place
