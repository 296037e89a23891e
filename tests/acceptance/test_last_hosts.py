"""No job hangs or is aborted, however many hosts are blocked and whatever dies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blocklist import BlocklistClient
from blocklist.spark import BlocklistAgent
from demo.cluster import Cluster, executor_hosts, wait_until
from tests.acceptance.conftest import EVACUATE, A, B, BlockNode, C
from tests.acceptance.jobs import Job, await_use, used_hosts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_failed_task_is_retried_on_the_only_open_host(
    spark: SparkSession, cluster: Cluster, block: BlockNode
) -> None:
    """As without the agent: failure handling that the application has not enabled stays off."""
    block(A)
    block(B)
    job = Job(spark, cluster, 4, fail_on=[C])
    assert job.hosts() == [C] * 4
    assert len(job.starts()) == 8


def test_when_the_last_open_host_dies_another_is_reopened(
    spark: SparkSession, cluster: Cluster, block: BlockNode, agent: BlocklistAgent
) -> None:
    """Blocked hosts are busy and tasks wait: without an open host, Spark aborts the job within a second."""
    job = Job(spark, cluster, 30, hold_on=(A, B, C))
    wait_until(lambda: len(job.starts()) == 6, 60, "all slots to be taken")
    block(A)
    block(B, EVACUATE)
    wait_until(lambda: executor_hosts(spark) == {A, B, C}, 90, "all hosts")
    cluster.kill_worker(C)
    try:
        wait_until(lambda: set(agent.status().refused) == {A}, 90, "the weakest to be refused")
        assert agent.status().blocked == {B: B}
        job.release()
        hosts = job.hosts()
        assert hosts.count(A) > 2
    finally:
        cluster.start_worker(C)
    await_use(spark, cluster, C)
    wait_until(lambda: agent.status().blocked == {A: A, B: B} and not agent.status().refused, 90, "both blocks")
    assert used_hosts(spark, cluster) == {C}


def test_a_host_that_returns_is_blocked_from_its_first_executor_on(
    spark: SparkSession, cluster: Cluster, block: BlockNode, service: BlocklistClient, agent: BlocklistAgent
) -> None:
    """Even under another name than on the list. Spark does not reject its executor."""
    block("Worker-C", EVACUATE)
    cluster.kill_worker(C)
    wait_until(lambda: executor_hosts(spark) == {A, B}, 90, "the executor to be gone")
    job = Job(spark, cluster, 24, hold_on=(A, B))
    cluster.start_worker(C)
    wait_until(lambda: executor_hosts(spark) == {A, B, C}, 60, "the executor to come back")
    wait_until(lambda: agent.status().blocked == {C: "Worker-C"}, 90, "the agent to know")
    job.release()
    assert C not in job.hosts()
    service.unblock("Worker-C")
    await_use(spark, cluster, C)
