"""`python -m demo`: the service, a Spark cluster of three hosts on this machine, and a job that obeys."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from demo import event_log
from demo.cluster import Cluster, session
from demo.job import LIVE_STATUS
from demo.scenario import run_scenario
from demo.screen import Screen, capturing_output, make_screen
from demo.service import service
from demo.summary import summary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLOTS: Final = 2
"""Tasks that fit on a host."""
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WELCOME: Final = """\
A blocklist service, a Spark cluster of three hosts, all on this machine, and a job of many short tasks. One host will
be blocked, another evacuated, both freed again. You need not do anything; Ctrl-C stops it all and cleans up.
"""


class Stopped(BaseException):
    """A signal asked for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; the exit code. Whatever happens, no process and no file stays behind."""
    parser = argparse.ArgumentParser(prog="python -m demo", description="A Spark job that obeys the blocklist.")
    parser.add_argument("--seconds", type=int, default=60, help="how long the job takes, roughly (default: 60)")
    seconds = parser.parse_args(arguments).seconds
    _on_signals(_raise_stopped)
    try:
        with _temporary_folder() as folder, capturing_output(folder / "others.log") as out:
            _demo(make_screen(out, SLOTS), folder, seconds)
    except Stopped as stopped:
        return stopped.exit_code
    except KeyboardInterrupt:  # from PySpark, which has a handler of its own for a while
        return 128 + signal.SIGINT
    except BrokenPipeError:  # nobody reads on
        return 128 + signal.SIGPIPE
    return 0


def _demo(screen: Screen, folder: Path, seconds: int) -> None:
    screen.print(WELCOME)
    screen.print("Starting the service …")
    with service(folder) as url:
        screen.print("Starting three Spark workers: 127.0.0.2, 127.0.0.3 and 127.0.0.4 …")
        with Cluster(cores=SLOTS) as cluster:
            screen.print("Starting the job's driver, and in it the agent that watches the list …\n")
            with _driver(cluster, folder) as spark:
                steps = run_scenario(screen, spark, url, list(cluster.hosts), seconds=seconds, slots=SLOTS)
            screen.print(summary(steps, event_log.attempts(folder / "events")))
            _on_signals(signal.SIG_IGN)  # all that is left is to clean up


@contextmanager
def _driver(cluster: Cluster, folder: Path) -> Iterator[SparkSession]:
    """An application, whose record is complete afterwards."""
    before = _children()
    try:
        spark = session(cluster, **LIVE_STATUS, **event_log.conf(folder / "events"))
        _on_signals(_raise_stopped)  # instead of PySpark's, which would leave the job's driver where it is
        yield spark
        spark.stop()
    finally:
        # Not asked to end: a signal may have come in the middle of a talk with it.
        for pid in _children() - before:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Where everything goes, also what Python and the JVMs would put into the system's temp folder."""
    with tempfile.TemporaryDirectory(prefix="blocklist-demo-", ignore_cleanup_errors=True) as name:
        tempfile.tempdir = name
        options = (os.environ.get("JAVA_TOOL_OPTIONS"), f"-Djava.io.tmpdir={name}", "-XX:-UsePerfData")
        os.environ |= {"TMPDIR": name, "JAVA_TOOL_OPTIONS": " ".join(filter(None, options))}
        yield Path(name)


def _children() -> set[int]:
    """The processes that this one has started and that have not been waited for."""
    files = Path("/proc/self/task").glob("*/children")
    return {int(pid) for file in files for pid in file.read_text().split()}


def _on_signals(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in SIGNALS:
        signal.signal(number, handler)


def _raise_stopped(number: int, _: FrameType | None) -> None:
    """Once: what follows is cleaning up, which a second Ctrl-C would only spoil."""
    _on_signals(signal.SIG_IGN)
    raise Stopped(number)


if __name__ == "__main__":
    sys.exit(main())
