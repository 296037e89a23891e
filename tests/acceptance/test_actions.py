"""What the two actions, an end and an unblock do to running and future tasks."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from blocklist import BlocklistClient
from blocklist.spark import BlocklistAgent
from demo.cluster import Cluster, wait_until
from tests.acceptance.conftest import EVACUATE, MARK, A, B, BlockNode, C, is_blocked
from tests.acceptance.jobs import Job, await_use
from tests.integration.process import ServiceProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_marked_host_gets_no_task_and_its_running_tasks_finish(
    spark: SparkSession, cluster: Cluster, block: BlockNode
) -> None:
    job = Job(spark, cluster, 24, hold_on=(A, B, C))
    job.await_running(A, B, C)
    wait_until(lambda: len(job.starts()) == 6, 90, "all slots to be taken")
    block(B)
    job.release()
    hosts = job.hosts()
    assert len(job.starts()) == 24
    assert hosts.count(B) == 2


def test_a_block_ends_at_its_end_even_if_the_service_is_dead(
    spark: SparkSession, cluster: Cluster, block: BlockNode, agent: BlocklistAgent, service_process: ServiceProcess
) -> None:
    end = now() + 5000
    block(B, end=end)
    service_process.kill()
    try:
        starts = await_use(spark, cluster, B)
        wait_until(lambda: not is_blocked(agent, B), 90, "the agent to know")
    finally:
        service_process.start()
    assert min(start.at for start in starts if start.host == B) >= end


def test_a_shuffle_job_is_correct_while_hosts_are_blocked_and_freed(
    spark: SparkSession, service: BlocklistClient, agent: BlocklistAgent
) -> None:
    """Two of three hosts at a time; one time in ten their tasks are killed too."""
    done = threading.Event()
    flips = 0

    def flip() -> None:
        nonlocal flips
        while not done.wait(0.1):
            for host in ((A, B), (B, C), (A, C))[flips % 3]:
                service.block(host, "flip", action=MARK if flips % 10 else EVACUATE)
            flips += 1
            wait_until(lambda: len(agent.status().blocked) == 2, 90, "both to be blocked")
            for host in list(service.snapshot().nodes):
                service.unblock(host)

    flipping = threading.Thread(target=flip)
    flipping.start()
    try:
        for _ in range(3):
            numbers = spark.range(0, 300_000, 1, 20).selectExpr("id % 1000 AS k", "id AS v")
            sums = numbers.repartition(20).groupBy("k").sum("v").collect()
            assert sorted(tuple(row) for row in sums) == [(k, sum(range(k, 300_000, 1000))) for k in range(1000)]
    finally:
        done.set()
        flipping.join()
    assert flips > 10


def now() -> int:
    return time.time_ns() // 1_000_000
