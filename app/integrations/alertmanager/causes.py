"""The causes of alerts, and marks of alerts in causes that versions without claims wrote. Pure.

Those versions had one block for all alerts on a node. A firing alert was a part of its cause, as in
`alert DiskFull: disk almost full [809c736d]`, and a resolved one that could not be removed a part
`resolved DiskFull [809c736d]`. The brackets contain the fingerprint and, if the alert had fired again, a count.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Final

from blocklist.model.node import MAX_CAUSE_LENGTH

MAX_NAME: Final = 200
_MARK: Final = re.compile(r"(alert|resolved) .*\[([0-9a-f]{8})(?: ([1-9][0-9]{0,8}))?\]", re.ASCII)
# Characters that a cause must not contain, and runs of white space.
_FORBIDDEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\\s]+")


def alert_cause(name: str, summary: str) -> str:
    """The cause of an alert's claim: one part, at most MAX_CAUSE_LENGTH characters."""
    text = f"alert {_truncate(_sanitize(name), MAX_NAME)}: {_sanitize(summary)}".removesuffix(": ").rstrip()
    return _truncate(text, MAX_CAUSE_LENGTH)


class MarkedCause:
    """A cause with marks. `firing` are the fingerprints of the alerts that hold the node according to it."""

    def __init__(self, cause: str) -> None:
        self._parts = cause.split(",")
        fired: defaultdict[str, int] = defaultdict(int)
        resolved: defaultdict[str, int] = defaultdict(int)
        for match in filter(None, map(_MARK.fullmatch, self._parts)):
            counts = fired if match[1] == "alert" else resolved
            counts[match[2]] = max(counts[match[2]], int(match[3] or 1))
        self.firing = frozenset(mark for mark, count in fired.items() if count > resolved[mark])

    def without(self, fingerprints: frozenset[str]) -> str | None:
        """The cause without the marks of these alerts, and of those that have resolved; None if nothing is left."""
        kept = self.firing - fingerprints
        parts = [part for part in self._parts if (match := _MARK.fullmatch(part)) is None or match[2] in kept]
        return ",".join(parts) or None


def _sanitize(text: str) -> str:
    """The text without commas and control characters, which a part of a cause must not contain."""
    return _FORBIDDEN.sub(" ", text.replace(",", ";")).strip()


def _truncate(text: str, limit: int) -> str:
    """The text, cut to `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"
