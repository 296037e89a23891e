"""Guard rails: how much may be blocked, by whom and for how long. Pure; told the time by the drafts.

Only what newly blocks a node, lengthens its block or makes it stronger is ever refused: a block that says no more than
what is there passes, and unblocking always does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from blocklist.model.changes import Change, ChangeType
from blocklist.model.draft import Draft
from blocklist.model.errors import LimitError
from blocklist.model.roles import Access
from blocklist.model.time import utc
from blocklist.model.usable_nodes import Below, NodeSet, Using, below, blocked_ids

LEEWAY: Final = 60_000
"""Milliseconds by which a block may be too long: who asked for the longest may have a clock that is ahead."""
_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What an operator has set. 0 is no limit, as is a share of 1; the longest blocks are in milliseconds."""

    blocked: int = 0
    share: float = 1.0
    by_author: int = 0
    longest_operator: int = 0
    longest_admin: int = 0

    def __bool__(self) -> bool:
        """Whether there is any."""
        return self != _NONE

    def longest(self, access: Access) -> int:
        """The longest block of a role."""
        return self.longest_admin if access is Access.ADMIN else self.longest_operator


_NONE: Final = Limits()


@dataclass(frozen=True, kw_only=True, slots=True)
class Present:
    """What is there before a change: the list, who blocked what is on it, who uses which nodes.

    `author_of` names who made the last change of a blocked node, None where nobody is known. `known` are the nodes
    that live listeners name as all theirs, None if none of them does. `listeners` are the live ones with a minimum.
    """

    draft: Draft
    author_of: Callable[[str], str | None]
    listeners: Sequence[Using] = ()
    known: NodeSet | None = None


def check(limits: Limits, present: Present, wanted: Draft, access: Access) -> None:
    """Raise LimitError with a sentence for each limit that the changes of `wanted`, a trial of `present`, go beyond.

    `access` is the role of who asks for them.
    """
    more = [change for change in wanted.changes if _is_more(change, present.draft)]
    if not more:
        return
    lines = [*_counts(limits, present, wanted, more), *_too_long(limits, present.draft, more, access)]
    lines += [_too_few(own) for own in below(present.listeners, present.draft, wanted)]
    if lines:
        raise LimitError(" ".join(lines), lines)


def _is_more(change: Change, present: Draft) -> bool:
    """Whether it blocks the node newly, for longer, or stronger."""
    if change.type is ChangeType.BLOCKED:
        return True
    before = present.blocked(change.node.id)
    if change.type is not ChangeType.MERGED or before is None:
        return False
    return change.node.end > before.end or change.node.action > before.action


def _counts(limits: Limits, present: Present, wanted: Draft, more: Sequence[Change]) -> Iterator[str]:
    new = [change.node.id for change in more if change.type is ChangeType.BLOCKED]
    count = present.draft.count(present.draft.now)
    if limits.blocked and new and count + len(new) > limits.blocked:
        yield (
            f"This would block {count + len(new)} nodes; at most {limits.blocked} may be blocked at once"
            f" (BLOCKLIST_MAX_BLOCKED): {_room(limits.blocked - count)}."
        )
    if limits.share < 1 and new and present.known is not None:
        yield from _share(limits.share, present.known, present.draft, new)
    if limits.by_author:
        yield from _by_author(limits.by_author, present, wanted.author.name, more)


def _share(share: float, known: NodeSet, present: Draft, new: Iterable[str]) -> Iterator[str]:
    before = known.taken(blocked_ids(present))
    after = before | known.taken(new)
    # By way of its text: 0.29 of 100 is 29, and not a little less.
    most = int(Decimal(str(share)) * len(known))
    if len(after) > max(most, len(before)):
        yield (
            f"This would block {len(after)} of the {len(known)} known nodes; at most {most} may be blocked at once"
            f" (BLOCKLIST_MAX_BLOCKED_SHARE is {share:g}): {_room(most - len(before))}."
        )


def _by_author(most: int, present: Present, author: str | None, more: Iterable[Change]) -> Iterator[str]:
    """Who changes a node last has it: lengthening somebody else's block adds one to one's own."""
    drafted = {change.node.id: change.created_by for change in present.draft.changes}

    def is_own(node_id: str) -> bool:
        return (drafted[node_id] if node_id in drafted else present.author_of(node_id)) == author

    own = {node_id for node_id in blocked_ids(present.draft) if is_own(node_id)}
    after = own | {change.node.id for change in more}
    if len(after) > max(most, len(own)):
        who = "authors without a name" if author is None else author
        yield (
            f"This would be {len(after)} nodes blocked by {who}; one author may block at most {most}"
            f" (BLOCKLIST_MAX_BLOCKED_BY_AUTHOR): {_room(most - len(own))}."
        )


def _too_long(limits: Limits, present: Draft, more: Iterable[Change], access: Access) -> Iterator[str]:
    longest = limits.longest(access)
    if not longest or not any(_longer(change, present, longest) for change in more):
        return
    who, otherwise = ("An admin", "force it") if access is Access.ADMIN else ("An operator", "ask an admin")
    latest = _utc(present.now + longest)
    yield f"{who} may block for at most {duration(longest)}: end it by {latest} at the latest, or {otherwise}."


def _longer(change: Change, present: Draft, longest: int) -> bool:
    """A merge counts only if it moves the end: who adds a cause did not choose the end that is there."""
    before = present.blocked(change.node.id)
    moved = before is None or change.node.end > before.end
    return moved and change.node.end > present.now + longest + LEEWAY


def _too_few(own: Below) -> str:
    return (
        f"Listener {own.listener} would be left with {own.usable} usable {_nodes(own.usable)} and needs {own.minimum}:"
        f" {_room(own.before - own.minimum)} among its nodes."
    )


def _room(count: int) -> str:
    """What would be allowed."""
    return "no more is possible" if count <= 0 else f"{count} more {'is' if count == 1 else 'are'} possible"


def _nodes(count: int) -> str:
    return "node" if count == 1 else "nodes"


def duration(millis: int) -> str:
    """Milliseconds as settings have them, in the largest unit that makes a whole number: `7d`, `36h`, `90s`."""
    unit, name = next((unit, name) for unit, name in _UNITS if millis % unit == 0)
    return f"{millis // unit}{name}"


def _utc(millis: int) -> str:
    moment = utc(millis)
    return f"{millis} (Unix milliseconds)" if moment is None else f"{moment:%Y-%m-%dT%H:%M:%SZ}"
