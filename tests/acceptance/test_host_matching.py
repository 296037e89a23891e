"""How a node id on the list matches the host of an executor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blocklist import BlocklistClient, NotFoundError
from blocklist.spark import BlocklistAgent
from demo.cluster import Cluster, wait_until
from tests.acceptance.conftest import BlockNode, C, StartAgent, unblock
from tests.acceptance.jobs import used_hosts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_short_name_matches_its_host(
    spark: SparkSession, cluster: Cluster, block: BlockNode, service: BlocklistClient, agent: BlocklistAgent
) -> None:
    block("WORKER-C")
    assert agent.status().blocked == {C: "WORKER-C"}
    assert C not in used_hosts(spark, cluster)
    unblock(service, agent, "WORKER-C")
    assert agent.status().blocked == {}


def test_an_id_that_matches_no_host_has_no_effect(
    spark: SparkSession, cluster: Cluster, service: BlocklistClient, start_agent: StartAgent
) -> None:
    service.block("no-such-host.invalid", "test")
    agent = start_agent(spark)
    assert agent.status().revision == service.snapshot().revision
    assert (agent.status().blocked, agent.status().refused, agent.status().last_error) == ({}, {}, None)
    assert len(used_hosts(spark, cluster)) == 3


def test_an_agent_that_reports_nodes_describes_the_hosts_of_its_executors(
    spark: SparkSession, service: BlocklistClient, start_agent: StartAgent
) -> None:
    """Addresses of loopback, which the workers have here, tell no machines apart and are not reported."""
    agent = start_agent(spark, report_nodes=True)
    service.block("worker-c", "test")
    wait_until(lambda: agent.status().blocked == {C: "worker-c"}, 90, "the block")
    wait_until(lambda: names_of(service, "worker-c") == (C,), 90, "the name of its host")
    [reporter] = service.known_node("worker-c").reported_by
    assert (reporter.kind, service.known_node(C).id) == ("JOB_MASTER", "worker-c")


def names_of(service: BlocklistClient, node_id: str) -> tuple[str, ...]:
    """The further names of a node in the inventory; none if nobody has reported it yet."""
    try:
        return tuple(service.known_node(node_id).names)
    except NotFoundError:
        return ()
