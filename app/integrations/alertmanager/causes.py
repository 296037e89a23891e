"""Which alerts hold a node: read from the parts of its cause, the only place where it is kept. Pure.

A part is `alert DiskFull: disk almost full [809c736d]` when an alert fires, and `resolved DiskFull [809c736d]` is added
when it resolves while something else holds the node: a merge adds to a cause, it takes nothing away. In brackets is the
mark of the alert, and a number when it fires not for the first time. All other parts are somebody else's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from blocklist.model.node import MAX_CAUSE, BlockedNode

MAX_NAME: Final = 200
_PART: Final = re.compile(r"(alert|resolved) .*\[([0-9a-f]{8})(?: ([1-9][0-9]{0,8}))?\]", re.ASCII)
# What a cause may not hold, commas, which part causes, and blanks in rows.
_HARMFUL: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\\s]+")


@dataclass(frozen=True, slots=True)
class _Fired:
    """An alert as a cause tells of it: how often it has fired, how often resolved, and its last part."""

    times: int = 0
    resolved: int = 0
    part: str = ""

    @property
    def holds(self) -> bool:
        return self.times > self.resolved


class Causes:
    """The cause of a node's present block, part by part; that of a free node is empty."""

    def __init__(self, node: BlockedNode | None) -> None:
        self.foreign: list[str] = []
        self._alerts: dict[str, _Fired] = {}
        for part in node.cause.split(",") if node is not None else ():
            self._read(part)

    def _read(self, part: str) -> None:
        match = _PART.fullmatch(part)
        if match is None:
            self.foreign.append(part)
            return
        said, mark, number = match[1], match[2], int(match[3] or 1)
        known = self._alerts.get(mark, _Fired())
        if said == "resolved":
            self._alerts[mark] = _Fired(known.times, max(known.resolved, number), known.part)
        elif number > known.times:
            self._alerts[mark] = _Fired(number, known.resolved, part)

    @property
    def holding(self) -> dict[str, str]:
        """The alerts that hold the node: mark to part."""
        return {mark: fired.part for mark, fired in self._alerts.items() if fired.holds}

    def fires(self, mark: str, name: str, summary: str) -> str:
        """The part that says that an alert fires which does not hold the node yet; at most MAX_CAUSE characters."""
        fired = self._alerts.get(mark, _Fired())
        end = _end(mark, max(fired.times, fired.resolved) + 1)
        text = f"alert {cut(plain(name), MAX_NAME)}: {plain(summary)}".removesuffix(": ").rstrip()
        return cut(text, MAX_CAUSE - len(end)) + end

    def resolves(self, mark: str, name: str) -> str:
        """The part that says that an alert which holds the node has resolved."""
        return f"resolved {cut(plain(name), MAX_NAME)}{_end(mark, self._alerts[mark].times)}"


def plain(text: str) -> str:
    """The text as it may stand in one part of a cause: without commas and control characters."""
    return _HARMFUL.sub(" ", text.replace(",", ";")).strip()


def cut(text: str, limit: int) -> str:
    """The text, in at most so many characters."""
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"


def _end(mark: str, number: int) -> str:
    return f" [{mark}]" if number == 1 else f" [{mark} {number}]"
