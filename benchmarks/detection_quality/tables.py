"""The outcomes in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from benchmarks.detection_quality.faults import FAULTS
from benchmarks.detection_quality.irregularities import IRREGULARITIES
from benchmarks.detection_quality.outcomes import QualityOutcome

_Cell = Callable[[Sequence[QualityOutcome]], str]
AFTER: Final = (1, 2, 3, 5)
"""Numbers of applications after which the share of found faults is shown."""


def document(results: Mapping[str, Sequence[QualityOutcome]]) -> str:
    """Return both tables."""
    return f"{found_table(results)}\n\n{blame_table(results)}\n"


def found_table(results: Mapping[str, Sequence[QualityOutcome]]) -> str:
    """Per cent of the faults that were found after 1, 2, 3, and 5 applications."""
    after = ", ".join(map(str, AFTER))
    lines = [f"| fault, found after {after} applications (%) | runs | {' | '.join(results)} |"]
    lines.append(f"|---|--:|{'--:|' * len(results)}")
    lines += [_line(kind, results, _found) for kind in FAULTS]
    return "\n".join(lines)


def blame_table(results: Mapping[str, Sequence[QualityOutcome]]) -> str:
    """Runs in which a healthy host was blamed, and healthy hosts blamed per run."""
    lines = [f"| healthy, runs with a false blame (blames per run) | runs | {' | '.join(results)} |"]
    lines.append(f"|---|--:|{'--:|' * len(results)}")
    lines += [_line(kind, results, _wrong) for kind in IRREGULARITIES]
    faulty = {name: [outcome for outcome in outcomes if outcome.kind in FAULTS] for name, outcomes in results.items()}
    lines.append(_cells("another host in a run with a fault", list(faulty.values()), _wrong))
    return "\n".join(lines)


def _line(kind: str, results: Mapping[str, Sequence[QualityOutcome]], cell: _Cell) -> str:
    own = [[outcome for outcome in outcomes if outcome.kind == kind] for outcomes in results.values()]
    return _cells(kind, own, cell)


def _cells(title: str, outcomes: Sequence[Sequence[QualityOutcome]], cell: _Cell) -> str:
    return f"| {title} | {len(outcomes[0])} | {' | '.join(map(cell, outcomes))} |"


def _found(outcomes: Sequence[QualityOutcome]) -> str:
    shares = (sum(outcome.found_after(count) for outcome in outcomes) / max(1, len(outcomes)) for count in AFTER)
    return ", ".join(f"{100 * share:.0f}" for share in shares)


def _wrong(outcomes: Sequence[QualityOutcome]) -> str:
    runs, blames = sum(outcome.false_blames > 0 for outcome in outcomes), sum(it.false_blames for it in outcomes)
    return f"{runs} ({blames / max(1, len(outcomes)):.2g})"
