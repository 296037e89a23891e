"""One service for a Kubernetes, a YARN and a Spark application on it, all of them real."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from app.page.map import MapState
from tests.applications.application import Installation
from tests.applications.conftest import spark
from tests.integration.command import Command
from tests.integration.conftest import Start, binaries
from tests.integration.notice_receivers import receiving_notices
from tests.integration.process import ServiceProcess, wait_until
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.kubelets import Kubelets
from tests.kubernetes.manager import is_blocked, manager_process
from tests.yarn.cluster import YarnCluster
from tests.yarn.conftest import shared_yarn, yarn, yarn_jars
from tests.yarn.scene import W1, W2, Scene
from tests.yarn.spark_on_yarn import CLIENT, SparkOnYarn, YarnApplication

__all__ = ["binaries", "shared_yarn", "spark", "yarn", "yarn_jars"]

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]

POD_NODE, JOINS, NOWHERE = "clusters-71", "clusters-72", "clusters-73"
WAIT: Final = "60s"


def at_listeners(service: ServiceProcess, node: str) -> tuple[int, int, Mapping[str, str]]:
    """Of the node's last change: by how many it is applied, of how many, and its state at each listener."""

    def state(listener: Mapping[str, Any]) -> str:
        return "not here" if listener["notHere"] else "applied" if listener["applied"] else "open"

    with service.client() as http:
        body = http.get(f"/blocklist/nodes/{node}/status").json()
    return body["applied"], body["of"], {listener["id"]: state(listener) for listener in body["listeners"]}


def test_each_block_counts_where_its_node_is(
    tmp_path: Path,
    start: Start,
    binaries: Path,
    cluster: Cluster,
    kubelets: Kubelets,
    yarn: YarnCluster,
    spark: Installation,
) -> None:
    stack = ExitStack()
    notices = stack.enter_context(receiving_notices())
    fresh = start(notify_url=notices.url)
    command = Command(binaries, fresh.url)
    on_yarn = SparkOnYarn(yarn)
    installed = Installation(home=spark.home, applications=spark.applications, variables=on_yarn.variables)

    def wait(condition: Callable[[], bool]) -> None:
        wait_until(condition, seconds=180)

    def block(node: str, *options: str) -> str:
        return command.stdout_of("block", node, "-r", "Disk errors", "-d", "1h", "--wait", WAIT, *options)

    def on_map(**expected: int) -> bool:
        with fresh.client() as http:
            counts = http.get("/page/map/states").raise_for_status().json()["counts"]
        shown = {MapState(value).name.lower(): count for value, count in counts.items() if count}
        return {state: count for state, count in shown.items() if state not in {"free", "not_ready"}} == expected

    def is_notified(*texts: str) -> bool:
        return any(all(text in f"{title} {message}" for text in texts) for title, message in notices.notices)

    with stack:
        stack.enter_context(kubelets.nodes(POD_NODE))
        stack.enter_context(manager_process(tmp_path, cluster, fresh, "--cluster", "k8s-a"))
        scene = Scene(tmp_path, fresh, yarn)
        stack.enter_context(scene.manager("--id", "yarn", "--cluster", "yarn-a"))
        job = stack.enter_context(YarnApplication(CLIENT, installed, on_yarn, tmp_path / "job", fresh.url, {}))
        assert W1 in job.round().hosts
        with fresh.client() as http:

            def listeners() -> dict[str, str | None]:
                return {it["id"]: it["cluster"] for it in http.get("/listeners").json()["listeners"]}

            managers = {"kubernetes": "k8s-a", "yarn": "yarn-a"}
            wait(lambda: len(listeners()) == 3)
            (application,) = listeners().keys() - managers.keys()
            wait(lambda: listeners()[application] is not None)
            assert listeners() == {**managers, application: "yarn-a"}, "of the nodes where it runs"
        selected = command.stdout_of("nodes", "-l", "cluster=k8s-a", "-o", "name").split()
        assert POD_NODE in selected
        assert W1 not in selected

        # A node of each.
        assert "Applied by 2 listeners." in block(POD_NODE)
        assert at_listeners(fresh, POD_NODE) == (
            2, 2, {"kubernetes": "applied", "yarn": "not here", application: "applied"}
        )  # fmt: skip
        assert is_blocked(kubelets.node(POD_NODE))
        assert "Applied by 2 listeners." in block(W1)
        assert at_listeners(fresh, W1) == (2, 2, {"kubernetes": "not here", "yarn": "applied", application: "applied"})
        assert scene.labels() == {W1: "blocklist"}
        drained = command.run("drain", W2, "-r", "Disk errors", "-d", "1h", "--timeout", "180s")
        assert drained.returncode == 0, drained.stdout + drained.stderr
        assert f"{W2}  drained" in drained.stdout
        assert "refuses" not in drained.stdout
        wait(lambda: at_listeners(fresh, W2)[2]["kubernetes"] == "not here")
        assert scene.rest.containers()[W2] == 0
        wait(lambda: on_map(marked=2, evacuated=1))
        wait(lambda: is_notified(POD_NODE, "blocked", "k8s-a") and is_notified(W1, "blocked", "yarn-a"))
        wait(lambda: is_notified(W2, "evacuated"))

        # Of neither: the job alone counts, and it is a name that nobody knows.
        refused = command.run("block", NOWHERE, "-r", "Disk errors", "-d", "1h", "--strict")
        assert refused.returncode != 0
        assert NOWHERE in refused.stderr
        block(NOWHERE)
        here = {"kubernetes": "not here", "yarn": "not here", application: "applied"}
        assert at_listeners(fresh, NOWHERE) == (1, 1, here)
        assert "No cluster has this node." in command.run("status", NOWHERE).stderr
        wait(lambda: on_map(marked=2, evacuated=1, unknown=1))

        # One that joins meanwhile.
        block(JOINS)
        assert at_listeners(fresh, JOINS) == (1, 1, here)
        with kubelets.nodes(JOINS):
            wait(lambda: is_blocked(kubelets.node(JOINS)))
            wait(lambda: at_listeners(fresh, JOINS) == (2, 2, {**here, "kubernetes": "applied"}))
            assert "No cluster has this node." not in command.run("status", JOINS).stderr
            wait(lambda: on_map(marked=3, evacuated=1, unknown=1))
        wait(lambda: at_listeners(fresh, JOINS) == (1, 1, here))
        wait(lambda: on_map(marked=2, evacuated=1, unknown=2))
        wait(lambda: is_notified(NOWHERE, "blocked") and is_notified(JOINS, "blocked"))
        assert not is_notified("refuse"), notices.titles

        with fresh.client() as http:
            assert "not here" in http.get(f"/page/nodes/{POD_NODE}").text
        job.end()
