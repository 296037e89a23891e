"""Whether CountJob wrote each number exactly once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path


def check_output(folder: Path, numbers: int) -> None:
    """Fail if one of the numbers below this one is missing or repeated, or if the counts of a key have a gap."""
    assert _written(folder) == list(range(numbers))


def check_unfinished_output(folder: Path, starts: Sequence[int]) -> None:
    """Fail as `check_output` does, of a job that was stopped while it read upwards from each of these numbers."""
    seen = _written(folder)
    assert [number for number, before in zip(seen, [-2, *seen], strict=False) if number != before + 1] == list(starts)


def _written(folder: Path) -> list[int]:
    seen: list[int] = []
    counts: dict[str, list[int]] = defaultdict(list)
    for file in folder.rglob("*"):
        # Files that begin with a dot were never committed.
        if file.is_file() and not file.name.startswith("."):
            for line in file.read_text().splitlines():
                key, count, number = line.split(",")
                seen.append(int(number))
                counts[key].append(int(count))
    assert all(sorted(found) == list(range(1, len(found) + 1)) for found in counts.values())
    return sorted(seen)
