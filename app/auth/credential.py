"""Credential: an authenticated token, session or JWT, until it expires or is revoked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, TypeVar
from weakref import WeakSet

from app.logs import isolated
from blocklist.model.claims import RESERVED_NAMES, Role, default_owner, matches_any
from blocklist.model.errors import ForbiddenError
from blocklist.model.listener import ListenerRole
from blocklist.model.node import PERMANENT

# Principal: the author of a request and their role.


@dataclass(frozen=True, slots=True)
class Principal:
    """A name, None if it is not known, and a role. `subject` is that of a JWT: the issuer never gives it to another.

    `owners` are the patterns of owners whose claims it may change, `listeners` those of the ids under which it may
    register; None for all.
    """

    name: str | None
    role: Role
    subject: str | None = None
    owners: tuple[str, ...] | None = None
    listeners: tuple[str, ...] | None = None

    @property
    def id(self) -> str | None:
        """Identifies the principal: a JWT's subject, else the name, which a token's successor may have as well."""
        return self.name if self.subject is None else f"oidc:{self.subject}"

    def check_name(self) -> None:
        """Raise ForbiddenError if what it blocks by its own name would be taken for claims of an automatic owner.

        Where an admin restricts it to some owners, that is meant.
        """
        if (
            self.name is not None
            and matches_any(self.name, RESERVED_NAMES)
            and self.owners is None
            and self.role.allows(Role.OPERATOR)
        ):
            raise ForbiddenError(
                f"The name {self.name} is that of an automatic owner ({', '.join(RESERVED_NAMES)}): whoever blocks"
                " nodes needs another name, or a role that is restricted to owners."
            )

    def check_may_claim_for(self, owner: str) -> None:
        """Raise ForbiddenError unless it may change the claims of this owner."""
        if self.owners is not None and not matches_any(owner, self.owners):
            raise ForbiddenError(f"Your token may change claims of {', '.join(self.owners)} only, not of {owner}.")

    def check_may_block(self) -> None:
        """Raise ForbiddenError unless it may block a node, which makes a claim of its own."""
        self.check_may_claim_for(default_owner(self.name))

    def check_may_register(self, listener_id: str, role: ListenerRole) -> None:
        """Raise ForbiddenError unless it may register a listener with this id and role."""
        needed = Role.MANAGER if role is ListenerRole.RESOURCE_MANAGER else Role.LISTENER
        if not self.role.allows(needed):
            raise ForbiddenError(
                f"Registering as a {role.value} requires the role {needed.value}; yours is {self.role.value}."
            )
        if self.listeners is not None and not matches_any(listener_id, self.listeners):
            raise ForbiddenError(
                f"Your token may register {', '.join(self.listeners)} only, not {listener_id}: an admin creates tokens"
                " with other ids by `blocklist token create --listener`."
            )

    def check_unrestricted(self) -> None:
        """Raise ForbiddenError if it may change the claims of some owners only."""
        if self.owners is not None:
            raise ForbiddenError(f"Your token may change claims of {', '.join(self.owners)}, and nothing else.")

    def check_may_unblock(self) -> None:
        """Raise ForbiddenError unless it may unblock a node, which removes the claims of all owners."""
        if self.owners is not None:
            raise ForbiddenError(
                f"Unblocking a node removes the claims of all owners; your token may change those of"
                f" {', '.join(self.owners)} only: remove such a claim."
            )


PRINCIPAL_KEY: Final = "blocklist.principal"
"""Where the scope of an authenticated request has its principal."""
AUTH_DISABLED: Final = Principal(None, Role.ADMIN)
"""Of every request while authentication is off."""
ANONYMOUS: Final = Principal(None, Role.READER)
"""Of requests to routes that are open to all, where credentials are not checked."""


MAX_CACHED: Final = 1000
KEY_ID_PREFIX: Final = "key-"
"""The beginning of the ids of issuers' keys, which no token has."""
K = TypeVar("K")
C = TypeVar("C", bound="Credential")


class Stream(Protocol):
    """A response that continues while its credential is valid."""

    def close(self) -> None: ...


class Credential:
    """One object for all requests that come with the same token, session or JWT.

    Whatever caches a request caches its credential too, and checks it at each use: so a revoked token is refused
    everywhere at once. `id` is the id of a token, or that of the key of a JWT; times are in Unix milliseconds.
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
        return self.is_valid(now)

    def invalidate(self) -> None:
        """Make it invalid from now on, and close its streams."""
        self.expires_at = 0
        self.close()

    def close(self) -> None:
        for stream in tuple(self.streams):
            with isolated("stream of a credential that has ended"):
                stream.close()


class CredentialCache(dict[K, C]):
    """At most MAX_CACHED credentials. `add` removes the oldest and closes its streams: nothing would end them later."""

    def add(self, key: K, credential: C) -> None:
        if len(self) >= MAX_CACHED:
            self.pop(next(iter(self))).close()
        self[key] = credential
