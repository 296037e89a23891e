"""Grouping: events with the same cause and author become one notice, and notices per minute are limited. Pure.

Memory is bounded, whatever happens: a group keeps a few names and a number, and there are few groups.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

# Events: what notices are about. Pure values.


class NoticeKind(StrEnum):
    """Blocked; evacuated: nothing runs there any more; freed: unblocked or expired; refused by a listener; drift."""

    BLOCKED = "blocked"
    EVACUATED = "evacuated"
    FREED = "freed"
    REFUSED = "refused"
    DRIFT = "drift"


class Subject(NamedTuple):
    """What the events of one notice have in common.

    `what` says more about the kind, `cause` is the cause of the block or what differs, `by` is who: the author of the
    change, or the listener that refuses or reports.
    """

    kind: NoticeKind
    what: str
    cause: str
    by: str


class Event(NamedTuple):
    """Something happened to a node, at a time (Unix milliseconds). `reason` is the reason of a refusal, or of drift."""

    subject: Subject
    node: str
    at: int
    reason: str = ""


WINDOW_SECONDS: Final = 5.0
"""How long a group is open, from its first event."""
MAX_PER_MINUTE: Final = 10
"""Maximum number of notices in any 60 seconds: more than that nobody reads."""
MAX_NAMED: Final = 20
"""Maximum number of nodes that a notice names."""
MAX_REASONS: Final = 3
"""Maximum number of reasons in a notice."""
MAX_GROUPS_OF_KIND: Final = 5
"""Maximum number of groups of one kind at a time; further events of the kind share one more group."""
MINUTE: Final = 60.0
VARIOUS: Final = "various"
"""The cause, and the author, of a group whose events differ in these."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """What was not sent: the number of notices, and of events in them."""

    notices: int = 0
    events: int = 0

    def __add__(self, other: LeftOut) -> LeftOut:
        return LeftOut(notices=self.notices + other.notices, events=self.events + other.events)

    def __bool__(self) -> bool:
        return bool(self.notices)


NOTHING: Final = LeftOut()


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """One notice: the first nodes, and the number of events in it. Without a subject it only says what was left out."""

    subject: Subject | None = None
    at: int = 0
    nodes: Sequence[str] = ()
    events: int = 0
    reasons: Sequence[str] = ()
    left_out: LeftOut = NOTHING

    def with_left_out(self, more: LeftOut) -> Notice:
        """The same notice, which says that more was left out before it."""
        return replace(self, left_out=self.left_out + more)


@dataclass(kw_only=True, slots=True)
class _Group:
    subject: Subject
    opened_at: float
    at: int
    nodes: dict[str, None] = field(default_factory=dict)
    events: int = 0
    reasons: dict[str, None] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        self.events += 1
        if len(self.nodes) < MAX_NAMED:
            self.nodes[event.node] = None
        if event.reason and len(self.reasons) < MAX_REASONS:
            self.reasons[event.reason] = None

    def notice(self) -> Notice:
        return Notice(
            subject=self.subject, at=self.at, nodes=[*self.nodes], events=self.events, reasons=[*self.reasons]
        )


class NoticeGroups:
    """Events come in, notices come out. `now` is in seconds and never goes back.

    What is beyond MAX_PER_MINUTE is left out, counted, and said in the next notice.
    """

    def __init__(self) -> None:
        self._groups: dict[Subject, _Group] = {}
        self._of_kind: Counter[NoticeKind] = Counter()
        self._sent_at: deque[float] = deque(maxlen=MAX_PER_MINUTE)
        self._left_out = NOTHING

    def add(self, event: Event, now: float) -> None:
        """An event happened."""
        group = self._groups.get(event.subject) or self._open(event, now)
        group.add(event)

    def due(self, now: float, *, all_groups: bool = False) -> tuple[list[Notice], int]:
        """The notices to send now, and how many were left out; `all_groups`: also of groups that are still open."""
        notices: list[Notice] = []
        left_out = 0
        for group in self._close(now, all_groups=all_groups):
            if self._take(now):
                notices.append(self._say_left_out(group.notice()))
            else:
                self._left_out += LeftOut(notices=1, events=group.events)
                left_out += 1
        if self._left_out and not self._groups and self._take(now):
            notices.append(self._say_left_out(Notice()))
        return notices, left_out

    def _open(self, event: Event, now: float) -> _Group:
        subject, kind = event.subject, event.subject.kind
        if self._of_kind[kind] >= MAX_GROUPS_OF_KIND:
            subject = Subject(kind, "", VARIOUS, VARIOUS)
        if (group := self._groups.get(subject)) is None:
            group = self._groups[subject] = _Group(subject=subject, opened_at=now, at=event.at)
            self._of_kind[kind] += 1
        return group

    def _close(self, now: float, *, all_groups: bool) -> Iterable[_Group]:
        closed = [group for group in self._groups.values() if all_groups or now - group.opened_at >= WINDOW_SECONDS]
        for group in closed:
            del self._groups[group.subject]
            self._of_kind[group.subject.kind] -= 1
        return closed

    def _take(self, now: float) -> bool:
        """Whether one more notice may be sent now; if so, it counts."""
        if len(self._sent_at) == MAX_PER_MINUTE and now - self._sent_at[0] < MINUTE:
            return False
        self._sent_at.append(now)
        return True

    def _say_left_out(self, notice: Notice) -> Notice:
        left_out, self._left_out = self._left_out, NOTHING
        return notice.with_left_out(left_out)
