"""The facts of a stream: a file for each batch, and one of all before them, so that a restart begins where it ended."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody knows them

from blocklist.detection.schemas import FACTS

COMPACT_AFTER: Final = 50
"""Batches, from which on they are put together."""


class FactStore:
    """Folders `batch-<number>` and `until-<number>`: the facts of a batch, and of all up to that one.

    A batch that comes again after a crash replaces itself, and is passed over if it is part of an `until` already. A
    folder counts when Spark has marked it as whole.
    """

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder

    def add(self, number: int, facts: DataFrame) -> bool:
        """Keep a batch; False if it held nothing."""
        if number <= self._compacted_until():
            return False
        path = self._folder / f"batch-{number}"
        facts.coalesce(1).write.mode("overwrite").parquet(str(path))
        return not self._spark.read.schema(FACTS).parquet(str(path)).isEmpty()

    def since(self, since: int) -> DataFrame:
        """All facts from this moment (Unix ms) on; older ones are dropped for good now and then."""
        batches = self._batches()
        if len(batches) > COMPACT_AFTER:
            self._compact(batches, since)
        return self._read().where(F.col("time").isNull() | (F.col("time") >= since))

    def _read(self) -> DataFrame:
        until = self._compacted_until()
        folders = [self._path("batch", number) for number in self._batches()]
        folders += [self._path("until", until)] if until >= 0 else []
        return self._spark.read.schema(FACTS).parquet(*folders)

    def _compact(self, batches: list[int], moment: int) -> None:
        before, last = self._compacted_until(), max(batches)
        recent = self._read().where(F.col("time") >= moment)
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
