"""Limits: how many nodes may be blocked, by whom and for how long. Pure; the drafts hold the current time.

Only a block that is new, longer or stronger can be refused, or a claim that is new or longer. Repeating an existing
block and unblocking always succeed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Decimal
from typing import Final

from blocklist.model.changes import Change, ChangeType
from blocklist.model.claims import ANONYMOUS, Role
from blocklist.model.draft import Draft
from blocklist.model.errors import LimitError
from blocklist.model.inventory import Inventory
from blocklist.model.names import MachineSet, ReportedMachines
from blocklist.model.node import PERMANENT, BlockedNode, exact_duration, format_utc
from blocklist.model.selector import check_label_key
from blocklist.model.usable_nodes import ListenerNodes, Shortfall, blocked_ids, shortfalls

# Failure domains: how many nodes with the same value of a label may be blocked at one time. Pure.

_LIMIT: Final = re.compile(r"([0-9]{1,9})(%?)", re.ASCII)


def share_of(share: float, count: int) -> int:
    """A share of this number of nodes, rounded up, at least one: a tenth of three nodes is one."""
    # Decimal of the text: as a float, 0.29 of 100 is not exactly 29.
    return max(1, int((Decimal(str(share)) * count).to_integral_value(ROUND_CEILING)))


def ask_above(known: int) -> int:
    """People are asked before a change of more nodes than this: a tenth of the known ones, and at most 20."""
    return min(20, share_of(0.1, known)) if known else 20


@dataclass(frozen=True, kw_only=True, slots=True)
class DomainLimit:
    """Maximum number of blocked nodes with the same value of the label `key`: `amount` nodes, or percent of them."""

    key: str
    amount: int
    percent: bool = False

    def max_nodes(self, members: int) -> int:
        """The maximum in a domain with this number of nodes."""
        return share_of(self.amount / 100, members) if self.percent else self.amount

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
    limits: Collection[DomainLimit],
    nodes: Inventory,
    counted: ReportedMachines,
    blocked: Iterable[str],
    new: Iterable[str],
) -> Iterator[ExceededDomain]:
    """The domains in which blocking the `new` node ids, besides the `blocked` ones, exceeds a limit.

    Only the `counted` nodes are members of a domain of which a limit allows a part. A node without the label is in no
    domain. A domain that already exceeds its limit may not get another blocked node.
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
                members=counted.count_matching(nodes.with_label(limit.key, value)),
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


MAX_NAMED: Final = 20
"""Maximum number of listeners, and of blocked nodes of each failure domain, that a refusal names."""
LEEWAY_MS: Final = 60_000
"""Milliseconds by which a block may exceed the longest duration, as the client's clock may be ahead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The configured limits. 0 means no limit, as does a share of 1; the longest blocks are in milliseconds.

    `may_be_permanent`: whether an operator may block for ever, although longer blocks with an end are refused. A typing
    error is a long time; for ever is a decision.
    """

    max_blocked: int = 0
    max_share: float = 1.0
    max_by_author: int = 0
    longest_operator_ms: int = 0
    longest_admin_ms: int = 0
    may_be_permanent: bool = False
    max_per_domain: tuple[DomainLimit, ...] = ()

    def __bool__(self) -> bool:
        return self != _NONE

    def longest_ms(self, role: Role) -> int:
        """Longest block that a role may make, in milliseconds; 0 means no limit."""
        return self.longest_admin_ms if role is Role.ADMIN else self.longest_operator_ms


_NONE: Final = Limits()
PAIR_FROM: Final = 6
"""Number of confirmed nodes of which evidence may block two at once, whatever the share: a third. Of five it would be
nearly half."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvidenceLimit:
    """How many nodes evidence may block at once: this share of the confirmed nodes, rounded up. 1 means no limit.

    At least one, and from PAIR_FROM confirmed nodes on two: a second bad node need not wait until the hour of the first
    has ended, and two thirds stay. `confirmed` returns the number of confirmed nodes, see blocklist.model.names.
    """

    share: float
    confirmed: Callable[[], int]

    def max_nodes(self) -> int | None:
        """Maximum number of nodes; None if there is no limit."""
        if self.share >= 1:
            return None
        confirmed = self.confirmed()
        return max(share_of(self.share, confirmed), 2 if confirmed >= PAIR_FROM else 1)

    def error(self, max_nodes: int) -> LimitError:
        """The error of a block beyond the maximum."""
        return LimitError(
            f"Evidence may block at most {max_nodes} {_plural(max_nodes)} at once: {self.share:g} of the"
            f" {self.confirmed()} confirmed nodes, at least one, of six or more two (BLOCKLIST_EVIDENCE_MAX_SHARE)."
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitContext:
    """The state before a change.

    `listeners` are the live listeners with a minimum that the change affects. `names` are the nodes that any listener
    names, `known` those that count. `labelled` are the nodes with their labels, None if no limit
    needs them.
    """

    draft: Draft
    listeners: Sequence[ListenerNodes] = ()
    names: MachineSet = field(default_factory=MachineSet)
    known: ReportedMachines = field(default_factory=ReportedMachines)
    labelled: Inventory | None = None


def check_limits(limits: Limits, context: LimitContext, proposed: Draft, role: Role) -> None:
    """Raise LimitError with a sentence for each limit that `proposed`, a fork of `context.draft`, exceeds.

    `role` is the role of the author.
    """
    if not proposed.changes:
        return
    escalations = [change for change in proposed.changes if _escalates(change, context.draft)]
    lines = [
        *_count_violations(limits, context, escalations),
        *_author_violations(limits.max_by_author, context, proposed),
        *_duration_violations(limits, context.draft, proposed, role),
    ]
    if escalations:
        lines += _minimum_violations(shortfalls(context.listeners, context.names, context.draft, proposed))
    if lines:
        raise LimitError(" ".join(lines), lines)


def _escalates(change: Change, current: Draft) -> bool:
    """Whether the change makes a new, longer or stronger block."""
    if change.type is ChangeType.BLOCKED:
        return True
    before = current.get_blocked(change.node.id)
    if change.type.frees or before is None:
        return False
    return change.node.end > before.end or change.node.action > before.action


def _count_violations(limits: Limits, context: LimitContext, escalations: Sequence[Change]) -> Iterator[str]:
    new = [change.node.id for change in escalations if change.type is ChangeType.BLOCKED]
    if limits.max_blocked and new:
        yield from _number_violations(limits.max_blocked, context, new)
    if limits.max_share < 1 and new:
        yield from _share_violations(limits.max_share, context.known, context.draft, new)
    if limits.max_per_domain and new and context.labelled is not None:
        domains = exceeded_domains(
            limits.max_per_domain, context.labelled, context.known, blocked_ids(context.draft), new
        )
        yield from (_domain_violation(domain, context.draft) for domain in domains)


def _number_violations(max_blocked: int, context: LimitContext, new: Sequence[str]) -> Iterator[str]:
    ids = blocked_ids(context.draft)
    before, after = count_machines(context.labelled, ids), count_machines(context.labelled, [*ids, *new])
    if after > max(max_blocked, before):
        yield (
            f"This would block {after} nodes; at most {max_blocked} may be blocked at once"
            f" (BLOCKLIST_MAX_BLOCKED): {_remaining(max_blocked - before)}."
        )


def count_machines(nodes: Inventory | None, ids: Collection[str]) -> int:
    """The number of machines that these ids mean: a short name may mean several, and several names one."""
    if not nodes:
        return len(ids)
    return len({machine for name in ids for machine in nodes.known_as(name) or (name,)})


def _share_violations(share: float, known: ReportedMachines, current: Draft, new_ids: Sequence[str]) -> Iterator[str]:
    blocked = blocked_ids(current)
    ids = [*blocked, *new_ids]
    max_nodes = share_of(share, len(known))
    if not known.may_exceed(len(ids), max_nodes):
        return
    before, after = known.count_matching(blocked), known.count_matching(ids)
    if after > max(max_nodes, before):
        yield (
            f"This would block {after} of the {len(known)} known nodes; at most {max_nodes} may be blocked at once"
            f" (BLOCKLIST_MAX_BLOCKED_SHARE is {share:g}): {_remaining(max_nodes - before)}."
        )


def _domain_violation(domain: ExceededDomain, current: Draft) -> str:
    sentence = (
        f"This would block {domain.blocked_after} of the {domain.members} nodes with {domain.label}; at most"
        f" {domain.max_nodes} may be blocked at once (BLOCKLIST_MAX_BLOCKED_PER has {domain.limit}):"
        f" {_remaining(domain.max_nodes - len(domain.blocks))}."
    )
    if not domain.blocks:
        return sentence
    names = [_claimed_by(known, current.get(node_id), current) for known, node_id in domain.blocks.items()]
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{sentence} Blocked there: {', '.join(names[:MAX_NAMED])}{more}."


def _claimed_by(name: str, block: BlockedNode | None, current: Draft) -> str:
    claims = () if block is None else current.live_claims(block)
    owners = [claim.owner for claim in claims if claim.owner != ANONYMOUS]
    return f"{name} by {', '.join(owners)}" if owners else name


def _author_violations(max_nodes: int, context: LimitContext, proposed: Draft) -> Iterator[str]:
    """A block counts for the author of each of its claims."""
    current, nodes = context.draft, context.labelled
    if not max_nodes:
        return
    author = proposed.author.name
    changed = {change.node.id for change in proposed.changes}
    claimed = {node_id for node_id in changed if proposed.get(node_id) and _is_by(author, proposed, node_id)}
    if not claimed:
        return
    before = {node_id for node_id in blocked_ids(current) if _is_by(author, current, node_id)}
    after = (before - changed) | claimed
    count, count_before = count_machines(nodes, after), count_machines(nodes, before)
    if count > max(max_nodes, count_before):
        name = "authors without a name" if author is None else author
        yield (
            f"This would be {count} nodes blocked by {name}; one author may block at most {max_nodes}"
            f" (BLOCKLIST_MAX_BLOCKED_BY_AUTHOR): {_remaining(max_nodes - count_before)}."
        )


def _is_by(author: str | None, draft: Draft, node_id: str) -> bool:
    return any(claim.author == author for claim in draft.claims(node_id))


def _duration_violations(limits: Limits, current: Draft, proposed: Draft, role: Role) -> Iterator[str]:
    longest = limits.longest_ms(role)
    if not longest:
        return
    latest = current.now + longest
    may_be_permanent = limits.may_be_permanent and role is not Role.ADMIN
    ends = [end for change in proposed.changes for end in _later_ends(change, current)]
    if not any(end > latest + LEEWAY_MS and not (may_be_permanent and end == PERMANENT) for end in ends):
        return
    subject, alternative = ("An admin", "force it") if role is Role.ADMIN else ("An operator", "ask an admin")
    if may_be_permanent:
        alternative = "block it for ever (--forever, or no endTimestamp)"
    allowed = exact_duration(longest)
    yield f"{subject} may block for at most {allowed}: end it by {format_utc(latest)} at the latest, or {alternative}."


def _later_ends(change: Change, current: Draft) -> Iterator[int]:
    """The ends of claims that end later than before: who adds a cause did not choose the existing end."""
    if change.type.frees:
        return
    before = current.get_blocked(change.node.id)
    ends = {} if before is None else {claim.owner: claim.block.end for claim in current.live_claims(before)}
    yield from (claim.block.end for claim in change.claims if claim.block.end > ends.get(claim.owner, 0))


def _minimum_violations(found: Sequence[Shortfall]) -> list[str]:
    lines = [_minimum_violation(shortfall) for shortfall in found[:MAX_NAMED]]
    more = len(found) - MAX_NAMED
    return lines if more <= 0 else [*lines, f"{more} more listeners would be left with fewer nodes than they need."]


def _minimum_violation(shortfall: Shortfall) -> str:
    return (
        f"Listener {shortfall.listener} would be left with {shortfall.usable} usable {_plural(shortfall.usable)}"
        f" and needs {shortfall.minimum}: {_remaining(shortfall.usable_before - shortfall.minimum)} among its nodes."
    )


def _remaining(count: int) -> str:
    """How many more nodes may be blocked, as text."""
    return "no more is possible" if count <= 0 else f"{count} more {'is' if count == 1 else 'are'} possible"


def _plural(count: int) -> str:
    return "node" if count == 1 else "nodes"
