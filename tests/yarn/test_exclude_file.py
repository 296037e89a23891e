"""The manager by the exclude file, on a real YARN: what comes back, and what would not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.manager_process import ManagerProcess
from tests.integration.process import ServiceProcess
from tests.yarn.cluster import YarnCluster
from tests.yarn.scene import EVACUATE, Scene

pytestmark = [pytest.mark.xdist_group("yarn"), pytest.mark.timeout(900)]
FOREIGN = "  <!-- by hand -->\n  <host><name>gone.yarn.test</name></host>\n"


def excluding(scene: Scene, *options: str) -> ManagerProcess:
    command = f"{scene.yarn.write_yarn_command()} rmadmin -refreshNodes"
    file = ("--by", "exclude-file", "--exclude-file", str(scene.yarn.exclude_file), "--command", command)
    return scene.manager(*file, *options)


@pytest.fixture
def yarn(tmp_path_factory: pytest.TempPathFactory, yarn_jars: list[str]) -> Iterator[YarnCluster]:
    """One of its own: a NodeManager that YARN decommissioned keeps some of its ports, as its JVM has others in it."""
    with YarnCluster(tmp_path_factory.mktemp("excluding"), yarn_jars, nodes=2) as cluster:
        yield cluster


def test_a_busy_node_is_excluded_and_comes_back_and_what_would_not_is_refused(
    tmp_path: Path, fresh: ServiceProcess, yarn: YarnCluster
) -> None:
    scene = Scene(tmp_path, fresh, yarn)
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
