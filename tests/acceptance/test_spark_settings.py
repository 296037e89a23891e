"""Applications with failure handling of their own, and with no tolerance for failures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from blocklist import BlocklistClient
from demo.cluster import Cluster, wait_until
from tests.acceptance.conftest import EVACUATE, A, Applications, B, C, StartAgent, unblock
from tests.acceptance.jobs import Job, used_hosts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def single_failure_spark(applications: Applications) -> SparkSession:
    """One failed task fails the job."""
    return applications.get(spark__task__maxFailures=1)


@pytest.fixture
def excluding_spark(applications: Applications, cluster: Cluster) -> SparkSession:
    """Spark excludes a host for an hour after one failed task, and has excluded B."""
    spark = applications.get(
        spark__excludeOnFailure__enabled="true",
        spark__excludeOnFailure__timeout="1h",
        spark__excludeOnFailure__application__maxFailedTasksPerExecutor=1,
        spark__excludeOnFailure__application__maxFailedExecutorsPerNode=1,
    )
    if B not in exclusions(spark):
        Job(spark, cluster, 12, fail_on=[B]).hosts()
        wait_until(lambda: B in exclusions(spark), 90, "Spark to exclude it")
    return spark


@pytest.fixture
def task_excluding_spark(applications: Applications) -> SparkSession:
    """Spark does not retry a task where it has failed; it excludes no host for all tasks."""
    return applications.get(
        spark__excludeOnFailure__enabled="true", spark__excludeOnFailure__application__maxFailedTasksPerExecutor=1000
    )


def test_a_job_that_tolerates_no_failure_survives_all_actions(
    single_failure_spark: SparkSession, cluster: Cluster, service: BlocklistClient, start_agent: StartAgent
) -> None:
    agent = start_agent(single_failure_spark)
    job = Job(single_failure_spark, cluster, 24, hold_on=(A, B, C))
    wait_until(lambda: len(job.starts()) == 6, 60, "all slots to be taken")
    for host in (A, B, C):
        service.block(host, "test", action=EVACUATE)
    wait_until(lambda: len(agent.status().blocked) == 2 and len(agent.status().refused) == 1, 90, "all blocks")
    job.release()
    job.hosts()
    assert len(used_hosts(single_failure_spark, cluster)) == 1


def test_spark_s_own_exclusion_stays_before_during_and_after_a_block(
    excluding_spark: SparkSession, cluster: Cluster, service: BlocklistClient, start_agent: StartAgent
) -> None:
    before = exclusions(excluding_spark)
    agent = start_agent(excluding_spark)
    assert used_hosts(excluding_spark, cluster) == {A, C}
    service.block(B, "test", action=EVACUATE)
    wait_until(lambda: agent.status().blocked == {B: B}, 90, "the block")
    unblock(service, agent, B)
    assert exclusions(excluding_spark) == before
    assert used_hosts(excluding_spark, cluster) == {A, C}
    agent.stop()
    assert exclusions(excluding_spark) == before
    assert used_hosts(excluding_spark, cluster) == {A, C}


def test_hosts_that_spark_excludes_are_not_counted_as_open(
    excluding_spark: SparkSession, service: BlocklistClient, start_agent: StartAgent
) -> None:
    """B is excluded, so one of A and C must stay open."""
    service.block(A, "test")
    service.block(C, "test", action=EVACUATE)
    agent = start_agent(excluding_spark)
    assert agent.status().blocked == {C: C}
    assert set(agent.status().refused) == {A}


def test_a_host_is_reopened_for_a_task_that_can_run_nowhere_else(
    task_excluding_spark: SparkSession, cluster: Cluster, service: BlocklistClient, start_agent: StartAgent
) -> None:
    """Its first attempt fails on the only open host, where Spark does not retry it."""
    service.block(B, "test", action=EVACUATE)
    agent = start_agent(task_excluding_spark)
    job = Job(task_excluding_spark, cluster, 4, hold_on=(A, C), fail_on=[C])
    # Both slots of A stay busy; in this case Spark aborts at once.
    job.await_running(A)
    service.block(A, "test")
    wait_until(lambda: A in agent.status().refused, 90, "the refusal")
    assert agent.status().refused[A].endswith("a task that failed on other hosts can run nowhere else.")
    assert agent.status().blocked == {B: B}
    job.release()
    assert job.hosts() == [A] * 4
    wait_until(lambda: agent.status().blocked == {A: A, B: B}, 60, "the block to be in force again")


def exclusions(spark: SparkSession) -> str:
    """Spark's own exclusions with their ends."""
    return str(spark.sparkContext._jsc.sc().taskScheduler().healthTrackerOpt().get().nodeIdToExcludedExpiryTime())
