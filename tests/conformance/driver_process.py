"""A Spark driver whose agent is a party: `python -m tests.conformance.driver_process URL`.

It prints the application's id, then answers each line on stdin: `start` and `stop` the agent, and `table`, the list
that the agent has put in force, as JSON: its revision, and for each node its end, action and cause.
"""

# ruff: noqa: T201 - it talks by printing
from __future__ import annotations

import json
import os
import subprocess
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tests.class_archive import archive_option
from tests.integration.process import ROOT

if TYPE_CHECKING:
    from blocklist.spark import BlocklistAgent


class DriverProcess:
    """The process, as a context manager; it starts in the background."""

    def __init__(self, url: str) -> None:
        self._command = [sys.executable, "-m", "tests.conformance.driver_process", url]
        self._id = ""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    @property
    def id(self) -> str:
        """The application's id; waits for the start."""
        self._id = self._id or str(self._answer())
        return self._id

    def ask(self, question: str) -> Any:
        """The answer to `start`, `stop` or `table`."""
        assert self.id
        assert self._process.stdin is not None
        self._process.stdin.write(f"{question}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        raise AssertionError("the driver has ended")


def main(url: str) -> None:
    """Serve until stdin is closed."""
    from demo.java_home import java_home

    os.environ["JAVA_HOME"] = str(java_home())
    from pyspark.sql import SparkSession

    from blocklist.spark import BlocklistAgent

    builder = SparkSession.Builder().master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.log.level", "ERROR")
    java = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {archive_option()}"
    spark = builder.config("spark.driver.extraJavaOptions", java).getOrCreate()
    _say(spark.sparkContext.applicationId)
    agent: BlocklistAgent | None = None
    for line in sys.stdin:
        match line.strip():
            case "start":
                agent = BlocklistAgent.start(spark, url)
                _say(agent.status().running)
            case "stop":
                assert agent is not None
                agent.stop()
                _say(agent.status().running)
            case "table":
                assert agent is not None
                _say(_table_in_force(agent))
    spark.stop()


def _table_in_force(agent: BlocklistAgent) -> dict[str, Any]:
    """The table is read by reflection: the agent shows only what matches a host of its own."""
    revision = agent.status().revision
    table = _field(_field(agent._handle, "agent"), "table")
    entries = _field(table, "entries")
    nodes = {}
    for key in entries.keySet():
        entry = entries.get(key)
        evacuates = _field(entry, "action") == _field(entry, "EVACUATE")
        nodes[_field(entry, "id")] = [str(_field(entry, "end")), evacuates, _field(entry, "cause")]
    return {"revision": revision, "table": _field(table, "revision"), "nodes": nodes}


def _field(owner: Any, name: str) -> Any:
    field = owner.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(owner)


def _say(value: object) -> None:
    print(f"answer {json.dumps(value)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
