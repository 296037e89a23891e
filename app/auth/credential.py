"""Credential: what somebody has proved, until it ends."""

from __future__ import annotations

from typing import Protocol
from weakref import WeakSet

from app.auth.principal import Principal
from blocklist.model.node import PERMANENT


class Stream(Protocol):
    """An answer that goes on as long as its credential is good."""

    def close(self) -> None: ...


class Credential:
    """A token, a session or a JWT that was found good: one object for all requests that come with it.

    Whoever keeps a request keeps this with it, and asks again each time: so a token ends everywhere at once. `id` is
    empty where nobody can revoke it; `until` is in Unix milliseconds, `used` the moment of the last use.
    """

    __slots__ = ("__weakref__", "expires_at", "id", "last_used_at", "principal", "streams")

    def __init__(self, principal: Principal, *, expires_at: int = PERMANENT, id: str = "") -> None:  # noqa: A002
        self.principal = principal
        self.expires_at = expires_at
        self.id = id
        self.last_used_at = 0
        self.streams: WeakSet[Stream] = WeakSet()

    def __repr__(self) -> str:
        return f"Credential({self.id!r}, {self.principal!r})"

    def is_valid(self, now: int) -> bool:
        """Whether it has not ended."""
        return now < self.expires_at

    def use(self, now: int) -> bool:
        """Whether it has not ended; it was used."""
        self.last_used_at = now
        return now < self.expires_at

    def invalidate(self) -> None:
        """From now on it admits nobody, and its streams are cut."""
        self.expires_at = 0
        self.close()

    def close(self) -> None:
        """Cut its streams."""
        for stream in tuple(self.streams):
            stream.close()
