"""Limits: how many nodes may be blocked, by whom and for how long. Pure; the drafts hold the current time.

Only a block that is new, longer or stronger can be refused. Repeating an existing block and unblocking always succeed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from blocklist.model.changes import Change, ChangeType
from blocklist.model.draft import Draft
from blocklist.model.durations import exact_duration
from blocklist.model.errors import LimitError
from blocklist.model.roles import Role
from blocklist.model.time import format_utc
from blocklist.model.usable_nodes import ListenerNodes, NodeSet, Shortfall, blocked_ids, shortfalls

LEEWAY_MS: Final = 60_000
"""Milliseconds by which a block may exceed the longest duration, as the client's clock may be ahead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The configured limits. 0 means no limit, as does a share of 1; the longest blocks are in milliseconds."""

    max_blocked: int = 0
    max_share: float = 1.0
    max_by_author: int = 0
    longest_operator_ms: int = 0
    longest_admin_ms: int = 0

    def __bool__(self) -> bool:
        """Whether any limit is set."""
        return self != _NONE

    def longest_ms(self, role: Role) -> int:
        """Longest block that a role may make, in milliseconds; 0 means no limit."""
        return self.longest_admin_ms if role is Role.ADMIN else self.longest_operator_ms


_NONE: Final = Limits()


@dataclass(frozen=True, kw_only=True, slots=True)
class EvidenceLimit:
    """How many nodes evidence may block at once: this share of the confirmed nodes, at least one. 1 means no limit.

    `confirmed` returns the number of confirmed nodes, see blocklist.model.confirmed_nodes.
    """

    share: float
    confirmed: Callable[[], int]

    def max_nodes(self) -> int | None:
        """Maximum number of nodes; None if there is no limit."""
        return None if self.share >= 1 else max(1, _share_of(self.share, self.confirmed()))

    def error(self, max_nodes: int) -> LimitError:
        """The error of a block beyond the maximum."""
        return LimitError(
            f"Evidence may block at most {max_nodes} {_plural(max_nodes)} at once: {self.share:g} of the"
            f" {self.confirmed()} confirmed nodes, at least one (BLOCKLIST_EVIDENCE_MAX_SHARE)."
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitContext:
    """The state before a change.

    `author_of` returns the author of a blocked node's last change, None if unknown. `listeners` are the live listeners
    with a minimum. `known` are the nodes that live listeners report as theirs, None if none reports any.
    """

    draft: Draft
    author_of: Callable[[str], str | None]
    listeners: Sequence[ListenerNodes] = ()
    known: NodeSet | None = None


def check_limits(limits: Limits, context: LimitContext, proposed: Draft, role: Role) -> None:
    """Raise LimitError with a sentence for each limit that `proposed`, a fork of `context.draft`, exceeds.

    `role` is the role of the author.
    """
    escalations = [change for change in proposed.changes if _escalates(change, context.draft)]
    if not escalations:
        return
    lines = [
        *_count_violations(limits, context, proposed, escalations),
        *_duration_violations(limits, context.draft, escalations, role),
    ]
    lines += [_minimum_violation(shortfall) for shortfall in shortfalls(context.listeners, context.draft, proposed)]
    if lines:
        raise LimitError(" ".join(lines), lines)


def _escalates(change: Change, current: Draft) -> bool:
    """Whether the change makes a new, longer or stronger block."""
    if change.type is ChangeType.BLOCKED:
        return True
    before = current.get_blocked(change.node.id)
    if change.type is not ChangeType.MERGED or before is None:
        return False
    return change.node.end > before.end or change.node.action > before.action


def _count_violations(
    limits: Limits, context: LimitContext, proposed: Draft, escalations: Sequence[Change]
) -> Iterator[str]:
    new = [change.node.id for change in escalations if change.type is ChangeType.BLOCKED]
    count = context.draft.count(context.draft.now)
    if limits.max_blocked and new and count + len(new) > limits.max_blocked:
        yield (
            f"This would block {count + len(new)} nodes; at most {limits.max_blocked} may be blocked at once"
            f" (BLOCKLIST_MAX_BLOCKED): {_remaining(limits.max_blocked - count)}."
        )
    if limits.max_share < 1 and new and context.known is not None:
        yield from _share_violations(limits.max_share, context.known, context.draft, new)
    if limits.max_by_author:
        yield from _author_violations(limits.max_by_author, context, proposed.author.name, escalations)


def _share_violations(share: float, known: NodeSet, current: Draft, new_ids: Iterable[str]) -> Iterator[str]:
    before = known.matching(blocked_ids(current))
    after = before | known.matching(new_ids)
    max_nodes = _share_of(share, len(known))
    if len(after) > max(max_nodes, len(before)):
        yield (
            f"This would block {len(after)} of the {len(known)} known nodes; at most {max_nodes} may be blocked at once"
            f" (BLOCKLIST_MAX_BLOCKED_SHARE is {share:g}): {_remaining(max_nodes - len(before))}."
        )


def _share_of(share: float, count: int) -> int:
    # Decimal of the text: as a float, 0.29 of 100 would be less than 29.
    return int(Decimal(str(share)) * count)


def _author_violations(
    max_nodes: int, context: LimitContext, author: str | None, escalations: Iterable[Change]
) -> Iterator[str]:
    """A block counts for the author of its last change: extending somebody else's block makes it one's own."""
    drafted = {change.node.id: change.created_by for change in context.draft.changes}

    def is_by_author(node_id: str) -> bool:
        return (drafted[node_id] if node_id in drafted else context.author_of(node_id)) == author

    before = {node_id for node_id in blocked_ids(context.draft) if is_by_author(node_id)}
    after = before | {change.node.id for change in escalations}
    if len(after) > max(max_nodes, len(before)):
        name = "authors without a name" if author is None else author
        yield (
            f"This would be {len(after)} nodes blocked by {name}; one author may block at most {max_nodes}"
            f" (BLOCKLIST_MAX_BLOCKED_BY_AUTHOR): {_remaining(max_nodes - len(before))}."
        )


def _duration_violations(limits: Limits, current: Draft, escalations: Iterable[Change], role: Role) -> Iterator[str]:
    longest = limits.longest_ms(role)
    if not longest or not any(_exceeds_duration(change, current, longest) for change in escalations):
        return
    subject, alternative = ("An admin", "force it") if role is Role.ADMIN else ("An operator", "ask an admin")
    allowed, latest = exact_duration(longest), format_utc(current.now + longest)
    yield f"{subject} may block for at most {allowed}: end it by {latest} at the latest, or {alternative}."


def _exceeds_duration(change: Change, current: Draft, longest_ms: int) -> bool:
    """A merge counts only if it moves the end: an author who adds a cause did not choose the existing end."""
    before = current.get_blocked(change.node.id)
    extended = before is None or change.node.end > before.end
    return extended and change.node.end > current.now + longest_ms + LEEWAY_MS


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
