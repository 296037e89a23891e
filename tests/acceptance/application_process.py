"""A second Spark application in its own process: `python -m tests.acceptance.application_process CONF URL`.

CONF is its Spark conf as JSON, URL the service. It starts an agent that reports evidence. For each line on stdin, an
address, it makes tasks fail on that host and answers once Spark has excluded the host. It ends when stdin is closed.
"""

# ruff: noqa: T201 - it talks by printing
from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Self

from tests.integration.process import ROOT


class Application:
    """The process, as a context manager."""

    def __init__(self, conf: Mapping[str, str], url: str) -> None:
        self._command = [sys.executable, "-m", "tests.acceptance.application_process", json.dumps(dict(conf)), url]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.id = self._answer()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def fail_on(self, address: str) -> None:
        """Make a task fail there; returns once Spark has excluded the host."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{address}\n")
        self._process.stdin.flush()
        assert self._answer() == address

    def _answer(self) -> str:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith("answer "):
                return line.removeprefix("answer ").strip()
        raise AssertionError("the application has ended")


def failing(address: str) -> Callable[[Iterable[int]], Iterator[int]]:
    """A task whose first attempt on that host fails. A nested function is pickled by value."""

    def run(numbers: Iterable[int]) -> Iterator[int]:
        import os
        import time

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if os.environ["SPARK_LOCAL_IP"] == address and context.attemptNumber() == 0:
            raise OSError("wanted")
        # Long enough for every host to be given some of the tasks.
        time.sleep(0.2)
        yield from numbers

    return run


def main(conf: dict[str, str], url: str) -> None:
    """Serve until stdin is closed."""
    from demo.java_home import java_home

    os.environ["JAVA_HOME"] = str(java_home())
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    from blocklist.spark import BlocklistAgent

    context = SparkContext(conf=SparkConf(loadDefaults=False).setAppName("second").setAll(list(conf.items())))
    with BlocklistAgent.start(SparkSession(context), url=url, report_evidence=True):
        print(f"answer {context.applicationId}", flush=True)
        for line in sys.stdin:
            address = line.strip()
            while address not in _excluded(context):
                context.range(0, 12, 1, 12).mapPartitions(failing(address)).count()
            print(f"answer {address}", flush=True)
    context.stop()


def _excluded(context: object) -> str:
    scheduler = context._jsc.sc().taskScheduler()  # type: ignore[attr-defined]
    return str(scheduler.healthTrackerOpt().get().nodeIdToExcludedExpiryTime())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2])
