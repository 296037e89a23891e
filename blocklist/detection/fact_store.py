"""The facts of a stream in Parquet files: one per batch, and one that compacts older batches."""

from __future__ import annotations

import operator
import shutil
from functools import reduce
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from blocklist.detection.log_file import COMPACT, log_of
from blocklist.detection.reader import within
from blocklist.detection.schemas import FACTS

COMPACT_AFTER: Final = 50
"""Maximum number of batch files before they are compacted."""


class FactStore:
    """Folders `batch-<number>` (one batch) and `until-<number>` (all batches up to this one).

    A batch that is repeated after a crash replaces itself, or is ignored if an `until` folder contains it. A folder
    counts once Spark has marked it as complete.
    """

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder

    def add(self, number: int, facts: DataFrame) -> bool:
        """Store a batch. Returns False if it is empty or already compacted."""
        if number <= self._compacted_until():
            return False
        path = self._folder / f"batch-{number}"
        facts.coalesce(1).write.mode("overwrite").parquet(str(path))
        return not self._spark.read.schema(FACTS).parquet(str(path)).isEmpty()

    def since(self, since: int) -> DataFrame:
        """Return the facts from `since` (Unix ms) on; compaction deletes older ones."""
        batches = self._batches()
        if len(batches) > COMPACT_AFTER:
            self._compact(batches, since)
        return within(_without_repetition(self._read()), since, None)

    def _read(self) -> DataFrame:
        until = self._compacted_until()
        folders = [self._path("batch", number) for number in self._batches()]
        folders += [self._path("until", until)] if until >= 0 else []
        return self._spark.read.schema(FACTS).parquet(*folders)

    def _compact(self, batches: list[int], since: int) -> None:
        before, last = self._compacted_until(), max(batches)
        stored = self._read()
        live = {log_of(file) for file in _files(stored.where(F.col("time") >= since))}
        # What a log says of itself, in its first part, is needed as long as any part has events.
        kept = [(file,) for file in _files(stored) if log_of(file) in live]
        files = F.broadcast(self._spark.createDataFrame(kept, "file string"))
        recent = within(stored, since, None).join(files, "file", "left_semi")
        recent.coalesce(4).write.mode("overwrite").parquet(self._path("until", last))
        for number in batches:
            shutil.rmtree(self._path("batch", number))
        if before >= 0:
            shutil.rmtree(self._path("until", before))

    def _path(self, kind: str, number: int) -> str:
        return str(self._folder / f"{kind}-{number}")

    def _completed(self, kind: str) -> list[int]:
        found = self._folder.glob(f"{kind}-*/_SUCCESS")
        return sorted(int(path.parent.name.partition("-")[2]) for path in found)

    def _compacted_until(self) -> int:
        return max(self._completed("until"), default=-1)

    def _batches(self) -> list[int]:
        until = self._compacted_until()
        return [number for number in self._completed("batch") if number > until]


def _files(facts: DataFrame) -> list[str]:
    return [row["file"] for row in facts.select("file").distinct().collect()]


def _without_repetition(facts: DataFrame) -> DataFrame:
    """The facts without those that a compacted part repeats: the parts that it replaces may have been read before."""
    compacted = {log_of(file) for file in _files(facts.where(F.col("file").endswith(COMPACT)))}
    if not compacted:
        return facts
    of_these = reduce(operator.or_, (F.col("file").startswith(f"{log}/") for log in compacted))
    repeated = of_these & (F.col("kind") != "broken")
    columns = [name for name in FACTS.fieldNames() if name != "file"]
    return facts.where(~repeated).unionAll(facts.where(repeated).dropDuplicates(columns))
