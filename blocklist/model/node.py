"""BlockedNode and how blocks merge (FLIP-224); node ranges, states of a block, times, durations, retry delays. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum
from itertools import islice, product
from typing import Final, NamedTuple, Self

from blocklist.model.errors import InvalidError
from blocklist.model.names import normalize_address

PERMANENT: Final = 2**63 - 1
"""The end of a permanent block, in Unix milliseconds (Java's Long.MAX_VALUE)."""

MIN_TIMESTAMP: Final = -(2**63)
MAX_CAUSE_LENGTH: Final = 1024
"""Maximum length of the cause in a request, in characters; a merged cause may be longer."""
MAX_CAUSES: Final = 32
"""Maximum number of parts of a merged cause."""

_ID = re.compile(r"[A-Za-z0-9._:-]{1,253}", re.ASCII)
# C0, DEL and C1 control characters, and surrogates, which UTF-8 cannot encode.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class BlockAction(IntEnum):
    """What happens to tasks on the node; ordered, the second is stronger."""

    MARK_BLOCKED = 1
    MARK_BLOCKED_AND_EVACUATE_TASKS = 2

    @property
    def short_name(self) -> str:
        """`mark` or `evacuate`."""
        return _SHORT_NAMES[self]


ACTION_BY_NAME: Final[Mapping[str, BlockAction]] = {
    "mark": BlockAction.MARK_BLOCKED,
    "evacuate": BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS,
}
"""By short name, as in the command, the page and the alert label `blocklist`."""
_SHORT_NAMES: Final = {action: word for word, action in ACTION_BY_NAME.items()}


@dataclass(unsafe_hash=True, kw_only=True, slots=True)
class BlockedNode:
    """A node on which no new task may start in the half-open interval [start, end), in Unix milliseconds.

    A `canary` leaves one executor of each Spark application on the node, to show whether it has recovered. Raises
    InvalidError for an invalid id, an empty or unprintable cause, a time beyond 64 bits, or a canary that evacuates.
    """

    # Final instead of `frozen`: see Change.
    id: Final[str]
    action: Final[BlockAction]
    start: Final[int]
    end: Final[int]
    cause: Final[str]
    canary: Final[bool] = False

    def __post_init__(self) -> None:
        if not is_id(self.id):
            raise InvalidError(_not_a_node_id(self.id))
        check_text(self.cause)
        if not self.cause:
            raise InvalidError("The cause of a block must not be empty.")
        if not MIN_TIMESTAMP <= self.start <= PERMANENT or not MIN_TIMESTAMP <= self.end <= PERMANENT:
            raise InvalidError("Start and end must be signed 64-bit Unix milliseconds.")
        if self.canary and self.action is not BlockAction.MARK_BLOCKED:
            raise InvalidError("canary: only MARK_BLOCKED can leave an executor on the node; an evacuation stops all.")

    @property
    def short_action(self) -> str:
        """`mark`, `mark(canary)` or `evacuate`."""
        return short_action(self.action, canary=self.canary)

    @property
    def evacuates(self) -> bool:
        return self.action is BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS

    @property
    def permanent(self) -> bool:
        return self.end == PERMANENT

    def ended(self, now: int) -> bool:
        """Whether the block has ended: from `now == end` on."""
        return now >= self.end


def short_action(action: BlockAction, *, canary: bool) -> str:
    """`mark`, `mark(canary)` or `evacuate`: one word, as rows of tables are split at blanks."""
    return f"{action.short_name}(canary)" if canary else action.short_name


def merge(current: BlockedNode, new: BlockedNode) -> BlockedNode:
    """Merge two blocks of one node field by field (FLIP-224, Merge).

    The stronger action, the later end, the earlier start, both causes; a canary only if both are. Each field is merged
    on its own, so that a later but weaker block never cancels an evacuation. Idempotent; commutative except for the
    order of causes and their maximum number. Returns `current` itself if nothing changes.
    """
    if current.id != new.id:
        raise ValueError(f"cannot merge {new.id} into {current.id}")
    merged = replace(
        current,
        action=max(current.action, new.action),
        start=min(current.start, new.start),
        end=max(current.end, new.end),
        cause=merge_causes(current.cause, new.cause),
        canary=current.canary and new.canary,
    )
    return current if merged == current else merged


def merge_causes(current: str, new: str) -> str:
    """The union of two comma-separated causes as an ordered set.

    Merging a cause into itself returns the identical string. Only the last MAX_CAUSES parts of the new cause count, and
    the union has at most MAX_CAUSES parts: the oldest are dropped first, but never parts of the new cause, so that
    merging it twice is the same as once.
    """
    added = new.split(",")[-MAX_CAUSES:]
    existing = set(parts := current.split(","))
    if existing.issuperset(added):
        return current
    union = list(dict.fromkeys((*parts, *added)))
    excess = len(union) - MAX_CAUSES
    if excess > 0:
        named = set(added)
        dropped = set([part for part in union if part not in named][:excess])
        union = [part for part in union if part not in dropped]
    return ",".join(union)


def check_node_id(text: str) -> str:
    """The id of a node in the form in which it is kept: see node_id_of. Raises InvalidError if it is none."""
    node_id = node_id_of(text)
    if node_id is None:
        raise InvalidError(_not_a_node_id(text))
    return node_id


def _not_a_node_id(text: str) -> str:
    return f"{_quoted(text)} is not a node id: use 1 to 253 of A-Z a-z 0-9 . _ : - (a host name or an IP address)."


def node_id_of(text: str) -> str | None:
    """The id of a node: a name as it is given, an address in its one form. None for anything else.

    Everything that enters, here or in a client, is brought into this form. An id is 1 to 253 of `A-Z a-z 0-9 . _ : -`,
    and not `.` or `..`.
    """
    form = normalize_address(text) or text
    return form if is_id(form) else None


def is_node_id(text: str) -> bool:
    """Whether it is the id of a node in any form."""
    return node_id_of(text) is not None


def check_id(text: str) -> str:
    """The id of a listener, a session, a TaskManager or a token, as it is: it has the characters of a node id.

    Raises InvalidError if it has others.
    """
    if not is_id(text):
        raise InvalidError(_not_a_node_id(text))
    return text


def is_id(text: str) -> bool:
    """Whether it has the characters of an id."""
    return _ID.fullmatch(text) is not None and text not in {".", ".."}


def check_text(text: str) -> str:
    """Return `text`; raise InvalidError if it has control characters or lone surrogates.

    Python has lone surrogates for the bytes of an argument that are not UTF-8.
    """
    if found := _UNPRINTABLE.search(text):
        is_surrogate = found[0] >= "\ud800"
        raise InvalidError("The text is not UTF-8." if is_surrogate else "Control characters are not allowed.")
    return text


def _quoted(text: str) -> str:
    shown = text if len(text) <= 64 else text[:64] + "…"
    return ascii(shown)


# Node ranges as in Slurm and pdsh: `worker-[01-12]`, `r[1-2]n[a,b,07-09]`, separated by commas.

MAX_NODES: Final = 1000
"""Maximum number of nodes of one command, as of one request."""
_COMMA: Final = re.compile(r",(?![^\[\]]*\])")
_BRACKETS: Final = re.compile(r"([^\[\]]*)\[([^\[\]]*)\]")
_OTHER_RANGE: Final = re.compile(r"([0-9]+)(?:\.\.|:)([0-9]+)", re.ASCII)
_RANGE: Final = re.compile(r"([0-9]{1,18})-([0-9]{1,18})", re.ASCII)


def expand_nodes(words: Iterable[str]) -> list[str]:
    """The node ids of the words, in order and without duplicates, in whatever case.

    Raises ValueError for an invalid word or id, no nodes, or more than MAX_NODES.
    """
    node_ids = dict.fromkeys(islice(_expand_words(words), MAX_NODES + 1))
    if not node_ids:
        raise ValueError("No node is given: name at least one.")
    if len(node_ids) > MAX_NODES:
        raise ValueError(f"More than {MAX_NODES:,} nodes are given: split them into several commands.")
    return list(node_ids)


def _expand_words(words: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for word in words:
        for part in _COMMA.split(word):
            for node_id in _expand_part(part, word):
                # Duplicates do not count towards the maximum.
                name = node_id.lower().rstrip(".")
                if name not in seen:
                    seen.add(name)
                    yield _checked_id(node_id)


def _expand_part(part: str, word: str) -> Iterator[str]:
    """Expand a part without commas outside of brackets. Huge ranges are never held in memory."""
    if (address := normalize_address(part)) is not None:
        yield address
        return
    pieces: list[str] = []
    values: list[list[str]] = []
    end = 0
    for match in _BRACKETS.finditer(part):
        pieces.append(match[1])
        values.append(list(islice(_bracket_values(match[2], word), MAX_NODES + 1)))
        end = match.end()
    rest = part[end:]
    if not part or "[" in rest or "]" in rest:
        raise ValueError(f"{word[:64]!a} is invalid: write several nodes as worker-[01-12] or r[1-2]n[a,b,07-09].")
    for chosen in product(*values):
        yield "".join(piece + choice for piece, choice in zip(pieces, chosen, strict=True)) + rest


def _bracket_values(brackets: str, word: str) -> Iterator[str]:
    for item in brackets.split(","):
        if match := _RANGE.fullmatch(item):
            first, last = int(match[1]), int(match[2])
            if first > last:
                raise ValueError(f"{word[:64]!a}: the range {item} is descending: write the lower number first.")
            # As in Slurm, the first number sets the number of digits.
            yield from (f"{number:0{len(match[1])}}" for number in range(first, last + 1))
        elif other := _OTHER_RANGE.fullmatch(item):
            raise ValueError(f"{word[:64]!a}: write the range {item[:64]} as {other[1]}-{other[2]}."[:200])
        elif item and "-" not in item:
            yield item
        else:
            raise ValueError(f"{word[:64]!a}: {item[:64]!a} is neither a name nor a range of numbers.")


def _checked_id(node_id: str) -> str:
    try:
        return check_node_id(node_id)
    except InvalidError as error:
        raise ValueError(error.detail) from None


# How many tasks run on a node, as far as their listeners report it, and what is known of a block.


@dataclass(frozen=True, slots=True)
class TaskCount:
    """The sum over the TaskManagers whose tasks are reported, and the numbers of TaskManagers that are and are not.

    `silent` is whether there may be further TaskManagers, as not every job reports where its own are.
    """

    known: int
    reported: int
    unreported: int
    silent: bool = False

    @classmethod
    def of(cls, running_tasks: Iterable[int | None], *, silent: bool = False) -> Self:
        """The sum of one number for each TaskManager; None if it is not reported."""
        numbers = list(running_tasks)
        known = [number for number in numbers if number is not None]
        return cls(sum(known), len(known), len(numbers) - len(known), silent)

    @property
    def task_managers(self) -> int:
        return self.reported + self.unreported

    @property
    def others_unknown(self) -> bool:
        """Whether there may be tasks that are not reported."""
        return bool(self.unreported) or self.silent

    @property
    def may_run(self) -> bool:
        """Whether a task runs, or may run where none is reported."""
        return bool(self.known) or self.others_unknown

    @property
    def may_end(self) -> bool:
        """Whether a later report is expected to have less."""
        return bool(self.known or self.unreported)

    def text(self) -> str:
        """`1 running task`, `3 running tasks, others unknown` or `an unknown number of running tasks`."""
        if self.others_unknown and not self.known:
            return "an unknown number of running tasks"
        tasks = f"{self.known:,} running task{'' if self.known == 1 else 's'}"
        return f"{tasks}, others unknown" if self.others_unknown else tasks


NO_TASKS: Final = TaskCount(0, 0, 0)


class BlockState(StrEnum):
    """What is known of a block, at one listener or at all of them; first what keeps the node from being drained."""

    REFUSED = "refused"
    PENDING = "pending"
    RUNNING = "running"
    UNKNOWN = "unknown"
    EMPTY = "empty"
    NOT_HERE = "not-here"

    @property
    def is_applied(self) -> bool:
        """Whether the block is in force, whatever still runs on the node."""
        return self not in {BlockState.REFUSED, BlockState.PENDING, BlockState.NOT_HERE}


def block_state(tasks: TaskCount, *, refused: bool, applied: bool, not_here: bool = False) -> BlockState:
    """What is known of a block: the one place that decides that it is applied, and that nothing runs on its node.

    `applied` is whether its last change is acknowledged, `refused` whether it is not carried out anyway, `not_here`
    whether the node is said to be none of these; `tasks` are those on the node.
    """
    if refused:
        return BlockState.REFUSED
    if not applied:
        return BlockState.PENDING
    if not_here:
        return BlockState.NOT_HERE
    if tasks.known:
        return BlockState.RUNNING
    return BlockState.UNKNOWN if tasks.others_unknown else BlockState.EMPTY


def any_silent(jobs: Iterable[bool], *, managers_report: bool = False) -> bool:
    """Whether any job may run tasks on nodes where it reports none: see TaskCount.silent.

    `jobs` has for each job, also for those that have lapsed, whether it is live and reports its TaskManagers. Without
    any job nobody knows what runs, unless `managers_report`: a live manager reports what its cluster runs.
    """
    reporting = list(jobs)
    return not (all(reporting) and (reporting or managers_report))


class AppliedBy(NamedTuple):
    """Who must have applied a change: a share of the live listeners in percent, or all ResourceManagers."""

    percent: int = 100
    managers: bool = False

    def __str__(self) -> str:
        return "managers" if self.managers else f"{self.percent}%"

    @classmethod
    def parse(cls, text: str) -> Self:
        """`95%` or `managers`. Raises ValueError with a sentence."""
        if text == "managers":
            return cls(managers=True)
        number = text.removesuffix("%")
        if number == text or not (number.isascii() and number.isdecimal() and 1 <= int(number[:9]) <= _ALL):
            raise ValueError(f"{text[:64]!a} is neither a share of the listeners, such as 95%, nor managers.")
        return cls(percent=int(number))

    def is_met(self, applied: int, total: int) -> bool:
        """Whether `applied` of `total` listeners, which are at least one, are enough."""
        return total > 0 and _ALL * applied >= self.percent * total


_ALL: Final = 100
ALL_LISTENERS: Final = AppliedBy()


# Unix milliseconds: conversion to and from datetime, and as text. Pure.


def to_utc(millis: int) -> datetime | None:
    """The time as a datetime in UTC; None after the year 9999, which datetime cannot represent."""
    try:
        return datetime.fromtimestamp(millis / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def to_millis(duration: timedelta) -> int:
    """The duration in milliseconds, rounded to the nearest."""
    return round(duration.total_seconds() * 1000)


def format_utc(millis: int) -> str:
    """The time in UTC to the second: `2026-11-21T03:12:00Z`; in milliseconds if datetime cannot represent it."""
    time = to_utc(millis)
    return f"{millis} (Unix milliseconds)" if time is None else f"{time:%Y-%m-%dT%H:%M:%SZ}"


# Durations as text: `90s`, `2h`, `1d12h`. Pure.

FOREVER: Final = "forever"
DEFAULT_DURATION: Final = "4h"
"""Duration of a block for which the operator gives no end."""
_UNITS: Final = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_PART: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|[smhdw])", re.ASCII)


def parse_duration(text: str) -> int:
    """The duration in milliseconds, at least 1. Raises ValueError for an invalid one."""
    parts = _PART.findall(text)
    millis = round(sum(float(number) * _UNITS[unit] for number, unit in parts))
    if "".join(number + unit for number, unit in parts) != text or millis < 1:
        raise ValueError(f"{text[:64]!a} is not a duration: give one such as 90s, 2h, 1d12h or 7d.")
    return millis


def parse_duration_or_forever(text: str) -> int:
    """Milliseconds, PERMANENT for `forever`. Raises ValueError with a sentence."""
    return PERMANENT if text == FOREVER else parse_duration(text)


def format_duration(millis: int) -> str:
    """`1d 12h`, `4h`, `45s`: rounded to seconds, the two largest units."""
    if 0 < millis < 1000:
        return f"{millis}ms"
    left = round(millis / 1000) * 1000
    parts: list[tuple[int, str]] = []
    for unit, size in _UNITS.items():
        count, left = divmod(left, size)
        if count or parts:
            parts.append((count, unit))
    return " ".join(f"{count}{unit}" for count, unit in parts[:2] if count) or "0s"


def exact_duration(millis: int) -> str:
    """The duration as in settings, in the largest unit up to days that gives a whole number: `7d`, `36h`, `90s`."""
    unit = next(unit for unit, size in _UNITS.items() if unit != "w" and millis % size == 0)
    return f"{millis // _UNITS[unit]}{unit}"


# Retry delays. Pure; the caller provides the random number.


@dataclass(frozen=True, kw_only=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter, in seconds: from `floor` to min(cap, initial * 2^(failures - 1))."""

    initial: float = 0.2
    cap: float = 10.0
    floor: float = 0.05

    def delay(self, failures: int, jitter: float, retry_after: float | None = None) -> float:
        """Seconds to wait after `failures` consecutive failures (at least 1).

        `jitter` is a random number in [0, 1). `retry_after` is the minimum that the server requested (Retry-After, or
        `retry:` of an event stream), limited to the cap.
        """
        if failures < 1:
            raise ValueError("failures must be at least 1")
        ceiling = min(self.cap, self.initial * 2.0 ** min(failures - 1, 32))
        wait = self.floor + jitter * max(0.0, ceiling - self.floor)
        return max(wait, min(retry_after, self.cap)) if retry_after else wait
