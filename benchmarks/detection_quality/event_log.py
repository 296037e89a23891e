"""Synthetic runs as event logs, with the events and fields that the pipeline reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.detection_quality.facts import app_name, host_name, locality
from benchmarks.detection_quality.runs import SimulatedTask, SyntheticRun


def write_event_logs(run: SyntheticRun, folder: Path) -> list[Path]:
    """Write an event log for each application; return the files in the order of the applications."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for number, tasks in enumerate(run.applications):
        file = folder / f"app-{number:04d}"
        with file.open("w", encoding="utf-8") as log:
            for event in _events(run, number, tasks):
                log.write(json.dumps(event, separators=(",", ":")) + "\n")
        files.append(file)
    return files


def _events(run: SyntheticRun, number: int, tasks: Sequence[SimulatedTask]) -> Iterator[dict[str, Any]]:
    name, began = app_name(run, number), min(task.launched for task in tasks)
    yield {"Event": "SparkListenerLogStart", "Spark Version": "4.3.0"}
    yield {"Event": "SparkListenerApplicationStart", "App Name": name, "App ID": name, "Timestamp": began}
    for stage, ran in groupby(tasks, key=lambda task: task.stage):
        of_stage = list(ran)
        count = len({task.partition for task in of_stage})
        info = {"Stage ID": stage, "Stage Attempt ID": 0, "Number of Tasks": count, "Submission Time": began}
        yield {"Event": "SparkListenerStageSubmitted", "Stage Info": info}
        yield from (_task_end(run, task) for task in sorted(of_stage, key=lambda task: task.ended))


def _task_end(run: SyntheticRun, task: SimulatedTask) -> dict[str, Any]:
    return {
        "Event": "SparkListenerTaskEnd",
        "Stage ID": task.stage,
        "Stage Attempt ID": 0,
        "Task End Reason": _reason(run, task),
        "Task Info": {
            "Index": task.partition,
            "Launch Time": task.launched,
            "Executor ID": task.executor,
            "Host": host_name(run, task.host),
            "Locality": locality(task),
            "Speculative": False,
            "Finish Time": task.ended,
        },
        **({} if task.failure else {"Task Metrics": _metrics(task)}),
    }


def _reason(run: SyntheticRun, task: SimulatedTask) -> dict[str, Any]:
    failure = task.failure
    if failure is None:
        return {"Reason": "Success"}
    if failure.lost:
        return {"Reason": failure.outcome, "Exit Caused By App": True, "Loss Reason": failure.message}
    reason = {"Reason": failure.outcome, "Class Name": failure.error, "Description": failure.message}
    if failure.served_by is None:
        return reason
    return reason | {"Block Manager Address": {"Host": host_name(run, failure.served_by), "Port": 7337}}


def _metrics(task: SimulatedTask) -> dict[str, Any]:
    return {
        "Executor Run Time": task.run,
        "JVM GC Time": task.gc,
        "Shuffle Read Metrics": {
            "Fetch Wait Time": task.wait,
            "Remote Bytes Read": task.remote,
            "Local Bytes Read": task.read - task.remote if task.shuffled else 0,
        },
        "Shuffle Write Metrics": {"Shuffle Bytes Written": task.written, "Shuffle Write Time": task.write * 1_000_000},
        "Input Metrics": {"Bytes Read": 0 if task.shuffled else task.read},
    }
