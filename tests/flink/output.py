"""Whether CountJob wrote each number exactly once."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path


def check_output(folder: Path, numbers: int) -> None:
    """Fail if a number is missing or repeated, or if the counts of a key have a gap."""
    seen: list[int] = []
    counts: dict[str, list[int]] = defaultdict(list)
    for file in folder.rglob("*"):
        # Files that begin with a dot were never committed.
        if file.is_file() and not file.name.startswith("."):
            for line in file.read_text().splitlines():
                key, count, number = line.split(",")
                seen.append(int(number))
                counts[key].append(int(count))
    assert sorted(seen) == list(range(numbers))
    assert all(sorted(found) == list(range(1, len(found) + 1)) for found in counts.values())
