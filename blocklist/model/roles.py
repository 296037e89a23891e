"""Roles and tokens. Pure values."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from blocklist.model.errors import InvalidError
from blocklist.model.node import PERMANENT, check_id


class Role(StrEnum):
    """The roles of credentials; each includes the ones before it.

    A reader reads and watches. A listener is a job: it registers as a JOB_MASTER and reports its own TaskManagers. A
    manager registers as a RESOURCE_MANAGER and reports the nodes of its cluster, with their names and labels. An
    operator blocks and unblocks. An admin manages tokens and may bypass limits.
    """

    READER = "reader"
    LISTENER = "listener"
    MANAGER = "manager"
    OPERATOR = "operator"
    ADMIN = "admin"

    @property
    def rank(self) -> int:
        """Position in this order. Roles themselves compare as strings."""
        return _RANKS[self]

    def allows(self, required: Role) -> bool:
        """Whether this role may do what requires that one."""
        return self.rank >= required.rank


_RANKS = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """A bearer token without its text. Times are Unix milliseconds.

    `name` is the author of changes made with the token; `last_used_at` may be up to a minute late. `owners` are the
    patterns of owners whose claims it may change, `listeners` those of the ids under which it may register; None for
    all.
    """

    id: str
    name: str
    role: Role
    created_at: int
    created_by: str | None = None
    end: int = PERMANENT
    revoked_at: int | None = None
    last_used_at: int | None = None
    owners: tuple[str, ...] | None = None
    listeners: tuple[str, ...] | None = None

    def is_valid(self, now: int) -> bool:
        return self.revoked_at is None and now < self.end


@dataclass(frozen=True, kw_only=True, slots=True)
class NewToken:
    """A token that was just created; its `text` is shown only once."""

    token: Token
    text: str = field(repr=False)


def check_id_pattern(pattern: str) -> str:
    """Return `pattern`; raise InvalidError unless it is `*`, or an id, or the beginning of ids and `*`."""
    if pattern != "*":
        check_id(f"{pattern[:-1]}x" if pattern.endswith("*") else pattern)
    return pattern


def check_token_name(name: str) -> str:
    """Return the name of a token; raise InvalidError unless it has the form of a node id."""
    try:
        return check_id(name)
    except InvalidError:
        raise InvalidError("The name of the token is invalid: use 1 to 253 of A-Z a-z 0-9 . _ : -") from None


# Roles of Kubernetes ServiceAccounts, as the settings give them. Pure.

# Names of namespaces and ServiceAccounts, as Kubernetes restricts them: neither contains `*`, `,`, `=` or `/`.
_RULE: Final = re.compile(r"(?P<namespace>[a-z0-9-]+)/(?P<name>[a-z0-9.-]+|\*)=(?P<role>[a-z]+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class ServiceAccountRoles:
    """Which roles ServiceAccounts have: (namespace, name or `*`, role)."""

    rules: tuple[tuple[str, str, Role], ...]

    @classmethod
    def parse(cls, text: str) -> ServiceAccountRoles:
        """The rules in `NAMESPACE/NAME=ROLE,…`; the name `*` means every one of the namespace. Raises ValueError."""
        return cls(tuple(_parse_rule(rule.strip()) for rule in text.split(",") if rule.strip()))

    def role_of(self, namespace: str, name: str) -> Role | None:
        """The strongest role that a rule gives; None if there is none."""
        roles = (role for where, who, role in self.rules if where == namespace and who in (name, "*"))
        return max(roles, key=lambda role: role.rank, default=None)


def _parse_rule(text: str) -> tuple[str, str, Role]:
    match = _RULE.fullmatch(text)
    if match is None or match["role"] not in list(Role):
        raise ValueError(
            f"give comma-separated NAMESPACE/NAME=ROLE or NAMESPACE/*=ROLE, with one of the roles {', '.join(Role)};"
            f" {text!a} is neither"
        )
    return match["namespace"], match["name"], Role(match["role"])
