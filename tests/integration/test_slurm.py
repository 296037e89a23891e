"""The slurm manager against a real slurmctld with real nodes, which run real jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from blocklist import BlockAction, BlocklistClient
from blocklist.model.errors import LimitError
from tests.integration.conftest import Start
from tests.integration.manager_process import (
    ManagerProcess,
    acked_revision,
    pending_reason,
    refused_reason,
)
from tests.integration.process import ServiceProcess, wait_until
from tests.integration.slurm import NODES, SlurmCluster, slurm

pytestmark = pytest.mark.xdist_group("slurm")

EVACUATE = BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def fresh(start: Start) -> ServiceProcess:
    return start(constants={"app.listeners.drift.OBSERVE_SECONDS": 0.5})


@pytest.fixture
def manager(tmp_path: Path, fresh: ServiceProcess, cluster: SlurmCluster) -> Iterator[ManagerProcess]:
    process = ManagerProcess(tmp_path, fresh.url, "slurm", "--command", cluster.scontrol, **cluster.settings)
    with process:
        wait_until(lambda: acked_revision(fresh, "slurm") == 0)
        yield process
        with BlocklistClient(fresh.url) as client:
            for node in client.snapshot().nodes:
                client.unblock(node)
        wait_until(lambda: all(cluster.state(node) == "IDLE" for node in NODES))


@pytest.fixture
def client(fresh: ServiceProcess) -> Iterator[BlocklistClient]:
    with BlocklistClient(fresh.url) as client:
        yield client


def test_a_blocked_node_gets_no_job_until_it_is_unblocked(
    manager: ManagerProcess, fresh: ServiceProcess, client: BlocklistClient, cluster: SlurmCluster, tmp_path: Path
) -> None:
    client.block("N1", 'Hot "machine" [rack 7]')
    wait_until(lambda: acked_revision(fresh, "slurm") == 1)
    assert "DRAIN" in cluster.state("n1")
    assert cluster.reason("n1").startswith("blocklist: without end, Hot 'machine' (rack 7) [root@")
    assert cluster.state("n2") == "IDLE"
    job = cluster.start_job("n1", "touch", str(tmp_path / "ran"))
    wait_until(lambda: cluster.pending_jobs() == 1)
    assert job.poll() is None
    assert not (tmp_path / "ran").exists()
    client.unblock("N1")
    assert job.wait(60) == 0
    assert (tmp_path / "ran").exists()
    assert cluster.reason("n1") == ""
    assert "Node n1 is blocked without end" in manager.log()
    assert "Node n1 is no longer blocked." in manager.log()


def test_running_jobs_finish_and_the_status_reports_it(
    manager: ManagerProcess, fresh: ServiceProcess, client: BlocklistClient, cluster: SlurmCluster, tmp_path: Path
) -> None:
    going_on = tmp_path / "going-on"
    going_on.touch()
    job = cluster.start_job("n2", "sh", "-c", f"touch {tmp_path}/began; while test -e {going_on}; do sleep 0.1; done")
    wait_until((tmp_path / "began").exists)
    client.block("n2", "Disk errors", action=EVACUATE)
    wait_until(lambda: "DRAIN" in cluster.state("n2"))
    assert cluster.reason("n2").startswith("blocklist: evacuate, without end, Disk errors")
    sentence = "Node n2 gets no new jobs; Slurm lets running jobs finish ("
    wait_until(lambda: pending_reason(fresh, "n2").startswith(sentence))
    assert job.poll() is None
    going_on.unlink()
    assert job.wait(60) == 0
    wait_until(lambda: not pending_reason(fresh, "n2"))
    assert refused_reason(fresh, "n2") is None
    assert "DRAIN" in cluster.state("n2")


def test_a_node_drained_by_an_administrator_is_left_unchanged(
    manager: ManagerProcess, fresh: ServiceProcess, client: BlocklistClient, cluster: SlurmCluster
) -> None:
    cluster.update("n3", "state=drain", "reason=new disk")
    client.block("n3", "Hot machine")
    wait_until(lambda: "not by this manager (new disk)" in (refused_reason(fresh, "n3") or ""))
    client.unblock("n3")
    wait_until(lambda: acked_revision(fresh, "slurm") == 2)
    wait_until(lambda: [each.node for each in client.drift().drift] == ["n3"])
    assert client.drift().drift[0].reason == "DRAIN+IDLE, not by this manager (new disk)"
    assert cluster.reason("n3").startswith("new disk")
    assert "DRAIN" in cluster.state("n3")
    cluster.update("n3", "state=resume")


def test_a_killed_manager_recognises_its_nodes_by_their_reason(
    manager: ManagerProcess, fresh: ServiceProcess, client: BlocklistClient, cluster: SlurmCluster
) -> None:
    client.block("n1", "Hot machine")
    wait_until(lambda: "DRAIN" in cluster.state("n1"))
    manager.kill()
    cluster.update("n2", "state=drain", "reason=new disk")
    client.unblock("n1")
    manager.start()
    wait_until(lambda: cluster.state("n1") == "IDLE")
    assert "DRAIN" in cluster.state("n2")
    cluster.update("n2", "state=resume")


def test_a_node_that_went_down_while_it_was_blocked_stays_down(
    manager: ManagerProcess, fresh: ServiceProcess, client: BlocklistClient, cluster: SlurmCluster
) -> None:
    client.block("n3", "Hot machine")
    wait_until(lambda: "DRAIN" in cluster.state("n3"))
    cluster.update("n3", "state=down", f"reason={cluster.reason('n3').partition(' [')[0]}")
    client.unblock("n3")
    wait_until(lambda: acked_revision(fresh, "slurm") == 2)
    assert "DOWN" in cluster.state("n3")
    assert "DRAIN" not in cluster.state("n3")
    assert cluster.reason("n3").startswith("down since before its block in the blocklist ended")
    cluster.update("n3", "state=resume")


def test_a_changed_block_changes_the_reason_and_its_end_undrains_the_node(
    manager: ManagerProcess, fresh: ServiceProcess, client: BlocklistClient, cluster: SlurmCluster
) -> None:
    client.block("n1", "Hot machine", end=time.time_ns() // 1_000_000 + 4_000)
    wait_until(lambda: "blocklist: until" in cluster.reason("n1"))
    client.block("n1", "Disk errors", action=EVACUATE, end=time.time_ns() // 1_000_000 + 5_000, allow_merge=True)
    wait_until(lambda: "Disk errors" in cluster.reason("n1"))
    assert "DRAIN" in cluster.state("n1")
    wait_until(lambda: cluster.state("n1") == "IDLE")


def test_an_unreachable_slurmctld_is_retried(
    manager: ManagerProcess, fresh: ServiceProcess, client: BlocklistClient, cluster: SlurmCluster
) -> None:
    wait_until(lambda: "Reconciled with the list." in manager.log())
    cluster.stop_controller()
    client.block("n1", "Hot machine")
    wait_until(lambda: "Retrying in" in manager.log())
    assert acked_revision(fresh, "slurm") == 0
    cluster.start_controller()
    wait_until(lambda: acked_revision(fresh, "slurm") == 1, seconds=90)
    assert "DRAIN" in cluster.state("n1")
    assert "Reconciled with the list again." in manager.log()


def test_all_nodes_are_reported_and_the_minimum_is_kept(
    tmp_path: Path, fresh: ServiceProcess, client: BlocklistClient, cluster: SlurmCluster
) -> None:
    least = str(len(NODES) - 1)
    options = ("--command", cluster.scontrol, "--min-nodes", least)
    with ManagerProcess(tmp_path, fresh.url, "slurm", *options, **cluster.settings), fresh.client() as http:
        wait_until(lambda: acked_revision(fresh, "slurm") == 0)
        wait_until(lambda: http.get("/listeners/slurm").json()["usableNodes"] == len(NODES))
        assert http.get("/listeners/slurm").json()["minNodes"] == int(least)
        selected = http.get("/nodes", params={"selector": "partition=all,partition.slurm/all"}).json()["nodes"]
        # All have the same address and host: these tell no node apart, and are not reported.
        assert [(node["id"], node["addresses"], node["names"]) for node in selected] == [
            (node, [], []) for node in NODES
        ]
        client.block(NODES[0], "disk")
        with pytest.raises(LimitError, match="no more is possible among its nodes"):
            client.block(NODES[1], "disk")
        client.unblock(NODES[0])
        wait_until(lambda: all(cluster.state(node) == "IDLE" for node in NODES))
