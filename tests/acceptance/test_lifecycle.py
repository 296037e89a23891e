"""How an agent starts and stops."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from blocklist import BlocklistClient
from blocklist.spark import BlocklistAgent
from demo.cluster import Cluster, wait_until
from tests.acceptance.conftest import EVACUATE, A, B, C, StartAgent
from tests.acceptance.jobs import await_use, used_hosts
from tests.integration.process import ServiceProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_as_a_context_manager_it_stops_at_the_end(
    spark: SparkSession, cluster: Cluster, service: BlocklistClient, service_process: ServiceProcess
) -> None:
    service.block(B, "test")
    with BlocklistAgent.start(spark, url=service_process.url) as agent:
        assert used_hosts(spark, cluster) == {A, C}
    assert (agent.status().running, agent.status().blocked) == (False, {})
    await_use(spark, cluster, B)
    agent.stop()


def test_stop_restores_spark(spark: SparkSession, service: BlocklistClient, start_agent: StartAgent) -> None:
    scheduler = spark.sparkContext._jsc.sc().taskScheduler()
    conf = sorted(spark.sparkContext.getConf().getAll())
    service.block(B, "test")
    agent = start_agent(spark)
    assert scheduler.healthTrackerOpt().isDefined()
    agent.stop()
    assert not scheduler.healthTrackerOpt().isDefined()
    assert sorted(spark.sparkContext.getConf().getAll()) == conf


def test_starts_share_one_agent_which_ends_with_the_last(
    spark: SparkSession, cluster: Cluster, service: BlocklistClient, start_agent: StartAgent
) -> None:
    service.block(A, "test")
    service.block(B, "test", action=EVACUATE)
    first = start_agent(spark)
    status = first.status()
    assert (status.running, status.connected, status.blocked) == (True, True, {A: A, B: B}), "when start returns"
    tracker = spark.sparkContext._jsc.sc().taskScheduler().healthTrackerOpt().get()
    # Of two values the stricter one counts.
    second = start_agent(spark, keep_hosts=2)
    assert spark.sparkContext._jsc.sc().taskScheduler().healthTrackerOpt().get() == tracker
    assert set(first.status().refused) == set(second.status().refused) == {A}
    # Opened once the refusal is reported.
    wait_until(lambda: first.status().blocked == second.status().blocked == {B: B}, 90, "A to be opened")
    first.stop()
    first.stop()
    assert not first.status().running
    assert second.status().blocked == {B: B}
    second.stop()
    await_use(spark, cluster, B)
    assert agent_threads(spark) == []


def test_starts_at_the_same_time_share_one_agent(
    spark: SparkSession, service: BlocklistClient, start_agent: StartAgent
) -> None:
    service.block(B, "test")
    with ThreadPoolExecutor(8) as threads:
        agents = list(threads.map(lambda _: start_agent(spark), range(16)))
    assert [agent.status().blocked for agent in agents] == [{B: B}] * 16
    assert agent_threads(spark).count("blocklist-check") == 1
    for agent in agents:
        assert agent.status().running
        agent.stop()
    assert not spark.sparkContext._jsc.sc().taskScheduler().healthTrackerOpt().isDefined()


def agent_threads(spark: SparkSession) -> list[str]:
    """The names of the agent's threads in the driver."""
    threads = spark.sparkContext._jvm.java.lang.Thread.getAllStackTraces().keySet()  # type: ignore[union-attr]
    return sorted(thread.getName() for thread in threads if thread.getName().startswith("blocklist-"))
