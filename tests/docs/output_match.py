"""Compares the output on a page with real output, except for what differs from run to run."""

from __future__ import annotations

import re
from typing import Final

WILDCARD: Final = "…"
_ANY_LINES: Final = r"(?:\n[^\n]*)*?"
_VARIABLE: Final = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:Z| UTC)"), "<time>"),
    (re.compile(r"\b1[78]\d{11}\b"), "<milliseconds>"),
    (re.compile(r"\bblocklist_[0-9a-f]{8}_[\w-]{43}"), "<token>"),
    (re.compile(r"\b[0-9a-f]{8}\b"), "<eight hex digits>"),
    (re.compile(r" {2,}"), "  "),
    (re.compile(r"[ \r]+$", re.MULTILINE), ""),
)


def matches(expected: str, actual: str) -> bool:
    """Whether the output is the one on the page.

    Timestamps, tokens, the eight hex digits of ids and histories, and the width of columns may differ.
    `…` stands for any text in a line; alone in a line for any number of lines.
    """
    return re.fullmatch(_pattern(expected), "\n" + _normalized(actual)) is not None


def starts_with(expected: str, actual: str) -> bool:
    """Whether the output so far begins with the one on the page."""
    return re.match(_pattern(expected), "\n" + _normalized(actual)) is not None


def _normalized(text: str) -> str:
    for pattern, name in _VARIABLE:
        text = pattern.sub(name, text)
    return text.strip("\n")


def _pattern(expected: str) -> str:
    """A regular expression; each line includes the line break before it, so that "any lines" can be none."""
    lines = [
        _ANY_LINES if line == WILDCARD else "\n" + _line_pattern(line) for line in _normalized(expected).split("\n")
    ]
    return "".join(lines)


def _line_pattern(line: str) -> str:
    return "[^\n]*".join(map(re.escape, line.split(WILDCARD)))
