"""An alert of a real Prometheus and Alertmanager blocks a node for a running job until it resolves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from blocklist import BlocklistClient
from blocklist.spark import BlocklistAgent
from demo.cluster import Cluster, wait_until
from tests.acceptance.conftest import EVACUATE, A, B, C, is_blocked
from tests.acceptance.jobs import Job, await_use, used_hosts
from tests.alertmanager.monitoring import monitoring
from tests.integration.bodies import all_changes
from tests.integration.process import ServiceProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(400), pytest.mark.long]


def test_a_running_job_leaves_a_node_while_an_alert_about_it_fires(
    spark: SparkSession,
    cluster: Cluster,
    agent: BlocklistAgent,
    service: BlocklistClient,
    service_process: ServiceProcess,
    tmp_path: Path,
) -> None:
    with monitoring(tmp_path, service.url, A, B) as monitored:
        job = Job(spark, cluster, 12, hold_on=[B])
        job.await_running(B)
        monitored.bad.add(B)
        wait_until(lambda: is_blocked(agent, B), 90, "the block")
        node = service.get(B)
        assert (node.action, node.permanent) == (EVACUATE, False)
        assert node.cause == "alert DiskBad: /data1 is bad; replace it"
        assert B not in job.hosts()
        assert used_hosts(spark, cluster) == {A, C}
        posts = webhook_posts(service_process)
        wait_until(lambda: webhook_posts(service_process) >= posts + 2, 60, "the group to be sent again")
        assert service.snapshot().nodes == {B: node}
        monitored.bad.clear()
        wait_until(lambda: service.snapshot().nodes == {}, 90, "the node to be free")
        await_use(spark, cluster, B)
    with service_process.client() as http:
        recorded = [(change["type"], change["createdBy"]) for change in all_changes(http, node=B)[-2:]]
    assert recorded == [("blocked", "alertmanager"), ("unblocked", "alertmanager")]


def webhook_posts(service: ServiceProcess) -> float:
    with service.client() as http:
        lines = http.get("/metrics").text.splitlines()
    (line,) = (line for line in lines if line.startswith("blocklist_alertmanager_posts_total "))
    return float(line.split()[-1])
