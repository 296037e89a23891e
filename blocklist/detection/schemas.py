"""The columns of facts, and of the tables that `--parquet` writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_TEXT, _NUMBER, _YES = "string", "bigint", "boolean"
COLUMNS: Final = {
    "kind": _TEXT,  # log, application, environment, executor, stage, task, excluded or broken
    "file": _TEXT,  # the file, as Spark names it
    "app": _TEXT,  # the application: its name as far as the path tells, until applications.applications has run
    "app_id": _TEXT,  # application: its App ID, and its attempt where it has one
    "time": _NUMBER,  # Unix ms: end of a task, else of the event; null for log, environment and broken
    "host": _TEXT,  # of tasks, exclusions and executors
    "executor": _TEXT,
    "stage": _NUMBER,
    "attempt": _NUMBER,  # of the stage
    "partition": _NUMBER,  # index of a task in its stage; all attempts of it have the same
    "tasks": _NUMBER,  # number of tasks of a submitted stage
    "launched": _NUMBER,  # Unix ms
    "duration": _NUMBER,  # ms, from launch to end
    "outcome": _TEXT,  # Task End Reason, Reason: Success, ExceptionFailure, FetchFailed, ExecutorLostFailure, …
    "speculative": _YES,
    "locality": _TEXT,
    "error": _TEXT,  # the exception's class
    "message": _TEXT,  # failure message, at most 300 characters, including its last cause
    "caused_by_app": _YES,  # ExecutorLostFailure's Exit Caused By App
    "served_by": _TEXT,  # FetchFailed: the host that served
    "run_ms": _NUMBER,
    "cpu_ms": _NUMBER,
    "gc_ms": _NUMBER,
    "fetch_wait_ms": _NUMBER,
    "deserialize_ms": _NUMBER,
    "input_bytes": _NUMBER,
    "input_records": _NUMBER,
    "shuffle_bytes": _NUMBER,  # read, local and remote
    "remote_bytes": _NUMBER,  # read from other hosts
    "shuffle_records": _NUMBER,
    "spilled_bytes": _NUMBER,
    "written_bytes": _NUMBER,  # shuffle blocks
    "write_ms": _NUMBER,  # time that writing them took; part of run_ms
    "detail": _TEXT,  # log: Spark's version; application: its name; environment: the master's URL;
    # executor: the node of its pod, if it names one; broken: its first 100 characters
}
"""One row per event that concerns a node, and one per line that cannot be parsed."""
FACTS: Final = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())
"""The same, as Spark writes it."""

HOST_STAGES: Final = {
    "app": "VARCHAR",
    "stage": "BIGINT",
    "attempt": "BIGINT",
    "host": "VARCHAR",
    "metric": "VARCHAR",  # a value of node_summary.Metric
    "tasks": "BIGINT",  # comparable tasks
    "slowdown": "DOUBLE",  # time by this metric over that of the peers
    "time_ms": "BIGINT",  # sum of the time by this metric
    "gc_share": "DOUBLE",  # of the run time
    "fetch_wait_share": "DOUBLE",
    "hosts": "BIGINT",  # compared in this stage
    "slow_hosts": "BIGINT",  # of them, slow
    "slow": "BOOLEAN",
    "first": "BIGINT",  # Unix ms, start of the first task
    "last": "BIGINT",  # Unix ms, end of the last task
    "by_partition": "STRUCT(partition BIGINT, slowdown DOUBLE)[]",  # of each comparable task; empty for START
}
"""One row per host, metric and stage in which the host was compared with at least two other hosts."""

FAILURES: Final = {
    "app": "VARCHAR",
    "stage": "BIGINT",
    "attempt": "BIGINT",
    "host": "VARCHAR",  # charged host; of a fetch failure the one that served
    "failure": "VARCHAR",  # a value of node_summary.FailureClass
    "tasks": "BIGINT",
    "lost_ms": "BIGINT",  # time of these tasks; for SLOW_SERVER the time that they waited
    "message": "VARCHAR",  # of one task
    "last": "BIGINT",  # Unix ms
    "partitions": "BIGINT[]",  # of these tasks, each once; only for ONLY_THERE and ALL_THERE
}
"""Failed tasks by host, stage and class. For SLOW_SERVER: the tasks that waited for the host."""

NODES: Final = {
    "host": "VARCHAR",
    "tasks": "BIGINT",
    "applications": "BIGINT",
    "share": "DOUBLE",  # of all tasks
    "gc_share": "DOUBLE",
    "fetch_wait_share": "DOUBLE",
    "shuffle_share": "DOUBLE",  # of the bytes read by its tasks
    "exclusions": "BIGINT",  # by Spark itself
    "stages": "BIGINT",  # compared
    "slow_stages": "BIGINT",
    "slow_applications": "BIGINT",
    "expected": "DOUBLE",  # expected slow stages of a random node
    "slowdown": "DOUBLE",  # median over the stages; null without stages
    "slow_last": "BIGINT",  # Unix ms, end of the last task in a slow stage; null without one
}
"""One row per node, over all applications."""


def typed(columns: Mapping[str, str]) -> str:
    """The columns of a query, in this order and with these types of DuckDB."""
    return ", ".join(f"{name}::{kind} AS {name}" for name, kind in columns.items())


# What is left out of an analysis, and why.


@dataclass(frozen=True, kw_only=True, slots=True)
class Omission:
    """Lines, logs or pods that are left out. `subject`: which ones; the counts in `sentence` may grow."""

    subject: str
    sentence: str
