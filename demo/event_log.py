"""Spark's own record of a finished application: when each task started, on which host, and when it ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskAttempt:
    """One run of a task, told by the driver's clock in Unix milliseconds. `killed`: told to stop before its end."""

    host: str
    start: int
    end: int
    killed: bool


def conf(folder: Path) -> dict[str, object]:
    """The settings with which an application keeps its record in `folder`; made if missing. For `cluster.session`."""
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "spark__eventLog__enabled": "true",
        "spark__eventLog__dir": folder.as_uri(),
        "spark__eventLog__compress": "false",
        "spark__eventLog__rolling__enabled": "false",
    }


def attempts(folder: Path) -> list[TaskAttempt]:
    """All that ended, of all applications with a record in `folder`, by start. Complete once they have stopped."""
    found = [_attempt(event["Task Info"]) for event in _events(folder, "SparkListenerTaskEnd")]
    return sorted(found, key=lambda attempt: attempt.start)


def exclusions(folder: Path, host: str) -> list[int]:
    """When Spark was told to keep off the host, in Unix milliseconds: each time, in order. No task starts later."""
    events = _events(folder, "org.apache.spark.scheduler.SparkListenerNodeExcluded")
    return sorted(event["time"] for event in events if event["hostId"] == host)


def _events(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    for file in folder.iterdir():
        with file.open(encoding="utf-8") as lines:
            yield from (json.loads(line) for line in lines if line.startswith(f'{{"Event":"{name}"'))


def _attempt(info: dict[str, Any]) -> TaskAttempt:
    return TaskAttempt(host=info["Host"], start=info["Launch Time"], end=info["Finish Time"], killed=info["Killed"])
