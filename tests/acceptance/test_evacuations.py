"""Stages whose tasks Spark cannot restart one by one, and tasks that are evacuated again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from blocklist import BlocklistClient
from blocklist.spark import BlocklistAgent
from demo.cluster import Cluster, wait_until
from tests.acceptance.conftest import EVACUATE, A, Applications, B, BlockNode, C, StartAgent
from tests.acceptance.jobs import Job, used_hosts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class BarrierJob(threading.Thread):
    """A barrier stage; all of its tasks run until `release`. `hosts` has their addresses afterwards."""

    def __init__(self, spark: SparkSession, cluster: Cluster, tasks: int) -> None:
        super().__init__(daemon=True)
        self._spark, self._tasks, self.folder = spark, tasks, Path(mkdtemp(dir=cluster.folder))
        self.hosts: list[str] = []
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            numbers = self._spark.sparkContext.range(0, self._tasks, 1, self._tasks)
            self.hosts = numbers.barrier().mapPartitions(barrier_task(str(self.folder))).collect()
        except BaseException as error:
            self.error = error

    def started(self) -> int:
        return len(list(self.folder.glob("*.started")))

    def release(self) -> list[str]:
        (self.folder / "go").touch()
        self.join(90)
        assert self.error is None
        return self.hosts


def test_tasks_of_a_barrier_stage_are_not_evacuated(
    spark: SparkSession, cluster: Cluster, service: BlocklistClient, agent: BlocklistAgent
) -> None:
    job = BarrierJob(spark, cluster, 6)
    wait_until(lambda: job.started() == 6, 60, "all tasks")
    service.block(B, "test", action=EVACUATE)
    wait_until(lambda: B in agent.status().refused, 90, "the refusal")
    assert "barrier stage" in agent.status().refused[B]
    assert B in agent.status().blocked
    hosts = job.release()
    assert len(hosts) == job.started() == 6
    assert used_hosts(spark, cluster) == {A, C}
    wait_until(lambda: not agent.status().refused, 90, "the evacuation to be complete")


def test_a_barrier_stage_that_needs_a_blocked_host_gets_it(
    spark: SparkSession, cluster: Cluster, service: BlocklistClient, block: BlockNode, agent: BlocklistAgent
) -> None:
    """Without it Spark would wait for ever. The weakest block gives way, and only while the stage waits."""
    block(A, EVACUATE)
    block(B)
    job = BarrierJob(spark, cluster, 4)
    wait_until(lambda: job.started() == 4, 60, "all tasks")
    hosts = job.release()
    assert set(hosts) == {cluster.hosts[B], cluster.hosts[C]}
    wait_until(lambda: agent.status().blocked == {A: A, B: B}, 90, "both blocks")
    assert used_hosts(spark, cluster) == {C}


def test_a_continuous_query_is_not_evacuated(
    spark: SparkSession, cluster: Cluster, service: BlocklistClient, agent: BlocklistAgent
) -> None:
    """A killed task would end it, and it reports no progress but its epochs."""
    rate = spark.readStream.format("rate").option("numPartitions", 3).option("rowsPerSecond", 30).load()
    query = rate.writeStream.format("console").trigger(continuous="1 second").start()

    def await_next_epoch() -> None:
        before = query.status["message"]
        wait_until(lambda: query.status["message"] != before or not query.isActive, 60, f"more than {before}")
        assert query.isActive, query.exception()

    try:
        wait_until(lambda: "epoch" in query.status["message"] or not query.isActive, 60, "the first epoch")
        for host in (A, B):
            service.block(host, "test", action=EVACUATE)
        wait_until(lambda: set(agent.status().refused) == {A, B}, 90, "the refusals")
        assert all("continuous query" in reason for reason in agent.status().refused.values())
        assert set(agent.status().blocked) == {A, B}
        assert used_hosts(spark, cluster) == {C}
        await_next_epoch()
        await_next_epoch()
    finally:
        query.stop()


def test_a_task_that_is_evacuated_again_and_again_is_left_alone(
    applications: Applications, cluster: Cluster, service: BlocklistClient, start_agent: StartAgent
) -> None:
    spark = applications.get()
    agent = start_agent(spark)
    job = Job(spark, cluster, 1, hold_on=(A, B, C))
    wait_until(lambda: len(job.starts()) == 1, 60, "the task")

    def flip() -> bool:
        last = max(job.starts(), key=lambda start: start.at).host
        for host in set(service.snapshot().nodes) - {last}:
            service.unblock(host)
        service.block(last, "test", action=EVACUATE, allow_merge=True)
        begun = len(job.starts())
        wait_until(lambda: len(job.starts()) > begun or bool(agent.status().refused), 90, "the task to restart")
        return bool(agent.status().refused)

    wait_until(flip, 90, "the limit")
    assert any("the limit is 3 evacuations of a task" in reason for reason in agent.status().refused.values())
    assert len(job.starts()) == 4
    job.release()
    job.hosts()


def barrier_task(folder: str) -> Callable[[Iterable[int]], Iterator[str]]:
    """A nested function is pickled by value: the workers need nothing of this repository."""

    def run(_: Iterable[int]) -> Iterator[str]:
        import os
        import time
        from pathlib import Path

        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        context.barrier()
        Path(folder, f"{context.partitionId()}_{context.attemptNumber()}.started").touch()
        while not Path(folder, "go").exists():
            time.sleep(0.02)
        yield os.environ["SPARK_LOCAL_IP"]

    return run
