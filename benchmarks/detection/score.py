"""`python -m benchmarks.detection.score [MODULE:FUNCTION [RUN …]]`: evaluates a detector and the baselines.

Each runs three times per run, with the logs of the first, the first two and all three applications, as an operator
would after each. Blocks stay: a host that was blamed once stays blamed.
"""

from __future__ import annotations

import importlib
import os
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
# The logs are small: adaptive planning and more partitions would only take time.
_CONF: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


class Detector(Protocol):
    """Returns the hosts to block, given event logs."""

    def __call__(self, spark: SparkSession, paths: Sequence[str]) -> set[str]: ...


def evaluate(judge: Detector | None, runs: Sequence[LabelledRun]) -> dict[str, list[Outcome]]:
    """Return the outcomes of each detector; ours is included if given."""
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
    from pyspark.sql import SparkSession  # noqa: PLC0415 - slow, and not needed by the baselines

    os.environ["PYSPARK_PYTHON"] = sys.executable  # workers need the same libraries
    builder = SparkSession.builder.master("local[2]").appName("score")
    for key, value in _CONF.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def load(name: str) -> Detector:
    """Import the detector that `module:function` names."""
    module, _, function = name.partition(":")
    return cast(Detector, getattr(importlib.import_module(module), function))


def main(names: Sequence[str]) -> None:
    """Print the tables of all runs or the named ones."""
    runs = [case for case in labelled_runs() if not names[1:] or case.name in names[1:]]
    results = evaluate(load(names[0]) if names else None, runs)
    print(document(results))


if __name__ == "__main__":
    main(sys.argv[1:])
