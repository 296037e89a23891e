"""A job of many short tasks that reports where they run."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_SECONDS: Final = 0.8
"""Duration of a task, which sleeps."""
_GROUP: Final = "demo"
# Tasks in the JVM stop at once when killed; PySpark checks Python tasks only every 2 s.
_SLEEP: Final = "reflect('java.lang.Thread', 'sleep', {0}L) = 'null'"


LIVE_STATUS: Final = {"spark__ui__liveUpdate__period": "0"}
"""Setting for up-to-date counts of running tasks. For `cluster.session`."""


class Job(threading.Thread):
    """Lists the numbers below `count`, one per task. Starts at once."""

    def __init__(self, spark: SparkSession, hosts: Sequence[str], count: int) -> None:
        super().__init__(name="demo-job", daemon=True)
        self.hosts, self.count = hosts, count
        self._spark = spark
        self._numbers: list[int] = []
        self._error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self._spark.sparkContext.setJobGroup(_GROUP, "many short tasks")
            numbers = self._spark.range(0, self.count, 1, self.count).where(_SLEEP.format(round(TASK_SECONDS * 1000)))
            self._numbers = [row.id for row in numbers.collect()]
        except Exception as error:
            self._error = error

    def done(self) -> int:
        """Return the number of completed tasks."""
        tracker = self._spark.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(_GROUP)]
        stages = [tracker.getStageInfo(number) for job in jobs if job is not None for number in job.stageIds]
        return sum(stage.numCompletedTasks for stage in stages if stage is not None)

    def running(self) -> dict[str, int]:
        """Return the number of running tasks by host."""
        counts = running_tasks(self._spark)
        return {host: counts.get(host, 0) for host in self.hosts}

    def check(self) -> None:
        """Wait for the end. Raises the job's error, and RuntimeError if its result is wrong."""
        self.join()
        if self._error is not None:
            raise self._error
        if sorted(self._numbers) != list(range(self.count)):
            raise RuntimeError(f"the job's result is wrong: {sorted(self._numbers)}")


def running_tasks(spark: SparkSession) -> dict[str, int]:
    """Return the number of running tasks by host with a live executor; some seconds old without LIVE_STATUS."""
    infos = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()  # noqa: SLF001
    return {info.host(): info.numRunningTasks() for info in infos}
