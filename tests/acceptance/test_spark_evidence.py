"""Running applications report evidence about hosts; the evidence of two blocks the host."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from blocklist import BlocklistClient
from demo.cluster import Cluster, wait_until
from tests.acceptance.application_process import Application
from tests.acceptance.conftest import A, Applications, B, Body, C, StartAgent
from tests.acceptance.jobs import SHARED, Job, used_hosts
from tests.integration.process import ServiceProcess, migrated_service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def service_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service of its own: after a restart, one ignores evidence for a while about what was unblocked before."""
    with migrated_service(tmp_path_factory.mktemp("service")) as process:
        yield process


@pytest.fixture
def second_application(cluster: Cluster, service_process: ServiceProcess) -> Iterator[Application]:
    conf = {**cluster.conf(), **{key.replace("__", "."): str(value) for key, value in SHARED.items()}}
    with Application(conf, service_process.url) as application:
        yield application


def test_two_applications_whose_tasks_fail_on_a_host_block_it_for_all(
    applications: Applications,
    cluster: Cluster,
    start_agent: StartAgent,
    service: BlocklistClient,
    evidence: Callable[[], list[Body]],
    reason: Callable[[str], str],
    second_application: Application,
) -> None:
    spark = applications.get(**SHARED)
    first = spark.sparkContext.applicationId
    agent = start_agent(spark, report_evidence=True)
    await_exclusion(spark, cluster, B)
    wait_until(lambda: [own["application"] for own in evidence()] == [first], 90, "evidence")
    (own,) = evidence()
    assert (own["node"], own["kind"], own["believed"]) == (B, "excluded", True)
    # First for the stage, then for all stages.
    wait_until(lambda: reason(B) == "Spark excluded the host for the application.", 90, "the exclusion for all stages")
    assert service.snapshot().nodes == {}
    second_application.fail_on(cluster.hosts[B])
    wait_until(lambda: B in agent.status().blocked, 90, f"the block in {evidence()}")
    says = "; ".join(
        rf"{own} \(Spark excluded the host for [a-z0-9. ]+\)" for own in sorted([first, second_application.id])
    )
    assert re.fullmatch(f"2 applications say so: {says}", service.get(B).cause)
    assert not service.get(B).permanent
    # A block by the agent, which Spark shows as an exclusion, is not evidence.
    service.block(C, "test")
    wait_until(lambda: C in agent.status().blocked, 90, "the other block")
    await_next_report(evidence, first)
    assert {own["node"] for own in evidence()} == {B}


def test_without_report_evidence_an_agent_reports_none(
    applications: Applications,
    cluster: Cluster,
    start_agent: StartAgent,
    service: BlocklistClient,
    evidence: Callable[[], list[Body]],
) -> None:
    spark = applications.get(**SHARED)
    agent = start_agent(spark)
    await_exclusion(spark, cluster, B)
    service.block(A, "test")
    wait_until(lambda: A in agent.status().blocked and agent.status().registered, 90, "the block")
    assert evidence() == []


def await_exclusion(spark: SparkSession, cluster: Cluster, host: str) -> None:
    """Make tasks fail on the host until Spark excludes it."""

    def excluded() -> bool:
        Job(spark, cluster, 12, fail_on=[host]).hosts()
        scheduler = spark.sparkContext._jsc.sc().taskScheduler()
        return host in str(scheduler.healthTrackerOpt().get().nodeIdToExcludedExpiryTime())

    wait_until(excluded, 60, f"Spark to exclude {host}")
    assert host not in used_hosts(spark, cluster)


def await_next_report(evidence: Callable[[], list[Body]], application: str) -> None:
    """Wait for the next report of this application."""

    def last() -> int:
        return max(int(own["lastSeen"]) for own in evidence() if own["application"] == application)

    before = max(last(), time.time_ns() // 1_000_000)
    wait_until(lambda: last() > before, 90, "the next heartbeat")
