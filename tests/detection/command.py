"""Runs `python -m blocklist.detection` as operators do, and makes its input."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from demo.java_home import java_home
from tests.class_archive import archive_option
from tests.detection.synthetic_logs import event_log
from tests.integration.process import ROOT, environment

Command = Callable[..., tuple[int, str, str]]
"""Runs the command in this process: its exit code, output and errors."""
_QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def settings() -> dict[str, str]:
    """Return the environment: a small Spark that starts fast."""
    submit = f'--master local[2] --driver-java-options "{_QUICK} {archive_option()}" pyspark-shell'
    return environment() | {"JAVA_HOME": str(java_home()), "PYSPARK_SUBMIT_ARGS": submit}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it and wait for its end."""
    command = [sys.executable, "-m", "blocklist.detection", *arguments]
    return subprocess.run(command, cwd=ROOT, env=settings(), capture_output=True, text=True, timeout=900, check=False)


def now() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000


def write_logs(folder: Path) -> Path:
    """Write three applications on six hosts, of which n3 is slow, and a file that is not an event log."""
    folder.mkdir()
    for number in range(3):
        lines = event_log(f"app-{number}", now() - 900_000 + number * 250_000, slow="n3")
        (folder / f"app-{number}").write_text("".join(lines))
    (folder / "notes.txt").write_text("Ask Kim about rack 7.\n")
    with (folder / "app-2").open("a") as file:
        file.write('{"Event":"SparkListenerTaskEnd","Stage ID":1,"Stage Att\n')
    return folder


@dataclass(frozen=True)
class DryRun:
    """The input and output of a dry run."""

    logs: Path
    lines: Path
    parquet: Path
    report: Path
    done: subprocess.CompletedProcess[str]


def dry_run(folder: Path) -> DryRun:
    """Run it with all outputs, in this folder."""
    logs = write_logs(folder / "logs")
    lines, parquet, report = folder / "out.jsonl", folder / "parquet", folder / "report.html"
    done = run("--event-logs", str(logs), "--json", str(lines), "--parquet", str(parquet), "--html", str(report))
    assert done.returncode == 0, done.stderr
    return DryRun(logs, lines, parquet, report, done)
