"""Which alerts hold a node: read from the parts of its cause, the only place where it is kept. Pure.

A part is `alert DiskFull: disk almost full [809c736d]` when an alert fires, and `resolved DiskFull [809c736d]` is added
when it resolves while something else holds the node: a merge adds to a cause, it takes nothing away. In brackets is the
mark of the alert, and a number when it fires not for the first time. All other parts are somebody else's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from blocklist.model.node import MAX_CAUSE_LENGTH, BlockedNode

MAX_NAME: Final = 200
_PART: Final = re.compile(r"(alert|resolved) .*\[([0-9a-f]{8})(?: ([1-9][0-9]{0,8}))?\]", re.ASCII)
# What a cause may not hold, commas, which part causes, and blanks in rows.
_FORBIDDEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\\s]+")


@dataclass(frozen=True, slots=True)
class _AlertHistory:
    """An alert as a cause tells of it: how often it has fired, how often resolved, and its last part."""

    fired: int = 0
    resolved: int = 0
    part: str = ""

    @property
    def holds(self) -> bool:
        return self.fired > self.resolved


class Causes:
    """The cause of a node's present block, part by part; that of a free node is empty."""

    def __init__(self, node: BlockedNode | None) -> None:
        self.other_parts: list[str] = []
        self._alerts: dict[str, _AlertHistory] = {}
        for part in node.cause.split(",") if node is not None else ():
            self._read(part)

    def _read(self, part: str) -> None:
        match = _PART.fullmatch(part)
        if match is None:
            self.other_parts.append(part)
            return
        state, fingerprint, number = match[1], match[2], int(match[3] or 1)
        history = self._alerts.get(fingerprint, _AlertHistory())
        if state == "resolved":
            self._alerts[fingerprint] = _AlertHistory(history.fired, max(history.resolved, number), history.part)
        elif number > history.fired:
            self._alerts[fingerprint] = _AlertHistory(number, history.resolved, part)

    @property
    def holding(self) -> dict[str, str]:
        """The alerts that hold the node: mark to part."""
        return {fingerprint: fired.part for fingerprint, fired in self._alerts.items() if fired.holds}

    def firing_part(self, fingerprint: str, name: str, summary: str) -> str:
        """The part that says that an alert fires which does not hold the node yet; at most MAX_CAUSE characters."""
        fired = self._alerts.get(fingerprint, _AlertHistory())
        end = _suffix(fingerprint, max(fired.fired, fired.resolved) + 1)
        text = f"alert {truncate(sanitize(name), MAX_NAME)}: {sanitize(summary)}".removesuffix(": ").rstrip()
        return truncate(text, MAX_CAUSE_LENGTH - len(end)) + end

    def resolved_part(self, fingerprint: str, name: str) -> str:
        """The part that says that an alert which holds the node has resolved."""
        return f"resolved {truncate(sanitize(name), MAX_NAME)}{_suffix(fingerprint, self._alerts[fingerprint].fired)}"


def sanitize(text: str) -> str:
    """The text as it may stand in one part of a cause: without commas and control characters."""
    return _FORBIDDEN.sub(" ", text.replace(",", ";")).strip()


def truncate(text: str, limit: int) -> str:
    """The text, in at most so many characters."""
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"


def _suffix(fingerprint: str, number: int) -> str:
    return f" [{fingerprint}]" if number == 1 else f" [{fingerprint} {number}]"
