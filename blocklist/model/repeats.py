"""Repeats: an automatic block of a node lasts longer after others. Pure; durations are in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from blocklist.model.durations import format_duration

MAX_DURATION_MS: Final = 7 * 86_400_000
"""Maximum duration of an automatic block that is doubled: a limit on the blocks of operators applies as well."""
MAX_COUNTED: Final = 32
"""Maximum number of earlier blocks of a node id that are remembered: a second doubled 32 times is 136 years."""
_ORDINALS: Final = ("", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


@dataclass(frozen=True, kw_only=True, slots=True)
class Repeat:
    """That a claim is at least the second automatic block of its node within `window`: the `number`-th.

    It was made for `duration`; the first one would have been made for `usual`.
    """

    number: int
    window: int
    usual: int
    duration: int

    def __post_init__(self) -> None:
        if not all(isinstance(value, int) for value in (self.number, self.window, self.usual, self.duration)):
            raise TypeError("a field of a repeat is not a number")

    def __str__(self) -> str:
        """`third automatic block in 30 days: 4h instead of 1h`."""
        counted = f"{_ordinal(self.number)} automatic block in {_exact(self.window)}"
        if self.duration == self.usual:
            return counted
        return f"{counted}: {_exact(self.duration)} instead of {_exact(self.usual)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class RepeatRule:
    """Each block within `window` doubles the duration, up to `max_duration`; a `window` of 0 disables this.

    After a block that was not the first, the node is on probation for `probation`; 0 disables that. Only blocks that
    are among the last `max_changes` changes count: a replica that starts knows no others.
    """

    window: int = 0
    max_duration: int = 0
    probation: int = 0
    max_changes: int = 1_000_000

    def duration(self, usual: int, earlier: int) -> int:
        """The duration of a block after `earlier` others. A usual duration beyond the maximum is not shortened."""
        return max(usual, min(usual << min(earlier, MAX_COUNTED), self.max_duration))

    def repeat(self, usual: int, earlier: int) -> Repeat | None:
        """The repeat that a block after `earlier` others is; None if it is the first."""
        if not earlier:
            return None
        duration = self.duration(usual, earlier)
        return Repeat(number=earlier + 1, window=self.window, usual=usual, duration=duration)


def _ordinal(number: int) -> str:
    if number < len(_ORDINALS):
        return _ORDINALS[number]
    tens, ones = divmod(number, 10)
    ending = {1: "st", 2: "nd", 3: "rd"}.get(ones, "th") if tens % 10 != 1 else "th"
    return f"{number}{ending}"


def _exact(millis: int) -> str:
    """`30 days`, not `4w 2d`; `4h`."""
    days, rest = divmod(millis, 86_400_000)
    return f"{days} day{'' if days == 1 else 's'}" if days and not rest else format_duration(millis)
