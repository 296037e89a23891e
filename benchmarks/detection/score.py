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
from benchmarks.detection.answers import OURS, Answer, Case, cases
from benchmarks.detection.tables import document

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OTHERS: Final = {
    "Spark, for the application": baselines.excluded,
    "Spark, for a stage": baselines.excluded_for_a_stage,
    "z-score of means": baselines.far_from_the_mean,
}
# The logs are small: planning again in the middle of a query, and more partitions, would only cost time.
_CONF: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


class Judge(Protocol):
    """The hosts that are to be blocked, by what these event logs say."""

    def __call__(self, spark: SparkSession, paths: Sequence[str]) -> set[str]: ...


def ask(judge: Judge | None, of: Sequence[Case]) -> dict[str, list[Answer]]:
    """What each contender says of each case; ours is there if a judge is given."""
    said: dict[str, list[Answer]] = {}
    if judge is not None:
        with _spark() as spark:
            said[OURS] = [_asked(case, lambda logs: judge(spark, [str(log) for log in logs])) for case in of]
    for name, other in OTHERS.items():
        said[name] = [_asked(case, other) for case in of]
    return said


class _Reader(Protocol):
    def __call__(self, logs: Sequence[Path], /) -> set[str]: ...


def _asked(case: Case, reader: _Reader) -> Answer:
    counts = range(1, len(case.logs) + 1)
    return Answer(case=case, blamed=tuple(frozenset(reader(case.logs[:count])) for count in counts))


@contextmanager
def _spark() -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - slow, and the other contenders need none

    builder = SparkSession.builder.master("local[2]").appName("score")
    for key, value in _CONF.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def load(name: str) -> Judge:
    """The judge that `module:function` names."""
    module, _, function = name.partition(":")
    return cast(Judge, getattr(importlib.import_module(module), function))


def main(names: Sequence[str]) -> None:
    """Print the tables, with the named judge or without, of all runs or the named ones."""
    asked = [case for case in cases() if not names[1:] or case.name in names[1:]]
    said = ask(load(names[0]) if names else None, asked)
    print(document(said))


if __name__ == "__main__":
    main(sys.argv[1:])
