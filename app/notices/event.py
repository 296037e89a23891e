"""Events: what notices are about. Pure values."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


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
