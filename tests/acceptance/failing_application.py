"""A Spark application whose jobs fail as told: `python -m tests.acceptance.failing_application CONF URL`.

CONF is its Spark conf as JSON, URL the service; without a URL there is no agent. For each line on stdin, a Job as JSON,
it runs that job and answers how it ended. It ends when stdin is closed.
"""

# ruff: noqa: T201 - it talks by printing
from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from tests.integration.process import ROOT

HANG_SECONDS = 240


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A job of `tasks` tasks that sleep for `seconds`.

    On the host with the address `bad`, or on all without it, its tasks fail with this error after `fails_after`
    seconds; with `partitions` only those with a lower number. A job that shuffles sleeps in its second stage. A job
    with `cancel_after` is cancelled.
    """

    tasks: int = 24
    seconds: float = 0.3
    error: Literal["OSError", "MemoryError", ""] = ""
    bad: str = ""
    fails_after: float = 0
    partitions: int = sys.maxsize
    shuffles: bool = False
    cancel_after: float = 0
    folder: str = ""
    """Tasks that sleep leave a file with the address of their host here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """How a job ended: the addresses of the hosts where its tasks succeeded, none if the job failed."""

    addresses: frozenset[str]


class Application:
    """The process, as a context manager."""

    def __init__(self, conf: Mapping[str, str], url: str = "") -> None:
        module = "tests.acceptance.failing_application"
        self._command = [sys.executable, "-m", module, json.dumps(dict(conf)), url]
        self._answers: queue.Queue[str] = queue.Queue()

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.id = self._answer()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(120)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(60)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def run(self, job: Job) -> Result:
        """Run the job and wait for its end."""
        self.begin(job)
        return self.result()

    def begin(self, job: Job) -> None:
        """Begin the job; `result` waits for its end."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(asdict(job))}\n")
        self._process.stdin.flush()

    def result(self) -> Result:
        return Result(addresses=frozenset(self._answer().split()))

    def _answer(self) -> str:
        answer = self._answers.get(timeout=HANG_SECONDS)
        assert answer.startswith("answer"), "the application has ended"
        return answer.removeprefix("answer").strip()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("answer"):
                self._answers.put(line)
        self._answers.put("end")


def task(job: Job) -> Callable[[Iterable[Any]], Iterator[str]]:
    """A nested function is pickled by value: the workers need nothing of this repository."""
    seconds, error, bad, fails_after, partitions = job.seconds, job.error, job.bad, job.fails_after, job.partitions
    folder = job.folder

    def run(_: Iterable[Any]) -> Iterator[str]:
        import os
        import time
        from pathlib import Path

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        address = os.environ["SPARK_LOCAL_IP"]
        if error and address.startswith(bad) and context.partitionId() < partitions:
            time.sleep(fails_after)
            raise OSError("wanted") if error == "OSError" else MemoryError("wanted")
        if folder:
            Path(folder, address).touch()
        time.sleep(seconds)
        yield address

    return run


def run(context: Any, job: Job) -> set[str]:
    """The addresses where its tasks succeeded; none if it failed."""
    numbers = context.range(0, job.tasks, 1, job.tasks)
    if job.shuffles:
        numbers = numbers.map(lambda number: (number, 1)).groupByKey(job.tasks)
    if job.cancel_after:
        threading.Timer(job.cancel_after, context.cancelAllJobs).start()
    try:
        return set(numbers.mapPartitions(task(job)).collect())
    except Exception as error:
        print(f"The job failed: {str(error)[:200]}", file=sys.stderr)
        return set()


def main(conf: dict[str, str], url: str) -> None:
    """Serve until stdin is closed."""
    from demo.java_home import java_home

    os.environ["JAVA_HOME"] = str(java_home())
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    from blocklist.spark import BlocklistAgent

    context = SparkContext(conf=SparkConf(loadDefaults=False).setAppName("failing").setAll(list(conf.items())))
    agent = BlocklistAgent.start(SparkSession(context), url=url, report_evidence=True) if url else None
    print(f"answer {context.applicationId}", flush=True)
    for line in sys.stdin:
        print("answer", *run(context, Job(**json.loads(line))), flush=True)
    if agent:
        agent.stop()
    context.stop()


def executors(application: Application, address: str) -> list[int]:
    """The process ids of its executors on the host with this address; other clusters may use the address, too."""
    expected = {application.id.encode(), address.encode()}
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if expected.issubset(words) and any(word.endswith(b"CoarseGrainedExecutorBackend") for word in words):
            found.append(int(path.parent.name))
    return found


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2])
