"""Roles and tokens. Pure values."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from blocklist.model.claims import check_owner_pattern, check_pattern
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
    return check_pattern(pattern, check_id)


def check_token_name(name: str) -> str:
    """Return the name of a token; raise InvalidError unless it has the form of a node id."""
    try:
        return check_id(name)
    except InvalidError:
        raise InvalidError("The name of the token is invalid: use 1 to 253 of A-Z a-z 0-9 . _ : -") from None


# Roles of the groups of an identity provider, and of Kubernetes ServiceAccounts, as the settings give them. Pure.

_GRANT: Final = re.compile(r"(?P<who>[^,]+)=(?P<role>[a-z]+)(?::(?P<patterns>[^,=]+))?", re.ASCII)
# Names of namespaces and ServiceAccounts, as Kubernetes restricts them: neither contains `*`, `,`, `=` or `/`.
_ACCOUNT: Final = re.compile(r"[a-z0-9-]+/(?:[a-z0-9.-]+|\*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Grant:
    """A role, and what it is restricted to, as a token is: owners of an operator, ids of a listener; None is all."""

    role: Role
    patterns: tuple[str, ...] | None = None

    @property
    def owners(self) -> tuple[str, ...] | None:
        return self.patterns if self.role is Role.OPERATOR else None

    @property
    def listeners(self) -> tuple[str, ...] | None:
        return None if self.role is Role.OPERATOR else self.patterns


@dataclass(frozen=True, slots=True)
class Grants:
    """Who has which role, as the settings say."""

    rules: tuple[tuple[str, Grant], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Grants:
        """The rules in `GROUP=ROLE,…`, a role with what it is restricted to: `alerts=operator:alertmanager/*|night`.

        Raises ValueError.
        """
        return cls(tuple(_parse_grant(rule.strip()) for rule in text.split(",") if rule.strip()))

    @classmethod
    def of_accounts(cls, text: str) -> Grants:
        """The same with `NAMESPACE/NAME` for who; the name `*` means every one of the namespace. Raises ValueError."""
        try:
            grants = cls.parse(text)
        except ValueError as error:
            raise ValueError(f"{error}; NAME is NAMESPACE/NAME or NAMESPACE/*") from None
        for who, _ in grants.rules:
            if _ACCOUNT.fullmatch(who) is None:
                raise ValueError(f"give NAMESPACE/NAME=ROLE or NAMESPACE/*=ROLE; {who!a} is neither")
        return grants

    def of_any(self, names: Collection[str]) -> Grant | None:
        """The strongest role of these, with all to which it is restricted; None if there is none."""
        found = [grant for who, grant in self.rules if who in names]
        role = max((grant.role for grant in found), key=lambda role: role.rank, default=None)
        if role is None:
            return None
        patterns = [grant.patterns for grant in found if grant.role is role]
        restricted = [pattern for each in patterns if each is not None for pattern in each]
        return Grant(role, None if None in patterns else tuple(dict.fromkeys(restricted)))

    def of_account(self, namespace: str, name: str) -> Grant | None:
        """The strongest role of a ServiceAccount; None if there is none."""
        return self.of_any((f"{namespace}/{name}", f"{namespace}/*"))


ROLES_BY_NAME: Final = Grants(tuple((role.value, Grant(role)) for role in Role))
"""Whoever has the name of a role has the role."""


def _parse_grant(text: str) -> tuple[str, Grant]:
    match = _GRANT.fullmatch(text)
    if match is None or match["role"] not in list(Role):
        raise ValueError(
            f"give comma-separated NAME=ROLE, with one of the roles {', '.join(Role)}; {text!a} is something else"
        )
    role = Role(match["role"])
    if match["patterns"] is None:
        return match["who"], Grant(role)
    if role not in {Role.LISTENER, Role.MANAGER, Role.OPERATOR}:
        raise ValueError(f"the role {role.value} cannot be restricted, as in {text!a}")
    check = check_owner_pattern if role is Role.OPERATOR else check_id_pattern
    try:
        return match["who"], Grant(role, tuple(map(check, match["patterns"].split("|"))))
    except InvalidError as error:
        raise ValueError(f"{text!a}: {error.detail}") from None
