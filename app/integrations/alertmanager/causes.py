"""Which alerts hold a node blocked: parsed from its cause, the only place where that is stored. Pure.

A firing alert adds the part `alert DiskFull: disk almost full [809c736d]`. If it resolves while something else holds
the node, `resolved DiskFull [809c736d]` is added, because a merge cannot remove a part. The brackets contain the
fingerprint of the alert and, if it fires again, a count. All other parts belong to others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from blocklist.model.node import MAX_CAUSE_LENGTH, BlockedNode

MAX_NAME: Final = 200
_PART: Final = re.compile(r"(alert|resolved) .*\[([0-9a-f]{8})(?: ([1-9][0-9]{0,8}))?\]", re.ASCII)
# Characters that a cause must not contain, and runs of white space.
_FORBIDDEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\\s]+")


@dataclass(frozen=True, slots=True)
class _AlertHistory:
    """An alert according to a cause: how often it fired and resolved, and its last part."""

    fired: int = 0
    resolved: int = 0
    part: str = ""

    @property
    def holds(self) -> bool:
        return self.fired > self.resolved


class Causes:
    """The parsed cause of a node's current block; empty for a node that is not blocked."""

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
        """The alerts that hold the node: parts by fingerprint."""
        return {fingerprint: history.part for fingerprint, history in self._alerts.items() if history.holds}

    def firing_part(self, fingerprint: str, name: str, summary: str) -> str:
        """The part for a firing alert that does not hold the node yet; at most MAX_CAUSE_LENGTH characters."""
        history = self._alerts.get(fingerprint, _AlertHistory())
        suffix = _suffix(fingerprint, max(history.fired, history.resolved) + 1)
        text = f"alert {truncate(sanitize(name), MAX_NAME)}: {sanitize(summary)}".removesuffix(": ").rstrip()
        return truncate(text, MAX_CAUSE_LENGTH - len(suffix)) + suffix

    def resolved_part(self, fingerprint: str, name: str) -> str:
        """The part for an alert that held the node and has resolved."""
        return f"resolved {truncate(sanitize(name), MAX_NAME)}{_suffix(fingerprint, self._alerts[fingerprint].fired)}"


def sanitize(text: str) -> str:
    """The text without commas and control characters, which a part of a cause must not contain."""
    return _FORBIDDEN.sub(" ", text.replace(",", ";")).strip()


def truncate(text: str, limit: int) -> str:
    """The text, cut to `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"


def _suffix(fingerprint: str, number: int) -> str:
    return f" [{fingerprint}]" if number == 1 else f" [{fingerprint} {number}]"
