"""What a page shows against what was really seen: alike but for what differs from run to run."""

from __future__ import annotations

import re
from typing import Final

ANYTHING: Final = "…"
_LINES: Final = r"(?:\n[^\n]*)*?"
_VARIES: Final = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:Z| UTC)"), "<time>"),
    (re.compile(r"\b1[78]\d{11}\b"), "<milliseconds>"),
    (re.compile(r"\bblocklist_[0-9a-f]{8}_[\w-]{43}"), "<token>"),
    (re.compile(r"\b[0-9a-f]{8}\b"), "<eight hex digits>"),
    (re.compile(r" {2,}"), "  "),
    (re.compile(r"[ \r]+$", re.MULTILINE), ""),
)


def alike(page: str, seen: str) -> bool:
    """Whether what was seen is what the page shows.

    Moments, tokens and the eight hex digits of ids and histories may differ, and how many blanks are between columns.
    `…` stands for anything in a line; alone in a line for any lines.
    """
    return re.fullmatch(_pattern(page), "\n" + _even(seen)) is not None


def begins_alike(page: str, seen: str) -> bool:
    """Whether what was seen so far begins with what the page shows."""
    return re.match(_pattern(page), "\n" + _even(seen)) is not None


def _even(text: str) -> str:
    for varies, name in _VARIES:
        text = varies.sub(name, text)
    return text.strip("\n")


def _pattern(page: str) -> str:
    """A regular expression; each line with the line break before it, so that any lines may be none."""
    lines = [_LINES if line == ANYTHING else "\n" + _line(line) for line in _even(page).split("\n")]
    return "".join(lines)


def _line(line: str) -> str:
    return "[^\n]*".join(map(re.escape, line.split(ANYTHING)))
