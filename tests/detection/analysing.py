"""Facts without Spark, and their analysis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from blocklist.detection.analysis import Analysis
from blocklist.detection.event_parser import FactParser, arrow_schema

Fact = dict[str, Any]


def analyse(folder: Path, facts: Iterable[Fact] | pa.Table) -> Analysis:
    """Analyse facts, each of an application's only log unless it says otherwise, in an empty folder."""
    if not isinstance(facts, pa.Table):
        facts = pa.Table.from_pylist([{"file": f"/logs/{fact['app']}", **fact} for fact in facts], arrow_schema())
    pq.write_table(facts, folder / "facts.parquet")
    return Analysis(folder)


def parsed(logs: Mapping[str, Sequence[str]]) -> pa.Table:
    """The facts of these lines, by the file that has them."""
    parsers = {file: FactParser(file) for file in logs}
    for file, lines in logs.items():
        parsers[file].add([line.rstrip("\n").encode() for line in lines])
    return pa.Table.from_batches([it for parser in parsers.values() for it in parser.batches()], arrow_schema())
