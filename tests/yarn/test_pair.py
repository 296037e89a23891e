"""What a cluster of its own is for: a failover; nodes that YARN decommissions; and YARN without node labels.

The tests share a pair of ResourceManagers, in this order: a NodeManager that YARN decommissioned does not come back, as
its JVM has others in it and keeps some of its ports.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.manager_process import ManagerProcess
from tests.integration.process import ServiceProcess
from tests.yarn.cluster import YarnCluster
from tests.yarn.scene import EVACUATE, W1, W2, Scene

pytestmark = [pytest.mark.xdist_group("yarn"), pytest.mark.timeout(900)]
FOREIGN = "  <!-- by hand -->\n  <host><name>gone.yarn.test</name></host>\n"


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
        scene.wait_refused(W1, "is not active (STANDBY)")
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


def excluding(scene: Scene, *options: str) -> ManagerProcess:
    command = f"{scene.yarn.write_yarn_command()} rmadmin -refreshNodes"
    file = ("--by", "exclude-file", "--exclude-file", str(scene.yarn.exclude_file), "--command", command)
    return scene.manager(*file, *options)


def test_a_busy_node_is_excluded_and_comes_back_and_what_would_not_is_refused(
    tmp_path: Path, fresh: ServiceProcess, pair: YarnCluster
) -> None:
    scene, yarn = Scene(tmp_path, fresh, pair), pair
    file = yarn.exclude_file
    file.write_text(file.read_text().replace("<hosts>\n", f"<hosts>\n{FOREIGN}"))
    yarn.rest().submit(megabytes=600)
    scene.wait(lambda: sum(yarn.rest().containers().values()) == 1)
    (busy,) = [host for host, number in yarn.rest().containers().items() if number]
    idle = next(host for host in yarn.nodes if host != busy)
    with excluding(scene) as manager:
        scene.block(busy.partition(".")[0].upper(), EVACUATE)
        scene.block(idle)
        scene.block("nosuch")
        scene.wait_refused(idle, "is idle: to exclude it would end its NodeManager")
        scene.wait_refused(busy, "gets no new containers, but is not evacuated")
        scene.wait_refused("nosuch", "YARN has no node nosuch.")
        assert yarn.states() == {**dict.fromkeys(yarn.nodes, "RUNNING"), busy: "DECOMMISSIONING"}
        assert yarn.rest().node(busy)["numContainers"] == 1
        assert FOREIGN in file.read_text()
        scene.unblock(busy.partition(".")[0].upper())
        scene.wait(lambda: set(yarn.states().values()) == {"RUNNING"})
        assert busy not in file.read_text()
        assert FOREIGN in file.read_text()

        # Accepted explicitly: the NodeManager of the evacuated node exits.
        scene.stop(manager)
    with excluding(scene, "--accept-exits"):
        scene.block(busy, EVACUATE)
        scene.wait_applied(busy)
        assert yarn.states()[busy] == "DECOMMISSIONED"
        scene.unblock(busy, idle, "nosuch")
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
        scene.wait(lambda: "Set yarn.node-labels.enabled in yarn-site.xml, or use --by exclude-file." in manager.log())
    assert not scene.listener(W1)["applied"]
