"""Real runs with real faults, and how well the pipeline finds them: `make bench-detection`.

The first time it makes the runs, which takes about four minutes each and needs root; later it only reads their logs.
`ARGS=--quick` makes seven of them, in half an hour.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.detection.outcomes import Outcome
    from benchmarks.rows import Row


def run() -> "list[Row]":
    """Make missing runs, evaluate all of them, and write the tables to the results."""
    from benchmarks import report  # noqa: PLC0415 - these modules are programs too, and import this package
    from benchmarks.detection import collect, outcomes, score, tables  # noqa: PLC0415
    from benchmarks.harness import CACHE, CORES, GENERATOR_CORE, unless_quick  # noqa: PLC0415

    os.sched_setaffinity(0, CORES)
    try:
        collect.collect()
        results = score.evaluate(score.load("benchmarks.detection.detector:detect"), outcomes.labelled_runs())
    finally:
        os.sched_setaffinity(0, {GENERATOR_CORE})
    folder = unless_quick(report.RESULTS, CACHE / "quick")
    folder.mkdir(exist_ok=True)
    (folder / "detection-runs.md").write_text(tables.document(results), encoding="utf-8")
    return _rows(results[outcomes.OURS])


def _rows(ours: "Sequence[Outcome]") -> "list[Row]":
    from benchmarks.detection import outcomes  # noqa: PLC0415
    from benchmarks.rows import Row, Target  # noqa: PLC0415

    healthy = [outcome for outcome in ours if not outcome.run.faulty]
    clean = sum(not outcome.false_positives for outcome in healthy) / len(healthy)
    figures = {
        "healthy runs without a blamed host": (clean, 100.0),
        "faulty hosts found within three applications": (outcomes.recall(ours) or 0.0, 90.0),
        "blamed hosts that were faulty": (outcomes.precision(ours) or 0.0, None),
    }
    return [
        Row(
            name=f"{name} ({len(ours)} runs)",
            unit="%",
            ours=outcomes.OURS,
            samples={outcomes.OURS: [100 * share]},
            targets=[] if least is None else [Target(peer=None, factor=least)],
        )
        for name, (share, least) in figures.items()
    ]
