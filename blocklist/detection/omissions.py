"""What is left out of an analysis, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Omission:
    """Lines, logs or pods that are left out. `subject`: which ones; the counts in `sentence` may grow."""

    subject: str
    sentence: str
