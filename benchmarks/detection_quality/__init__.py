"""How well the detection judges synthetic runs of many kinds: `make bench-detection-quality`.

The seeds below JUDGED are for tuning. From there on they are judged once, after the last change of a rule; then JUDGED
moves up.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from benchmarks.detection_quality.outcomes import QualityOutcome
    from benchmarks.rows import Row

JUDGED: Final = 4_150
"""The first seed that was not used yet. docs/evidence/detection-figures.md has the table of those from 4,000 on."""


def run() -> "list[Row]":
    """Judge a few seeds of the tuning half, and write the tables to the results."""
    from benchmarks import report  # noqa: PLC0415 - slow imports
    from benchmarks.detection_quality import judging, tables  # noqa: PLC0415
    from benchmarks.harness import QUICK  # noqa: PLC0415

    seeds = range(2 if os.environ.get(QUICK) else 12)
    results = judging.judge_seeds(faulty=seeds, healthy=seeds)
    report.RESULTS.mkdir(exist_ok=True)
    (report.RESULTS / "detection-quality.md").write_text(tables.document(results), encoding="utf-8")
    return _rows(next(iter(results.values())))


def _rows(ours: "Sequence[QualityOutcome]") -> "list[Row]":
    from benchmarks.detection_quality.faults import FAULTS  # noqa: PLC0415
    from benchmarks.rows import Row, at_least  # noqa: PLC0415

    faulty = [it for it in ours if it.kind in FAULTS]
    healthy = [it for it in ours if it.kind not in FAULTS]
    figures = {
        "healthy runs without a blamed host": (sum(not it.false_blames for it in healthy) / len(healthy), 100.0),
        "faults found within three applications": (sum(it.found_after(3) for it in faulty) / len(faulty), 80.0),
    }
    return [
        Row(
            name=f"{name} ({len(ours)} synthetic runs)",
            unit="%",
            ours="blocklist.detection",
            samples={"blocklist.detection": [100 * share]},
            targets=[at_least(least)],
        )
        for name, (share, least) in figures.items()
    ]
