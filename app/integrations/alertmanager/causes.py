"""The causes of alerts. Pure."""

from __future__ import annotations

import re
from typing import Final

from blocklist.model.node import MAX_CAUSE_LENGTH

MAX_NAME: Final = 200
# Characters that a cause must not contain, and runs of white space.
_FORBIDDEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\\s]+")


def alert_cause(name: str, summary: str) -> str:
    """The cause of an alert's claim: one part, at most MAX_CAUSE_LENGTH characters."""
    text = f"alert {_truncate(_sanitize(name), MAX_NAME)}: {_sanitize(summary)}".removesuffix(": ").rstrip()
    return _truncate(text, MAX_CAUSE_LENGTH)


def _sanitize(text: str) -> str:
    """The text without commas and control characters, which a part of a cause must not contain."""
    return _FORBIDDEN.sub(" ", text.replace(",", ";")).strip()


def _truncate(text: str, limit: int) -> str:
    """The text, cut to `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"
