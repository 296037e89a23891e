"""The evidence in synthetic runs, computed by DuckDB as Spark would: see direct.sql."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa  # type: ignore[import-untyped]

from blocklist.detection import host_comparison
from blocklist.detection.node_summary import MIN_HOSTS, SLOWDOWN_THRESHOLD, FailureClass

_SQL: Final = Path(__file__).with_name("direct.sql").read_text(encoding="utf-8")


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectedEvidence:
    """schemas.HOST_STAGES, HOST_APPLICATIONS and FAILURES, and the number of tasks of each host in each application."""

    host_stages: pd.DataFrame
    host_applications: pd.DataFrame
    failures: pd.DataFrame
    tasks: pd.DataFrame


def collect_evidence(facts: pa.Table) -> CollectedEvidence:
    """Compare the hosts in each stage, and charge the failures."""
    with duckdb.connect() as connection:
        connection.execute("SET threads = 2")
        connection.register("facts", facts)
        for statement in _statements():
            connection.execute(statement)
        names = ("host_stages", "host_applications", "failures")
        frames = {name: connection.sql(f"FROM {name}").df() for name in names}
        tasks = connection.sql("SELECT app, host, count(*) AS tasks FROM facts GROUP BY ALL").df()
    return CollectedEvidence(**frames, tasks=tasks)


def _statements() -> Iterable[str]:
    text = _SQL
    for name, value in _PARAMETERS.items():
        text = text.replace(f"${name}", repr(value))
    return filter(str.strip, text.split(";"))


_PARAMETERS: Final[dict[str, Any]] = {
    "min_bytes": host_comparison.MIN_BYTES,
    "min_time_share": host_comparison.MIN_TIME_SHARE,
    "bad_partition_stages": host_comparison.BAD_PARTITION_STAGES,
    "min_failed_partitions": host_comparison.MIN_FAILED_PARTITIONS,
    "min_hosts": MIN_HOSTS,
    "min_tasks": host_comparison.MIN_TASKS,
    "threshold": SLOWDOWN_THRESHOLD,
    "min_wait_ratio": host_comparison.MIN_WAIT_RATIO,
    "min_wait_share": host_comparison.MIN_WAIT_SHARE,
    "disk_full": host_comparison.PATTERNS[FailureClass.DISK_FULL],
    "io_error": host_comparison.PATTERNS[FailureClass.IO_ERROR],
    "memory": host_comparison.PATTERNS[FailureClass.MEMORY],
}
