"""How many watches and waiting requests each client has open."""

from __future__ import annotations

from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from blocklist.model.errors import UnavailableError

RETRY_SECONDS: Final = 5


class Client(NamedTuple):
    """Who waits: by what name, and from which address."""

    name: str | None
    address: str


class Place:
    """One client's waits. Entered as a context for as long as one of them is open; there may be many at once."""

    __slots__ = ("__weakref__", "open")

    def __init__(self) -> None:
        self.open = 0

    def __enter__(self) -> None:
        self.open += 1

    def __exit__(self, *_: object) -> None:
        self.open -= 1


class Waits:
    """The places of all clients; one is forgotten with the last request that holds it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._places: WeakValueDictionary[Client, Place] = WeakValueDictionary()

    def place(self, client: Client) -> Place:
        """The client's place. Raises UnavailableError if it has no room."""
        place = self._places.get(client)
        if place is None:
            place = self._places[client] = Place()
        if place.open >= self._most:
            raise UnavailableError(
                f"This client has {place.open} watches and waiting requests open, and may have {self._most}.",
                retry_after=RETRY_SECONDS,
            )
        return place
