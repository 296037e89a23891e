"""`python -m benchmarks.detection.score [MODULE:FUNCTION [RUN …]]`: how well it finds the faults.

Each is asked three times about a run, with the logs of its first, first two and all three applications, as an operator
would ask after each. Blocks stay: what was blamed once counts, right or wrong.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, cast

from benchmarks.detection import baselines
from benchmarks.detection.outcomes import OURS, LabelledRun, Outcome, labelled_runs
from benchmarks.detection.tables import document

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BASELINES: Final = {
    "Spark, for the application": baselines.excluded_for_application,
    "Spark, for a stage": baselines.excluded_for_a_stage,
    "z-score of means": baselines.z_score_outliers,
}
# The logs are small: planning again in the middle of a query, and more partitions, would only cost time.
_CONF: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


class Detector(Protocol):
    """The hosts that are to be blocked, by what these event logs say."""

    def __call__(self, spark: SparkSession, paths: Sequence[str]) -> set[str]: ...


def evaluate(judge: Detector | None, runs: Sequence[LabelledRun]) -> dict[str, list[Outcome]]:
    """What each contender says of each run; ours is there if a judge is given."""
    results: dict[str, list[Outcome]] = {}
    if judge is not None:
        with _spark() as spark:
            results[OURS] = [
                _evaluate_run(case, lambda logs: judge(spark, [str(log) for log in logs])) for case in runs
            ]
    for name, baseline in BASELINES.items():
        results[name] = [_evaluate_run(case, baseline) for case in runs]
    return results


class _Reader(Protocol):
    def __call__(self, logs: Sequence[Path], /) -> set[str]: ...


def _evaluate_run(case: LabelledRun, reader: _Reader) -> Outcome:
    counts = range(1, len(case.logs) + 1)
    return Outcome(run=case, blamed=tuple(frozenset(reader(case.logs[:count])) for count in counts))


@contextmanager
def _spark() -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - slow, and the baselines need none

    builder = SparkSession.builder.master("local[2]").appName("score")
    for key, value in _CONF.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def load(name: str) -> Detector:
    """The judge that `module:function` names."""
    module, _, function = name.partition(":")
    return cast(Detector, getattr(importlib.import_module(module), function))


def main(names: Sequence[str]) -> None:
    """Print the tables, with the named judge or without, of all runs or the named ones."""
    runs = [case for case in labelled_runs() if not names[1:] or case.name in names[1:]]
    results = evaluate(load(names[0]) if names else None, runs)
    print(document(results))


if __name__ == "__main__":
    main(sys.argv[1:])
