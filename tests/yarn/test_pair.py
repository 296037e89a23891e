"""What a cluster of its own is for: a failover; nodes that YARN decommissions; and YARN without node labels.

The tests share a pair of ResourceManagers, in this order: a NodeManager that YARN decommissioned does not come back, as
its JVM has others in it and keeps some of its ports.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.manager_process import ManagerProcess
from tests.integration.process import ServiceProcess
from tests.yarn.cluster import YarnCluster
from tests.yarn.exclude_script import write_script
from tests.yarn.scene import EVACUATE, W1, W2, Scene

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def shared_pair(tmp_path_factory: pytest.TempPathFactory, yarn_jars: list[str]) -> Iterator[YarnCluster]:
    with YarnCluster(tmp_path_factory.mktemp("pair"), yarn_jars, nodes=2, standby=True) as cluster:
        yield cluster


@pytest.fixture
def pair(shared_pair: YarnCluster) -> YarnCluster:
    """Nothing runs, and the first ResourceManager is active. It would take over what still runs."""
    shared_pair.reset()
    shared_pair.activate("rm1")
    shared_pair.wait_running()
    return shared_pair


def test_a_failover_is_followed(tmp_path: Path, fresh: ServiceProcess, pair: YarnCluster) -> None:
    scene = Scene(tmp_path, fresh, pair)
    scene.fill()
    with scene.manager() as manager:
        scene.block(W1)
        scene.wait_applied(W1)
        pair.rmadmin("-transitionToStandby", "--forcemanual", "rm1", asks=True)
        scene.wait_pending(W1, "is not active (STANDBY)")
        pair.activate("rm2")
        pair.wait_running()
        scene.wait_applied(W1)
        assert (pair.rest("rm2").node(W1).get("nodeLabels") or [""])[0] == "blocklist"
        scene.block(W2, EVACUATE)
        scene.wait_applied(W2)
        assert pair.rest("rm2").containers()[W2] == 0
        scene.unblock(W1, W2)
        scene.wait(lambda: not pair.rest("rm2").node(W1).get("nodeLabels"))
        scene.stop(manager)


def test_the_script_of_the_documentation_keeps_the_exclude_file(
    tmp_path: Path, fresh: ServiceProcess, pair: YarnCluster
) -> None:
    scene, file = Scene(tmp_path, fresh, pair), pair.exclude_file
    pair.rest().submit(megabytes=600)
    scene.wait(lambda: sum(pair.rest().containers().values()) == 1)
    (busy,) = [host for host, number in pair.rest().containers().items() if number]
    short = busy.partition(".")[0].upper()
    command = ("--state", str(tmp_path / "done.json"), "--", str(write_script(tmp_path)), pair.url, str(file))
    path = f"{pair.write_yarn_command().parent}:{os.environ['PATH']}"
    with ManagerProcess(tmp_path, fresh.url, "exec", *command, PATH=path):
        scene.block(short)
        scene.block("nosuch")
        scene.wait_applied(short)
        scene.wait_not_here("nosuch")
        assert pair.states() == {**dict.fromkeys(pair.nodes, "RUNNING"), busy: "DECOMMISSIONING"}
        assert pair.rest().node(busy)["numContainers"] == 1
        scene.unblock(short, "nosuch")
        scene.wait(lambda: set(pair.states().values()) == {"RUNNING"})
        assert busy not in file.read_text()

        # The NodeManager exits.
        scene.block(busy, EVACUATE)
        scene.wait_applied(busy)
        scene.wait(lambda: pair.states()[busy] == "DECOMMISSIONED")
        scene.unblock(busy)
        scene.wait(lambda: busy not in file.read_text())


def test_without_node_labels_the_error_says_what_to_do(
    tmp_path: Path, fresh: ServiceProcess, shared_pair: YarnCluster
) -> None:
    """The other ResourceManager starts with that configuration."""
    shared_pair.kill_resource_manager("rm2")
    shared_pair.disable_labels()
    shared_pair.start_resource_manager("rm2")
    shared_pair.activate("rm2")
    scene = Scene(tmp_path, fresh, shared_pair)
    scene.block(W1)
    with scene.manager() as manager:
        scene.wait(lambda: "Set yarn.node-labels.enabled in yarn-site.xml." in manager.log())
    assert not scene.listener(W1)["applied"]
