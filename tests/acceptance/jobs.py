"""Jobs whose tasks record where they ran."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Final

from demo.cluster import Cluster, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXCLUDING: Final = {
    "spark__excludeOnFailure__enabled": "true",
    "spark__excludeOnFailure__timeout": "1h",
    "spark__excludeOnFailure__stage__maxFailedTasksPerExecutor": 1,
    "spark__excludeOnFailure__stage__maxFailedExecutorsPerNode": 1,
    "spark__excludeOnFailure__application__maxFailedTasksPerExecutor": 1,
    "spark__excludeOnFailure__application__maxFailedExecutorsPerNode": 1,
}
"""Settings with which one failed task excludes a host from the stage, and from the application when the stage ends."""
SHARED: Final = {**EXCLUDING, "spark__executor__cores": 1, "spark__cores__max": 3}
"""For two applications, with an executor of one core each on every host."""
SPECULATING: Final = {
    "spark__speculation": "true",
    "spark__speculation__multiplier": 2,
    "spark__speculation__quantile": 0.5,
    "spark__speculation__minTaskRuntime": "1s",
}
"""Settings with which Spark speculates early."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskStart:
    """The start of a task attempt; `at` in Unix ms."""

    partition: int
    attempt: int
    host: str
    at: int


class Job(threading.Thread):
    """A job of `count` tasks, started at once; the result of a task is its host.

    Tasks on the hosts `hold_on` run until `release`. The first attempts on the hosts `fail_on` fail.
    """

    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        count: int,
        *,
        hold_on: Collection[str] = (),
        fail_on: Collection[str] = (),
    ) -> None:
        super().__init__(daemon=True)
        self._spark, self._count = spark, count
        self._hosts = {address: host for host, address in cluster.hosts.items()}
        self._held = [cluster.hosts[host] for host in hold_on]
        self._failing = [cluster.hosts[host] for host in fail_on]
        self._folder = Path(mkdtemp(dir=cluster.folder))
        self._result: list[str] = []
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        task = _task(str(self._folder), self._held, self._failing)
        try:
            numbers = self._spark.sparkContext.range(0, self._count, 1, self._count)
            self._result = numbers.mapPartitions(task).collect()
        except BaseException as error:
            self._error = error

    def starts(self) -> list[TaskStart]:
        """Return the task attempts that have started so far."""
        return [self._start(file) for file in self._folder.glob("*.started")]

    def running_on(self, host: str) -> int:
        """Return the number of attempts that have started there."""
        return sum(start.host == host for start in self.starts())

    def await_running(self, *hosts: str) -> None:
        """Wait until at least one task has started on each of the hosts."""
        wait_until(lambda: all(self.running_on(host) for host in hosts), 60, f"tasks on {hosts}")

    def release(self) -> None:
        """Let the held tasks end."""
        (self._folder / "go").touch()

    def hosts(self, seconds: float = 90) -> list[str]:
        """Wait for the end and return the host of each successful attempt. Raises the job's error."""
        self.join(seconds)
        if self.is_alive():
            raise TimeoutError(f"the job did not end; started so far: {self.starts()}")
        if self._error is not None:
            raise self._error
        return [self._hosts[address] for address in self._result]

    def _start(self, file: Path) -> TaskStart:
        partition, attempt, address, at = file.stem.split("_")
        return TaskStart(partition=int(partition), attempt=int(attempt), host=self._hosts[address], at=int(at))


def used_hosts(spark: SparkSession, cluster: Cluster) -> set[str]:
    """Return the hosts on which a job of two tasks per slot runs."""
    return set(Job(spark, cluster, 12).hosts())


def slow_on(spark: SparkSession, cluster: Cluster, host: str) -> None:
    """Run a small job whose tasks are slow on one host."""
    task = _slow_task(cluster.hosts[host])
    assert spark.sparkContext.range(0, 12, 1, 12).mapPartitions(task).count() == 12


def await_use(spark: SparkSession, cluster: Cluster, host: str) -> list[TaskStart]:
    """Run small jobs until one has a task on the host; return all of their task attempts."""
    starts: list[TaskStart] = []

    def used() -> bool:
        job = Job(spark, cluster, 12)
        job.hosts()
        starts.extend(job.starts())
        return bool(job.running_on(host))

    wait_until(used, 60, f"a task on {host}")
    return starts


def _task(folder: str, held: list[str], failing: list[str]) -> Callable[[Iterable[int]], Iterator[str]]:
    """A nested function is pickled by value: the workers need nothing of this repository."""

    def run(_: Iterable[int]) -> Iterator[str]:
        import os
        import time
        from pathlib import Path

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        address = os.environ["SPARK_LOCAL_IP"]
        name = f"{context.partitionId()}_{context.attemptNumber()}_{address}_{time.time_ns() // 1_000_000}"
        Path(folder, f"{name}.started").touch()
        if address in failing and context.attemptNumber() == 0:
            raise RuntimeError("wanted")
        while address in held and not Path(folder, "go").exists():
            time.sleep(0.02)
        yield address

    return run


def _slow_task(slow: str) -> Callable[[Iterable[int]], Iterator[int]]:
    def run(numbers: Iterable[int]) -> Iterator[int]:
        import os
        import time

        time.sleep(20 if os.environ["SPARK_LOCAL_IP"] == slow else 0.3)
        yield from numbers

    return run
