"""Credential: an authenticated token, session or JWT, until it expires or is revoked."""

from __future__ import annotations

from typing import Final, Protocol, TypeVar
from weakref import WeakSet

from app.auth.principal import Principal
from app.logs import isolated
from blocklist.model.node import PERMANENT

MAX_CACHED: Final = 1000
K = TypeVar("K")


class Stream(Protocol):
    """A response that continues while its credential is valid."""

    def close(self) -> None: ...


class Credential:
    """One object for all requests that come with the same token, session or JWT.

    Whatever caches a request caches its credential too, and checks it at each use: so a revoked token is refused
    everywhere at once. `id` is the id of a token, empty for a JWT; times are in Unix milliseconds.
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
        """Whether it has neither expired nor been revoked."""
        return now < self.expires_at

    def use(self, now: int) -> bool:
        """Record a use; returns whether it is valid."""
        self.last_used_at = now
        return now < self.expires_at

    def invalidate(self) -> None:
        """Make it invalid from now on, and close its streams."""
        self.expires_at = 0
        self.close()

    def close(self) -> None:
        for stream in tuple(self.streams):
            with isolated("stream of a credential that has ended"):
                stream.close()


class CredentialCache(dict[K, Credential]):
    """At most MAX_CACHED credentials. `add` removes the oldest and closes its streams: nothing would end them later."""

    def add(self, key: K, credential: Credential) -> None:
        if len(self) >= MAX_CACHED:
            self.pop(next(iter(self))).close()
        self[key] = credential
