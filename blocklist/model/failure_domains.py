"""Failure domains: how many nodes with the same value of a label may be blocked at one time. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from blocklist.model.inventory import Inventory
from blocklist.model.selector import check_label_key

_LIMIT: Final = re.compile(r"([0-9]{1,9})(%?)", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class DomainLimit:
    """Maximum number of blocked nodes with the same value of the label `key`: `amount` nodes, or percent of them."""

    key: str
    amount: int
    percent: bool = False

    def max_nodes(self, members: int) -> int:
        """The maximum in a domain with this number of nodes. A share is rounded down, but is at least 1."""
        return max(1, members * self.amount // 100) if self.percent else self.amount

    def __str__(self) -> str:
        return f"{self.key}={self.amount}{'%' if self.percent else ''}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ExceededDomain:
    """A domain of `members` nodes in which a change would exceed the limit.

    `blocks` are its blocked nodes before the change: the id under which a node is known to the id under which it is
    blocked.
    """

    limit: DomainLimit
    value: str
    members: int
    blocked_after: int
    blocks: Mapping[str, str]

    @property
    def max_nodes(self) -> int:
        """Maximum number of blocked nodes in the domain."""
        return self.limit.max_nodes(self.members)

    @property
    def label(self) -> str:
        """The label that all nodes of the domain have."""
        return f"{self.limit.key}={self.value}"


def parse_domain_limits(text: str) -> tuple[DomainLimit, ...]:
    """Parse `rack=2,zone=10%`; empty means no limit. Raises ValueError."""
    limits = [_parse_limit(part.strip()) for part in text.split(",")] if text.strip() else []
    keys = [limit.key for limit in limits]
    if repeated := [key for key in keys if keys.count(key) > 1]:
        raise ValueError(f"the label {repeated[0]} is given more than once")
    return tuple(limits)


def _parse_limit(text: str) -> DomainLimit:
    key, equals, amount = text.partition("=")
    found = _LIMIT.fullmatch(amount.strip())
    if not equals or found is None or int(found[1]) == 0 or (found[2] and int(found[1]) > 100):
        raise ValueError(
            f"give a label and a number of nodes or percent, such as rack=2 or zone=10%, instead of {text[:100]!a}"
        )
    return DomainLimit(key=check_label_key(key.strip()), amount=int(found[1]), percent=bool(found[2]))


def exceeded_domains(
    limits: Collection[DomainLimit], nodes: Inventory, blocked: Iterable[str], new: Iterable[str]
) -> Iterator[ExceededDomain]:
    """The domains in which blocking the `new` node ids, besides the `blocked` ones, exceeds a limit.

    A node without the label is in no domain. A domain that already exceeds its limit may not get another blocked node.
    """
    added = {known for node_id in new for known in nodes.known_as(node_id)}
    if not any(limit.key in nodes.labels_of(known) for known in added for limit in limits):
        return
    existing = {known: node_id for node_id in blocked for known in nodes.known_as(node_id)}
    for limit in limits:
        before = _by_value(existing, nodes, limit.key)
        for value, names in sorted(_by_value(added, nodes, limit.key).items()):
            blocks = {known: existing[known] for known in sorted(before.get(value, ()))}
            domain = ExceededDomain(
                limit=limit,
                value=value,
                members=nodes.count_with(limit.key, value),
                blocked_after=len(blocks.keys() | names),
                blocks=blocks,
            )
            if domain.blocked_after > max(domain.max_nodes, len(blocks)):
                yield domain


def _by_value(known_ids: Iterable[str], nodes: Inventory, key: str) -> dict[str, set[str]]:
    groups: dict[str, set[str]] = {}
    for known in known_ids:
        if (value := nodes.labels_of(known).get(key)) is not None:
            groups.setdefault(value, set()).add(known)
    return groups
