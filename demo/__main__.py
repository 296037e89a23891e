"""`python -m demo`: the service, a Spark cluster of three hosts on this machine, and a job that follows the list."""

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
from typing import TYPE_CHECKING, Final, NoReturn

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
"""Number of tasks that a host runs at once."""
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WELCOME: Final = """\
A blocklist service, a Spark cluster of three hosts, all on this machine, and a job of many short tasks. One host will
be blocked, another evacuated, and both freed again. Just watch; Ctrl-C stops and removes everything.
"""
PAGE: Final = """\
The page: {url}/
Try in another terminal, in this folder:
  BLOCKLIST_URL={url} .venv/bin/blocklist list --watch
  BLOCKLIST_URL={url} .venv/bin/blocklist drain 127.0.0.4 --timeout 1m
"""
STAYS: Final = """
The job has ended; the service and its page stay up at {url}/ until Ctrl-C.
"""


class Stopped(BaseException):
    """A signal requested the end of the demo."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


def main(arguments: list[str] | None = None) -> int:
    """Run the demo and return the exit code. In all cases no process and no file is left behind."""
    parser = argparse.ArgumentParser(prog="python -m demo", description="A Spark job that follows the blocklist.")
    parser.add_argument("--seconds", type=int, default=60, help="approximate duration of the job (default: 60)")
    parser.add_argument("--exit", action="store_true", help="end after the job, instead of staying until Ctrl-C")
    options = parser.parse_args(arguments)
    _on_signals(_raise_stopped)
    try:
        with _temporary_folder() as folder, capturing_output(folder / "others.log") as out:
            _demo(make_screen(out, SLOTS), folder, options.seconds, stay=not options.exit)
    except Stopped as stopped:
        return stopped.exit_code
    except KeyboardInterrupt:  # raised by PySpark's own handler, which is installed for a while
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader has closed the pipe
        return 128 + signal.SIGPIPE
    return 0


def _demo(screen: Screen, folder: Path, seconds: int, *, stay: bool) -> None:
    screen.print(WELCOME)
    screen.print("Starting the service …")
    with service(folder) as url:
        screen.print(PAGE.format(url=url))
        screen.print("Starting three Spark workers: 127.0.0.2, 127.0.0.3 and 127.0.0.4 …")
        with Cluster(cores=SLOTS) as cluster:
            screen.print("Starting the job's driver with the agent that watches the list …\n")
            with _driver(cluster, folder) as spark:
                steps = run_scenario(screen, spark, url, list(cluster.hosts), seconds=seconds, slots=SLOTS)
            screen.print(summary(steps, event_log.attempts(folder / "events")))
        if stay:
            screen.print(STAYS.format(url=url))
            _wait_for_signal()
        _on_signals(signal.SIG_IGN)  # only the cleanup remains


def _wait_for_signal() -> NoReturn:
    """The handler of the signal raises Stopped."""
    while True:
        signal.pause()


@contextmanager
def _driver(cluster: Cluster, folder: Path) -> Iterator[SparkSession]:
    """An application whose event log is complete after the context exits."""
    before = _children()
    try:
        spark = session(cluster, **LIVE_STATUS, **event_log.conf(folder / "events"))
        _on_signals(_raise_stopped)  # PySpark's handler would leave the driver running
        yield spark
        spark.stop()
    finally:
        # Killed, because a signal may have interrupted the communication with it.
        for pid in _children() - before:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """A folder for all files, including the temporary files of Python and the JVMs."""
    with tempfile.TemporaryDirectory(prefix="blocklist-demo-", ignore_cleanup_errors=True) as name:
        tempfile.tempdir = name
        options = (os.environ.get("JAVA_TOOL_OPTIONS"), f"-Djava.io.tmpdir={name}", "-XX:-UsePerfData")
        os.environ |= {"TMPDIR": name, "JAVA_TOOL_OPTIONS": " ".join(filter(None, options))}
        yield Path(name)


def _children() -> set[int]:
    """Return the process ids of the children of this process that have not been waited for."""
    files = Path("/proc/self/task").glob("*/children")
    return {int(pid) for file in files for pid in file.read_text().split()}


def _on_signals(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in SIGNALS:
        signal.signal(number, handler)


def _raise_stopped(number: int, _: FrameType | None) -> None:
    """Further signals are ignored, so that a second Ctrl-C does not interrupt the cleanup."""
    _on_signals(signal.SIG_IGN)
    raise Stopped(number)


if __name__ == "__main__":
    sys.exit(main())
