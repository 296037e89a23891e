"""Clusters of other kinds, each with a bridge of its own: high availability, version 1.20, and one that cannot obey."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import pytest

from blocklist import BlockAction, BlocklistClient
from tests.flink.bridge_process import BridgeProcess, ServiceView
from tests.flink.cluster import NODES, SPECULATION, FlinkCluster
from tests.flink.conftest import FindLib
from tests.flink.package import FLINK_1, FLINK_2
from tests.integration.process import ServiceProcess, free_port, wait_until

_MAIN: Final = "org.apache.flink.shaded.zookeeper3.org.apache.zookeeper.server.ZooKeeperServerMain"


class ZooKeeper:
    """One server, as a context manager; `address` is host and port."""

    def __init__(self, java: Path, lib: Path, folder: Path) -> None:
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        self._log = folder / "zookeeper.log"
        config = folder / "zoo.cfg"
        lines = (f"clientPort={self._port}", "clientPortAddress=127.0.0.1", f"dataDir={folder}/zookeeper")
        config.write_text("\n".join([*lines, "admin.enableServer=false", ""]))
        memory = ("-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        self._command = [str(java), *memory, "-cp", f"{lib}/*", _MAIN, str(config)]

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        wait_until(self._answers, seconds=120)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(60)

    def settings(self, folder: Path) -> dict[str, str]:
        """What makes a Flink cluster use it; metadata is stored in `folder`."""
        return {
            "high-availability.type": "zookeeper",
            "high-availability.zookeeper.quorum": self.address,
            "high-availability.storageDir": f"file://{folder}",
            "high-availability.cluster-id": "/flink",
            "high-availability.zookeeper.client.session-timeout": "10 s",
        }

    def _answers(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=5):
            return True
        return False


pytestmark = pytest.mark.timeout(900)

ONE, TWO, THREE = NODES
ENDLESS = 10**12
EVACUATE = BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS
CHECKPOINTS = "execution.checkpointing.interval=1 s"


def test_a_new_leader_gets_the_list_and_the_adaptive_scheduler_obeys(
    java: Path,
    find_lib: FindLib,
    job_jar: Path,
    service: ServiceProcess,
    client: BlocklistClient,
    view: ServiceView,
    tmp_path: Path,
) -> None:
    lib = find_lib(FLINK_2)
    with ZooKeeper(java, lib, tmp_path) as zookeeper:
        settings = {**SPECULATION, **zookeeper.settings(tmp_path / "ha"), "jobmanager.scheduler": "adaptive"}
        with (
            FlinkCluster(java, lib, tmp_path / "cluster", settings) as cluster,
            BridgeProcess(tmp_path, service.url, cluster, listener_id="ha") as bridge,
        ):
            cluster.start(2)
            job_id = cluster.submit(job_jar, *_endless(tmp_path, "ha"))
            job = view.of_job(job_id)
            node = _evacuate(cluster, job_id, bridge, client, view)
            left = f"tm-{NODES.index(node) + 1}"
            assert not view.status(node)[job]["taskManagers"]
            cluster.kill("jm")
            # What is not known is not claimed.
            view.wait(lambda node=node: "It is not known what is in force" in view.pending(node, bridge.id))  # type: ignore[misc]
            cluster.start_job_manager()
            cluster.wait_registered(2)
            view.wait_applied(node, bridge.id, job)
            assert cluster.task_managers()[left]
            wait_until(lambda: len(_runs_on(cluster, job_id)) == 1, seconds=150)
            assert _runs_on(cluster, job_id) != {left}
            client.unblock(node)
            view.wait_applied(node, bridge.id, job)
            assert not any(cluster.task_managers().values())


@pytest.mark.long
def test_flink_1_20_obeys(
    java: Path,
    find_lib: FindLib,
    job_jar: Path,
    service: ServiceProcess,
    client: BlocklistClient,
    view: ServiceView,
    tmp_path: Path,
) -> None:
    with (
        # Flink 1.20 uploads a job's files to localhost.
        FlinkCluster(java, find_lib(FLINK_1), tmp_path / "cluster", host="127.0.0.1") as cluster,
        BridgeProcess(tmp_path, service.url, cluster, listener_id="flink-1") as bridge,
    ):
        cluster.start(2)
        job_id = cluster.submit(job_jar, *_endless(tmp_path, "old"))
        node = _evacuate(cluster, job_id, bridge, client, view)
        client.unblock(node)
        view.wait_applied(node, bridge.id, view.of_job(job_id))
        assert not any(cluster.task_managers().values())


def test_without_speculative_execution_no_block_is_applied(
    java: Path,
    find_lib: FindLib,
    service: ServiceProcess,
    client: BlocklistClient,
    view: ServiceView,
    tmp_path: Path,
) -> None:
    with (
        FlinkCluster(java, find_lib(FLINK_2), tmp_path / "cluster", {}) as cluster,
        BridgeProcess(tmp_path, service.url, cluster, listener_id="deaf") as bridge,
    ):
        cluster.start(1)
        client.block(ONE, "bad disk")
        view.wait_refused(ONE, bridge.id, "execution.batch.speculative.enabled: true")
        assert not view.applied(ONE, bridge.id)
        assert not cluster.task_managers()["tm-1"]
        assert "  slow-task-detector.check-interval: 15 s" in bridge.log()


def _endless(folder: Path, name: str) -> Sequence[str | int]:
    """The arguments of a streaming job with checkpoints."""
    return ("STREAMING", ENDLESS, 500, 0, 2, f"file://{folder}/out", name, CHECKPOINTS)


def _evacuate(
    cluster: FlinkCluster, job_id: str, bridge: BridgeProcess, client: BlocklistClient, view: ServiceView
) -> str:
    """Block the only node that the job uses, and wait until it has left; the node."""
    wait_until(lambda: len(_runs_on(cluster, job_id)) == 1, seconds=150)
    (left,) = _runs_on(cluster, job_id)
    node = NODES[int(left[-1]) - 1]
    client.block(node, "bad disk", action=EVACUATE)
    view.wait_applied(node, bridge.id, view.of_job(job_id))
    assert cluster.task_managers()[left]
    wait_until(lambda: _runs_on(cluster, job_id) not in ({left}, set()), seconds=150)
    return node


def _runs_on(cluster: FlinkCluster, job: str) -> set[str]:
    """The TaskManagers with its tasks, once all of them run."""
    tasks = cluster.tasks(job)
    running = bool(tasks) and all(state == "RUNNING" for state, _ in tasks)
    return {where for _, where in tasks} if running else set()
