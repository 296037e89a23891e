"""Applications with failure handling of their own. Tests on the same application follow each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pytest

from blocklist import BlocklistClient
from demo.cluster import Cluster, wait_until
from tests.acceptance.conftest import EVACUATE, A, Applications, B, C, StartAgent, unblock
from tests.acceptance.jobs import SHARED, Job, used_hosts
from tests.acceptance.test_lifecycle import agent_threads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark does not retry a task where it has failed; it excludes no host for all tasks.
TASK_EXCLUDING: Final = {
    "spark__excludeOnFailure__enabled": "true",
    "spark__excludeOnFailure__application__maxFailedTasksPerExecutor": 1000,
}


@pytest.fixture
def excluding_spark(applications: Applications, cluster: Cluster) -> SparkSession:
    """Spark excludes a host for an hour after one failed task, and has excluded B."""
    spark = applications.get(**SHARED)
    if B not in exclusions(spark):
        Job(spark, cluster, 12, fail_on=[B]).hosts()
        wait_until(lambda: B in exclusions(spark), 90, "Spark to exclude it")
    return spark


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


def test_a_stage_exclusion_is_evidence_while_the_stage_runs(
    excluding_spark: SparkSession, cluster: Cluster, start_agent: StartAgent, reason: Callable[[str], str]
) -> None:
    """Afterwards, Spark excludes A as well: no other test of exclusions may follow on this application."""
    start_agent(excluding_spark, report_evidence=True)
    job = Job(excluding_spark, cluster, 12, fail_on=[A], hold_on=[C])
    wait_until(lambda: "Spark excluded the host for stage" in reason(A), 60, "the stage to avoid it")
    assert reason(B) == "Spark excluded the host for the application."
    job.release()
    job.hosts()


def test_the_agent_stops_with_its_application_and_the_next_has_its_own(
    applications: Applications, cluster: Cluster, service: BlocklistClient, start_agent: StartAgent
) -> None:
    service.block(B, "test")
    agent = start_agent(applications.get(**SHARED))
    applications.stop()
    wait_until(lambda: not agent.status().running, 90, "the agent to end")
    agent.stop()
    spark = applications.get(**TASK_EXCLUDING)
    wait_until(lambda: agent_threads(spark) == [], 90, "threads to end")
    next_one = start_agent(spark)
    wait_until(lambda: next_one.status().blocked == {B: B}, 90, "the block")
    assert used_hosts(spark, cluster) == {A, C}


def test_a_host_is_reopened_for_a_task_that_can_run_nowhere_else(
    applications: Applications, cluster: Cluster, service: BlocklistClient, start_agent: StartAgent
) -> None:
    """Its first attempt fails on the only open host, where Spark does not retry it."""
    spark = applications.get(**TASK_EXCLUDING)
    service.block(B, "test", action=EVACUATE)
    agent = start_agent(spark)
    job = Job(spark, cluster, 4, hold_on=(A, C), fail_on=[C])
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
