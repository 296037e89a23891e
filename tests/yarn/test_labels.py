"""The manager by node labels, on a real YARN: marks, evacuations, ends, restarts of everything, and what others set."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from blocklist import BlocklistClient
from tests.integration.process import ServiceProcess
from tests.yarn.cluster import MEGABYTES, VCORES, YarnCluster
from tests.yarn.scene import EVACUATE, MARK, W1, W2, W3, Scene

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def scene(tmp_path: Path, fresh: ServiceProcess, yarn: YarnCluster) -> Scene:
    return Scene(tmp_path, fresh, yarn)


def test_a_mark_keeps_new_containers_away_an_evacuation_ends_them_and_an_end_frees_the_node(scene: Scene) -> None:
    rest = scene.rest
    with scene.manager() as manager:
        number = scene.fill() + 1
        before = rest.containers()
        scene.block("W1", MARK)  # Short, in upper case.
        scene.wait_applied("W1")
        assert scene.labels() == {W1: "blocklist"}
        tasks = [{"id": f"{W1}:8041", "runningTasks": before[W1]}]
        scene.wait(lambda: scene.listener("W1")["taskManagers"] == tasks)
        rest.submit(megabytes=128)
        scene.wait(lambda: sum(rest.containers().values()) == number)
        assert rest.containers()[W1] == before[W1], "what runs stays, nothing new comes"

        scene.block(W2, EVACUATE)
        scene.wait_applied(W2)
        assert rest.containers()[W2] == 0
        scene.check_intact()
        scene.wait(lambda: rest.containers()[W3] == number - before[W1])
        assert rest.containers()[W2] == 0, "what was stopped restarts elsewhere"
        scene.wait(lambda: f"{before[W1]} remain and may finish" in manager.log())

        scene.block(W3, EVACUATE)  # All nodes blocked: applications wait, and none ends.
        scene.wait_applied(W3)
        assert rest.containers() == {W1: before[W1], W2: 0, W3: 0}
        scene.unblock("W1", W2)
        scene.wait(lambda: scene.labels() == {W3: "blocklist"})
        scene.wait(lambda: sum(rest.containers().values()) == number)
        scene.unblock(W3)
        end = time.time_ns() // 1_000_000 + 3_000
        scene.block(W3, end=end)
        scene.wait_applied(W3)
        scene.wait(lambda: scene.labels() == {})
        assert time.time_ns() // 1_000_000 >= end
        assert "Among them are ApplicationMasters (application_" in manager.log()
    scene.check_intact()


def test_names_that_yarn_does_not_know_are_not_here_and_harm_nothing(scene: Scene) -> None:
    with scene.manager(), BlocklistClient(scene.service.url) as client:
        with scene.service.client() as http:
            body = {f"x{number}.other.test": {"action": "MARK_BLOCKED", "cause": "hot"} for number in range(1000)}
            answer = http.put("/blocklist/nodes", json=body)
            assert answer.status_code < 300, answer.text
        scene.block("nosuch")
        scene.block(W2)
        scene.wait_applied(W2)
        assert scene.labels() == {W2: "blocklist"}
        scene.wait_not_here("nosuch", "x999.other.test")
        known = {node.id: node.labels for node in client.known_nodes().nodes}
        capacity = {"capacity.yarn/memory-mb": str(MEGABYTES), "capacity.yarn/vcores": str(VCORES)}
        assert known == {key: {"cluster": "yarn", "rack": "default-rack", **capacity} for key in scene.yarn.nodes}
        scene.unblock(W2)
        scene.wait(lambda: scene.labels() == {})


def test_labels_of_others_are_given_back(scene: Scene) -> None:
    rest = scene.rest
    rest.add_label("gpu")
    rest.add_label("ssd")
    rest.set_label(f"{W1}:0", "gpu")
    rest.set_label(f"{W2}:8041", "ssd")
    scene.block(W1, EVACUATE)
    scene.block(W2)
    with scene.manager() as manager:
        scene.wait_applied(W1)
        scene.wait_applied(W2)
        assert scene.labels() == {W1: "blocklist--gpu", W2: "blocklist--ssd"}
        rest.set_label(f"{W1}:0", "ssd")  # Somebody changes it meanwhile.
        scene.wait(lambda: scene.labels()[W1] == "blocklist--ssd")
        scene.unblock(W1)
        scene.wait(lambda: scene.labels() == {W1: "ssd", W2: "blocklist--ssd"})
        manager.kill()
        scene.unblock(W2)
        manager.start()
        scene.wait(lambda: scene.labels() == {W1: "ssd", W2: "ssd"})


def test_nothing_is_lost_when_everything_is_killed_in_turn(scene: Scene) -> None:
    yarn, rest = scene.yarn, scene.rest
    scene.fill()
    with scene.manager() as manager:
        scene.block(W1)
        scene.wait_applied(W1)
        manager.kill()
        yarn.kill_resource_manager()  # The manager and YARN are both down, and the list changes.
        scene.block(W2, EVACUATE)
        manager.start()
        scene.wait(lambda: "does not answer GET /info" in manager.log())
        reason = "Not known to be in force: The ResourceManager"
        scene.wait(lambda: (scene.listener(W2).get("pendingReason") or "").startswith(reason))
        scene.unblock(W1)
        scene.service.kill()  # And the service.
        yarn.start_resource_manager()
        yarn.wait_running()
        scene.service.start()
        scene.wait_applied(W2)
        scene.wait(lambda: scene.labels() == {W2: "blocklist"})
        assert rest.containers()[W2] == 0

        # While the manager runs: what was acknowledged is withdrawn at once, and comes back.
        yarn.kill_resource_manager()
        scene.wait_pending(W2, "Not known to be in force: The ResourceManager")
        scene.stop(manager)
        manager.start()
        yarn.start_resource_manager()
        scene.wait_applied(W2)
        yarn.wait_running()
        assert scene.labels() == {W2: "blocklist"}

        # A NodeManager comes back on another port.
        yarn.stop_node(W2)
        scene.wait(lambda: yarn.states().get(W2) != "RUNNING")
        yarn.start_node(W2, 8051)
        yarn.wait_running()
        assert scene.label(W2) == "blocklist", "at once, whether the manager has seen it or not"
        scene.unblock(W2)
        scene.wait(lambda: scene.labels() == {})
        yarn.stop_node(W2)
        scene.wait(lambda: yarn.states().get(W2) != "RUNNING")
        yarn.start_node(W2)
        yarn.wait_running()


def test_an_evacuation_that_was_interrupted_gives_the_resources_back(scene: Scene) -> None:
    """The manager died while the node had no resources: only the label says what it had."""
    rest = scene.rest
    for label in ("gpu", "blocklist--gpu", f"blocklist-restore-{MEGABYTES}-{VCORES}--gpu"):
        rest.add_label(label)
    for host, action in ((W1, EVACUATE), (W2, None)):
        rest.set_label(f"{host}:0", "blocklist--gpu")
        rest.set_label(f"{host}:8041", f"blocklist-restore-{MEGABYTES}-{VCORES}--gpu")
        rest.set_resource(f"{host}:8041", 0, 0, 0)
        if action is not None:
            scene.block(host, action)
    with scene.manager():
        scene.wait(lambda: scene.labels() == {W1: "blocklist--gpu", W2: "gpu"})
        scene.check_intact()


def test_labels_of_a_host_and_of_its_node_manager_are_given_back(scene: Scene) -> None:
    rest = scene.rest
    for label in ("gpu", "ssd"):
        rest.add_label(label)
    rest.set_labels({f"{W1}:8041": "ssd", f"{W1}:0": "gpu"})
    assert scene.labels() == {W1: "ssd"}, "YARN applies the label of the host first, whatever the order in a request"
    rest.set_label(f"{W1}:0", "gpu")
    scene.block(W1)
    with scene.manager():
        scene.wait_applied(W1)
        rest.set_label(f"{W1}:8041", "ssd")
        scene.wait(lambda: scene.labels() == {W1: "blocklist--ssd"})
        scene.unblock(W1)
        scene.wait(lambda: scene.labels() == {W1: "ssd"})
