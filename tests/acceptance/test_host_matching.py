"""How a node id on the list matches the host of an executor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from blocklist import BlocklistClient
from blocklist.spark import BlocklistAgent
from demo.cluster import Cluster
from tests.acceptance.conftest import B, BlockNode, C, StartAgent, unblock
from tests.acceptance.jobs import used_hosts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


@pytest.mark.parametrize(
    ("node_id", "host"),
    [
        (C, C),
        ("worker-c", C),
        ("WORKER-C", C),
        ("Worker-C.Example.TEST", C),
        (B, B),
        # This name of 127.0.0.3 needs no name server, but must be resolved.
        ("0x7f000003", B),
    ],
    ids=["full name", "short name", "short, upper case", "full, mixed case", "address", "a name with that address"],
)
def test_an_id_matches_its_host(
    node_id: str,
    host: str,
    spark: SparkSession,
    cluster: Cluster,
    block: BlockNode,
    service: BlocklistClient,
    agent: BlocklistAgent,
) -> None:
    block(node_id)
    assert agent.status().blocked == {host: node_id}
    assert host not in used_hosts(spark, cluster)
    unblock(service, agent, node_id)
    assert agent.status().blocked == {}


def test_an_id_that_matches_no_host_has_no_effect(
    spark: SparkSession, cluster: Cluster, service: BlocklistClient, start_agent: StartAgent
) -> None:
    service.block("no-such-host.invalid", "test")
    agent = start_agent(spark)
    assert agent.status().revision == service.snapshot().revision
    assert (agent.status().blocked, agent.status().refused, agent.status().last_error) == ({}, {}, None)
    assert len(used_hosts(spark, cluster)) == 3
