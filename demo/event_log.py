"""Spark's own record of a finished application: when each task started, on which host, and when it ended."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
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


def attempts(folder: Path) -> list[Attempt]:
    """All that ended, of all applications with a record in `folder`, by start. Complete once they have stopped."""
    found = [_attempt(line) for file in folder.iterdir() for line in file.open(encoding="utf-8") if _is_end(line)]
    return sorted(found, key=lambda attempt: attempt.start)


def _is_end(line: str) -> bool:
    return line.startswith('{"Event":"SparkListenerTaskEnd"')


def _attempt(line: str) -> Attempt:
    info = json.loads(line)["Task Info"]
    return Attempt(host=info["Host"], start=info["Launch Time"], end=info["Finish Time"], killed=info["Killed"])
