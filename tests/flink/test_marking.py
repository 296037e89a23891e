"""Marking on a real cluster: what Flink itself reports is what is acknowledged."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from blocklist import BlockAction, BlocklistClient
from tests.flink.bridge_process import LEASE, BridgeProcess, ServiceView
from tests.flink.cluster import CHECK_SECONDS, NODES, FlinkCluster
from tests.integration.bodies import later
from tests.integration.process import ServiceProcess, wait_until

pytestmark = pytest.mark.timeout(600)

ONE, TWO, THREE = NODES
ENDLESS = 10**12
CHECKPOINTS = "execution.checkpointing.interval=1 s"


def test_a_marked_node_is_acknowledged_when_flink_reports_it_and_gets_no_tasks(
    cluster: FlinkCluster,
    client: BlocklistClient,
    view: ServiceView,
    bridge: BridgeProcess,
    submit: Callable[..., str],
) -> None:
    job = view.of_job(submit("STREAMING", ENDLESS, 500, CHECKPOINTS, parallelism=2))
    client.block(ONE, "bad disk")
    view.wait_applied(ONE, bridge.id, job)
    assert cluster.task_managers() == {"tm-1": True, "tm-2": False, "tm-3": False}
    # Two more jobs take all that is free elsewhere, and nothing on the blocked node.
    other = submit("STREAMING", ENDLESS, 500, CHECKPOINTS, parallelism=2)
    wait_until(lambda: [state for state, _ in cluster.tasks(other)] == ["RUNNING"] * 4, seconds=150)
    assert "tm-1" not in {where for _, where in cluster.tasks(other)}
    # A TaskManager is reported by the job that uses it, the idle ones by the ResourceManager.
    listed = view.http.get("/nodes").json()["nodes"]
    assert {ONE, TWO, THREE} <= {node["id"] for node in listed}
    client.unblock(ONE)
    view.wait_applied(ONE, bridge.id, job)
    assert not any(cluster.task_managers().values())


def test_a_job_whose_tasks_may_start_again_in_slots_on_the_node_says_so_until_it_is_evacuated(
    cluster: FlinkCluster,
    client: BlocklistClient,
    view: ServiceView,
    bridge: BridgeProcess,
    submit: Callable[..., str],
) -> None:
    """Flink starts them there: the tasks of the other pipeline keep the slot."""
    job_id = submit("STREAMING", ENDLESS, 500, CHECKPOINTS, "second.pipeline=true")
    job = view.of_job(job_id)
    wait_until(lambda: {state for state, _ in cluster.tasks(job_id)} == {"RUNNING"}, seconds=150)
    node = NODES[int(cluster.tasks(job_id)[0][1][-1]) - 1]
    client.block(node, "bad disk")
    view.wait_applied(node, bridge.id)
    view.wait_refused(node, job, "Tasks that fail may start again on this node")
    client.block(node, "bad disk", action=BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS, allow_merge=True)
    view.wait_applied(node, bridge.id, job)


def test_while_the_service_is_down_blocks_end_at_their_end_and_others_are_renewed(
    cluster: FlinkCluster, client: BlocklistClient, view: ServiceView, bridge: BridgeProcess, service: ServiceProcess
) -> None:
    end = int(later(4))
    client.block(TWO, "restart", end=end)
    client.block(THREE, "bad disk")
    view.wait_applied(TWO, bridge.id)
    view.wait_applied(THREE, bridge.id)
    service.kill()
    begun = time.monotonic()
    wait_until(lambda: not cluster.task_managers().get("tm-2", True), seconds=150)
    assert time.time_ns() // 1_000_000 >= end
    # Without renewals Flink would forget it after the lease and a check.
    longest = begun + LEASE + CHECK_SECONDS + 4
    wait_until(lambda: not _is_blocked(cluster, "tm-3") or time.monotonic() > longest, seconds=150)
    service.start()
    assert _is_blocked(cluster, "tm-3")
    view.wait(lambda: bridge.id in view.listeners())
    view.wait_applied(THREE, bridge.id)
    assert list(client.snapshot().nodes) == [THREE]
    view.wait_applied(TWO, bridge.id)


def test_a_killed_bridge_takes_its_jvm_with_it_and_a_new_one_continues(
    cluster: FlinkCluster, client: BlocklistClient, view: ServiceView, bridge: BridgeProcess
) -> None:
    client.block(ONE, "bad disk")
    view.wait_applied(ONE, bridge.id)
    child = bridge.child()
    bridge.kill()
    wait_until(lambda: not _exists(child))
    client.block(TWO, "bad disk")
    bridge.start()
    view.wait_applied(TWO, bridge.id)
    assert cluster.task_managers() == {"tm-1": True, "tm-2": True, "tm-3": False}
    bridge.stop()
    assert bridge.id not in view.listeners()
    wait_until(lambda: not any(cluster.task_managers().values()), seconds=150)
    bridge.start()
    view.wait_applied(ONE, bridge.id)


def _is_blocked(cluster: FlinkCluster, task_manager: str) -> bool:
    """A request that fails says nothing."""
    return cluster.task_managers().get(task_manager, True)


def _exists(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False
