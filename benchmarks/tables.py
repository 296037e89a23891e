"""Rows as Markdown tables."""

from collections.abc import Sequence
from statistics import median

from benchmarks.chart import number
from benchmarks.rows import Row, ratios, target_met

HEAD = """| | | median | min | max | ours ÷ theirs (min to max) | target |
|---|---|--:|--:|--:|--:|---|"""


def table(rows: Sequence[Row]) -> str:
    """Return a line per contender, ours first."""
    return "\n".join([HEAD, *(_line(row, contender) for row in rows for contender in row.samples)])


def _line(row: Row, contender: str) -> str:
    values = row.samples[contender]
    ours = contender == row.ours
    name = f"**{row.name}**, {row.unit}" if ours else ""
    figures = (number(value) for value in (median(values), min(values), max(values)))
    cells = [name, contender, *figures, "" if ours else _ratio(row, contender), _target(row, contender)]
    return f"| {' | '.join(cells)} |"


def _ratio(row: Row, contender: str) -> str:
    found = ratios(row, contender)
    if not found:
        return ""
    return f"{median(found):.2f} ({min(found):.2f} to {max(found):.2f})"


def _target(row: Row, contender: str) -> str:
    """Whether the target against this contender is met; targets without a peer are shown at ours."""
    peer = None if contender == row.ours else contender
    return "; ".join(
        f"{'≥' if target.at_least else '≤'} {target.factor:g} {'' if peer else row.unit}".rstrip()
        + (": met" if target_met(row, target) else ": **missed**")
        for target in row.targets
        if target.peer == peer
    )


def noise_summary(rows: Sequence[Row]) -> str:
    """Return how much CPU other processes used during the samples."""
    noise = [cpus for row in rows for taken in row.noise.values() for cpus in taken]
    if not noise:
        return ""
    return f" Other processes used {median(noise):.2f} CPUs (median), {max(noise):.2f} (maximum)."
