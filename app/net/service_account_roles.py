"""Roles of Kubernetes ServiceAccounts, as the settings give them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from blocklist.model.roles import Role

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
