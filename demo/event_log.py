"""Spark's event log of a finished application: where each task ran, and when."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskAttempt:
    """A task attempt; times are the driver's, in Unix ms. `killed`: it was told to stop, and has not failed."""

    host: str
    start: int
    end: int
    killed: bool
    failed: bool


def conf(folder: Path) -> dict[str, object]:
    """Return the settings that write an event log to `folder`, which is created. For `cluster.session`."""
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "spark__eventLog__enabled": "true",
        "spark__eventLog__dir": folder.as_uri(),
        "spark__eventLog__compress": "false",
        "spark__eventLog__rolling__enabled": "false",
    }


def attempts(folder: Path) -> list[TaskAttempt]:
    """Return the task attempts of all applications in `folder`, by start; complete once they have stopped."""
    found = [_attempt(event["Task Info"]) for event in _events(folder, "SparkListenerTaskEnd")]
    return sorted(found, key=lambda attempt: attempt.start)


def exclusions(folder: Path, host: str) -> list[int]:
    """Return the times (Unix ms, sorted) at which Spark excluded the host; no task starts on it afterwards."""
    events = _events(folder, "org.apache.spark.scheduler.SparkListenerNodeExcluded")
    return sorted(event["time"] for event in events if event["hostId"] == host)


def _events(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    for file in folder.iterdir():
        with file.open(encoding="utf-8") as lines:
            yield from (json.loads(line) for line in lines if line.startswith(f'{{"Event":"{name}"'))


def _attempt(info: dict[str, Any]) -> TaskAttempt:
    return TaskAttempt(
        host=info["Host"],
        start=info["Launch Time"],
        end=info["Finish Time"],
        killed=info["Killed"],
        failed=info["Failed"],
    )
