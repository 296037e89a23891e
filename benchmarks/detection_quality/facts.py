"""Synthetic runs as facts (schemas.FACTS), as the pipeline reads them from event logs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from benchmarks.detection_quality.runs import SimulatedTask, SyntheticRun
from blocklist.detection.event_parser import arrow_schema


def app_name(run: SyntheticRun, application: int) -> str:
    """The application's name; of all runs it is the only one."""
    return f"{run.name}/{application:02d}"


def host_name(run: SyntheticRun, host: int) -> str:
    """The host's name; no other run has it."""
    return f"{run.name}/h{host:02d}"


def facts_table(runs: Iterable[SyntheticRun]) -> pa.Table:
    """Facts of the runs."""
    return pa.concat_tables(
        pa.table(_columns(run, [task for application in run.applications for task in application]), arrow_schema())
        for run in runs
    )


def _columns(run: SyntheticRun, tasks: Sequence[SimulatedTask]) -> dict[str, Any]:
    schema = arrow_schema()
    columns = {name: [_value(run, task, name) for task in tasks] for name in _VALUES}
    return {
        field.name: pa.array(columns[field.name], field.type)
        if field.name in columns
        else pa.nulls(len(tasks), field.type)
        for field in schema
    }


def _value(run: SyntheticRun, task: SimulatedTask, name: str) -> Any:
    return _VALUES[name](run, task)


def _measured(task: SimulatedTask, value: int) -> int | None:
    return None if task.failure else value


def _served_by(run: SyntheticRun, task: SimulatedTask) -> str | None:
    host = task.failure.served_by if task.failure else None
    return None if host is None else host_name(run, host)


_VALUES: Any = {
    "kind": lambda _run, _task: "task",
    "file": lambda run, task: app_name(run, task.application),
    "app": lambda run, task: app_name(run, task.application),
    "time": lambda _run, task: task.ended,
    "host": lambda run, task: host_name(run, task.host),
    "executor": lambda _run, task: task.executor,
    "stage": lambda _run, task: task.stage,
    "attempt": lambda _run, _task: 0,
    "partition": lambda _run, task: task.partition,
    "launched": lambda _run, task: task.launched,
    "duration": lambda _run, task: task.ended - task.launched,
    "outcome": lambda _run, task: task.failure.outcome if task.failure else "Success",
    "error": lambda _run, task: task.failure.error if task.failure else None,
    "message": lambda _run, task: task.failure.message if task.failure else None,
    "served_by": _served_by,
    "caused_by_app": lambda _run, task: True if task.failure and task.failure.lost else None,
    "speculative": lambda _run, _task: False,
    "locality": lambda _run, task: locality(task),
    "run_ms": lambda _run, task: _measured(task, task.run),
    "gc_ms": lambda _run, task: _measured(task, task.gc),
    "fetch_wait_ms": lambda _run, task: _measured(task, task.wait),
    "input_bytes": lambda _run, task: _measured(task, 0 if task.shuffled else task.read),
    "shuffle_bytes": lambda _run, task: _measured(task, task.read if task.shuffled else 0),
    "remote_bytes": lambda _run, task: _measured(task, task.remote),
    "written_bytes": lambda _run, task: _measured(task, task.written),
    "write_ms": lambda _run, task: _measured(task, task.write),
}


def locality(task: SimulatedTask) -> str:
    """Spark's name for the distance from the data."""
    return "PROCESS_LOCAL" if task.shuffled else "NODE_LOCAL" if task.local else "ANY"
