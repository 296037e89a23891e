"""Compares hosts, and charges failures to them, in DuckDB: runs evidence.sql with the limits below."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import duckdb

from blocklist.detection.node_summary import MIN_HOSTS, SLOWDOWN_THRESHOLD

_LIMITS: Final = {
    "min_hosts": MIN_HOSTS,
    "threshold": SLOWDOWN_THRESHOLD,
    # Minimum number of comparable tasks in a stage. A host needs only one of them, as a slow host gets few.
    "min_tasks": 10,
    # Share of a stage's tasks that must have succeeded before the stage is compared (FLIP-168).
    "min_completed": 0.75,
    # Minimum number of bytes that a task fetches or writes if its time per byte is compared.
    "min_bytes": 100_000,
    # Minimum share of the run time that fetching or writing must take to make a host slow.
    "min_time_share": 0.1,
    # Milliseconds. Less work counts as this: times are in whole milliseconds, of which each would be a tenth or more.
    "min_work_ms": 10,
    # Milliseconds. A shorter time to deserialize counts as this, so that what is quick everywhere makes nobody slow.
    "min_start_ms": 10,
    # Minimum ratio of the other hosts' wait to the wait of the slow server itself.
    "min_wait_ratio": 2.0,
    # Minimum share of the run time that the other hosts wait.
    "min_wait_share": 0.25,
    # Stages of an application in which a partition must fail, on several hosts, to be bad data: it keeps its number.
    "bad_partition_stages": 3,
    # Partitions of a stage that must fail on a host: one may have bad data.
    "min_failed_partitions": 2,
    "disk_full": "No space left on device|Disk quota exceeded",
    "io_error": "Input/output error|Read-only file system|Stale file handle|Structure needs cleaning|No such device"
    "|Remote I/O error",
    "memory": "OutOfMemoryError|Cannot allocate memory|MemoryError",
}


def _with_limits(text: str) -> str:
    for name, value in _LIMITS.items():
        text = text.replace(f"${name}", repr(value))
    return text


EVIDENCE: Final = _with_limits(Path(__file__).with_name("evidence.sql").read_text(encoding="utf-8"))
"""The queries, with the limits in them."""


def compare(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the tables of evidence.sql from `facts`, without what is `ignored`."""
    connection.execute(EVIDENCE)
