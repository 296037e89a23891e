"""The YARN manager on a simulated ResourceManager: what it finishes when it is stopped, and what a rejection is for."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from blocklist import PERMANENT, BlockAction, BlockedNode
from blocklist.managers.command import StoppedError, Stopping
from blocklist.managers.plan import DesiredState, ManagerError, NotInForce
from blocklist.managers.reconcile import carry_out
from blocklist.managers.yarn import manager as yarn_manager
from blocklist.managers.yarn import resource_manager as resource_manager_module
from blocklist.managers.yarn.manager import LabelManager
from blocklist.managers.yarn.node_names import AddressNames
from blocklist.managers.yarn.plan import MarkLabels
from blocklist.managers.yarn.resource_manager import Access, NoAnswerError, ResourceManager
from tests.yarn.simulated import MEGABYTES, VCORES, RejectionError, SimulatedYarn, serving

MARK, EVACUATE = BlockAction.MARK_BLOCKED, BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS
SECONDS = 120.0
ADDRESS = "10.0.0.1"
LONG = "x" * 240
"""A label that can be remembered in a mark, but not together with resources."""


@pytest.fixture(autouse=True)
def _containers_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No NodeManager has to learn of it here."""
    monkeypatch.setattr(yarn_manager, "_KILL_SECONDS", 0.0)


class HookedYarn(SimulatedYarn):
    """Calls `hook` before it answers, and `sort` orders the entries of a request."""

    def __init__(self, hosts: Iterable[str], containers: int = 0) -> None:
        super().__init__(hosts, containers)
        self.hook: Callable[[str, str], None] = lambda _method, _path: None

    def answer(self, method: str, path: str, body: Any) -> Any:
        self.hook(method, path)
        return super().answer(method, path, body)


class UnorderedYarn(HookedYarn):
    """An older YARN, which may apply the label of a host after those of its NodeManagers."""

    def sort(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return list(reversed(super().sort(entries)))


def desired(*node_ids: str, action: BlockAction = MARK) -> DesiredState:
    nodes = {it: BlockedNode(id=it, action=action, start=1, end=PERMANENT, cause="disk") for it in node_ids}
    return DesiredState(revision=1, nodes=nodes)


@contextmanager
def managing(
    yarn: SimulatedYarn, look_up: Callable[[str], list[str]] | None = None, *, min_nodes: int = 0
) -> Iterator[LabelManager]:
    stop = Stopping()
    with serving(yarn) as url:
        resource_manager = ResourceManager([url], Access(), stop, SECONDS)
        try:
            yield LabelManager(resource_manager, MarkLabels(), stop, AddressNames(stop, look_up), min_nodes=min_nodes)
        finally:
            resource_manager.close()


def apply(manager: LabelManager, *node_ids: str, action: BlockAction = MARK) -> dict[str, str]:
    """What is not in force then."""
    plan = manager.plan(desired(*node_ids, action=action))
    found = carry_out(manager, plan)
    return {**found.refused, **found.pending}


class Background:
    """A call in a thread; what it raised."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self._function = function
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait(self) -> BaseException | None:
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()
        return self.error

    def _run(self) -> None:
        try:
            self._function()
        except BaseException as error:
            self.error = error


class TestStop:
    def test_a_stop_while_a_request_is_under_way_gives_a_node_its_resources_back(self) -> None:
        yarn = HookedYarn(["w1"], containers=2)
        emptied, released = threading.Event(), threading.Event()

        def hang_while_empty(method: str, path: str) -> None:
            if (method, path) == ("GET", "/nodes") and not yarn.memory["w1"]:
                emptied.set()
                released.wait(SECONDS)

        yarn.hook = hang_while_empty
        with managing(yarn) as manager:
            running = Background(lambda: apply(manager, "w1", action=EVACUATE))
            assert emptied.wait(SECONDS)
            manager.stop()
            assert isinstance(running.wait(), StoppedError)
            released.set()
        assert yarn.memory == {"w1": MEGABYTES}
        assert yarn.effective() == {"w1": f"blocklist-restore-{MEGABYTES}-{VCORES}"}, "the next start removes the rest"

    def test_a_stop_while_resources_are_taken_waits_for_that_request_and_gives_them_back(self) -> None:
        """One that is still under way could overtake the one that gives them back."""
        yarn = HookedYarn(["w1"], containers=2)

        with managing(yarn) as manager:

            def stop_and_be_slow(method: str, path: str) -> None:
                if path.endswith("/resource") and not yarn.requests[f"{method} {path}"]:
                    manager.stop()
                    threading.Event().wait(0.5)

            yarn.hook = stop_and_be_slow
            assert isinstance(Background(lambda: apply(manager, "w1", action=EVACUATE)).wait(), StoppedError)
        assert yarn.memory == {"w1": MEGABYTES}
        assert yarn.requests["POST /nodes/w1:8041/resource"] == 2

    def test_a_stop_leaves_the_rest_of_an_interrupted_evacuation_to_the_next_start(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        hosts = [f"w{number}" for number in range(9)]
        yarn = HookedYarn(hosts)
        for host in hosts:
            interrupted(yarn, host)
        hanging, released = threading.Event(), threading.Event()

        def hang(_method: str, path: str) -> None:
            if path.endswith("/resource"):
                hanging.set()
                released.wait(SECONDS)

        yarn.hook = hang
        with managing(yarn) as manager:
            running = Background(lambda: apply(manager))
            assert hanging.wait(SECONDS)
            manager.stop()
            assert isinstance(running.wait(), StoppedError)
            released.set()
            assert "9 nodes may be without resources: w0:8041 (8192 MB, 8 vcores)" in caplog.text
        with managing(yarn) as manager:
            assert apply(manager) == {}
        assert set(yarn.memory.values()) == {MEGABYTES}
        assert yarn.effective() == {}

    @pytest.mark.parametrize("kind", [HookedYarn, UnorderedYarn])
    def test_the_labels_of_a_host_and_of_its_node_managers_are_set_together(self, kind: type[HookedYarn]) -> None:
        yarn = kind(["w1"])
        yarn.labels = {"gpu": True, "ssd": True}
        yarn.host_labels = {"w1": "gpu"}
        with managing(yarn) as manager:
            apply(manager, "w1")
            yarn.node_labels = {"w1": "ssd"}  # Somebody gives the NodeManager another one while the host is marked.
            yarn.labels |= {"blocklist--ssd": True}

            def stop_and_be_slow(method: str, path: str) -> None:
                if path == "/replace-node-to-labels" and yarn.requests[f"{method} {path}"] == 1:
                    manager.stop()
                    threading.Event().wait(0.5)

            yarn.hook = stop_and_be_slow
            assert isinstance(Background(lambda: apply(manager)).wait(), StoppedError)
        assert yarn.host_labels == {"w1": "gpu"}
        assert yarn.effective() == {"w1": "ssd"}


class OddYarn(SimulatedYarn):
    """`odd` changes its list of nodes."""

    def __init__(self, *hosts: str, containers: int = 0) -> None:
        super().__init__(hosts, containers)
        self.odd: Callable[[list[dict[str, Any]]], Any] = lambda nodes: nodes

    def _read(self, path: str) -> Any:
        answer = super()._read(path)
        if path == "/nodes":
            nodes = self.odd(answer["nodes"]["node"])
            return {"nodes": None if nodes is None else {"node": nodes}}
        return answer


class TestOddAnswers:
    """What YARN does not say is not known: after its restart it lists no node, then some."""

    def test_without_nodes_nothing_is_known_and_nothing_is_changed(self) -> None:
        yarn = OddYarn("w1", "w2")
        with managing(yarn) as manager:
            apply(manager, "w1")
            for odd in (lambda _: None, lambda nodes: nodes[:0]):
                yarn.odd = odd
                with pytest.raises(ManagerError, match="YARN lists no nodes at all") as raised:
                    manager.plan(desired())
                assert raised.value.known is None
        assert yarn.marked() == {"w1"}

    def test_a_node_that_is_not_listed_any_more_stays_known_and_its_block_is_pending(self) -> None:
        yarn = OddYarn("w1", "w2", "w3")
        with managing(yarn) as manager:
            apply(manager, "w3")
            yarn.odd = lambda nodes: [node for node in nodes if node["nodeHostName"] == "w1"]
            plan = manager.plan(desired("W2", "w3", "w4"))
        assert not plan.not_in_force.refused
        assert not plan.not_in_force.not_here, "two of three nodes are missing: that is not the whole inventory"
        assert plan.not_in_force.pending.keys() == {"W2", "w4"}, "w3 has its label"
        assert {node.id for node in plan.all_nodes or ()} == {"w1", "w2", "w3"}
        assert plan.unschedulable == {"w2": "not listed by YARN now", "w3": "not listed by YARN now"}

    def test_numbers_as_text_do_not_overwrite_resources_that_somebody_has_set(self) -> None:
        yarn = OddYarn("w1", containers=3)
        yarn.memory["w1"] = 4096
        yarn.odd = lambda nodes: [json.loads(re.sub(r": ([0-9]+)", r': "\1"', json.dumps(node))) for node in nodes]
        with managing(yarn) as manager:
            assert apply(manager, "w1", action=EVACUATE) == {}
            assert apply(manager) == {}
        assert (yarn.memory["w1"], yarn.containers["w1"]) == (4096, 0)

    def test_a_list_without_the_node_does_not_show_that_it_is_empty(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(yarn_manager, "_EMPTY_SECONDS", 0.2)
        yarn = OddYarn("w1", "w2", containers=2)
        with managing(yarn) as manager:
            apply(manager, "w1")
            yarn.odd = lambda nodes: nodes[1:]
            left = manager._evacuation.run(["w1:8041"])
            assert [(name, it.for_good) for name, it in left.items()] == [("w1:8041", False)]
            assert "YARN does not list node w1:8041 now" in left["w1:8041"].why
            yarn.odd = lambda _: None
            with pytest.raises(NoAnswerError, match="lists no nodes at all"):
                manager._evacuation.run(["w1:8041"])


class TestRejections:
    def test_a_node_that_yarn_rejects_is_refused_alone_and_the_others_get_their_resources_back(self) -> None:
        yarn = HookedYarn(["w1", "w2", "w3"])
        for host in yarn.memory:
            interrupted(yarn, host)
        yarn.hook = reject("/nodes/w1:8041/resource")
        with managing(yarn) as manager:
            refused = apply(manager, "w1", "w2", "w3")
        assert yarn.memory == {"w1": 0, "w2": MEGABYTES, "w3": MEGABYTES}
        assert list(refused) == ["w1"]
        assert "Node w1:8041 has no resources, and does not get them back" in refused["w1"]
        restoring = f"blocklist-restore-{MEGABYTES}-{VCORES}"
        assert yarn.effective() == {"w1": restoring, "w2": "blocklist", "w3": "blocklist"}, "w1's is still needed"

    def test_a_node_that_is_not_freed_is_not_acknowledged(self) -> None:
        yarn = HookedYarn(["w1", "w2"])
        interrupted(yarn, "w1")
        interrupted(yarn, "w2")
        yarn.hook = reject("/nodes/w1:8041/resource")
        with managing(yarn) as manager:
            with pytest.raises(ManagerError, match="Node w1:8041 has no resources") as raised:
                apply(manager)
            assert raised.value.known == NotInForce(), "what is known of each block stays true"
            assert yarn.effective().keys() == {"w1"}
            yarn.hook = lambda *_: None
            assert apply(manager) == {}
        assert yarn.effective() == {}
        assert set(yarn.memory.values()) == {MEGABYTES}

    def test_a_node_that_cannot_be_evacuated_is_refused_alone(self) -> None:
        yarn = HookedYarn(["w1", "w2", "w3"], containers=2)
        yarn.labels = {LONG: True}
        yarn.host_labels = {"w1": LONG}
        yarn.hook = reject("/nodes/w2:8041/resource")
        with managing(yarn) as manager:
            refused = apply(manager, "w1", "w2", "w3", action=EVACUATE)
        assert yarn.containers == {"w1": 2, "w2": 2, "w3": 0}
        assert set(yarn.memory.values()) == {MEGABYTES}
        assert refused.keys() == {"w1", "w2"}
        assert f"Node w1:8041 is not evacuated: its label {LONG} is too long" in refused["w1"]
        assert "Node w2:8041 is not evacuated: The ResourceManager" in refused["w2"]

    def test_resources_that_do_not_come_back_stay_remembered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(yarn_manager, "_RESTORE_SECONDS", 0.5)
        yarn = Forgetful(["w1", "w2"], containers=2)
        with managing(yarn) as manager:
            refused = apply(manager, "w1", "w2", action=EVACUATE)
            assert list(refused) == ["w1"]
            assert "does not have its resources back" in refused["w1"]
            assert yarn.effective()["w1"].startswith("blocklist-restore-")
            yarn.forgets = ""
            assert apply(manager, "w1", "w2", action=EVACUATE) == {}
        assert set(yarn.memory.values()) == {MEGABYTES}

    def test_a_label_that_somebody_sets_during_an_evacuation_is_kept(self) -> None:
        yarn = HookedYarn(["w1"], containers=2)
        yarn.labels = {"gpu": True}

        def set_label(method: str, path: str) -> None:
            if (method, path) == ("GET", "/nodes") and not yarn.memory["w1"]:
                yarn.host_labels, yarn.node_labels = {"w1": "gpu"}, {}

        yarn.hook = set_label
        with managing(yarn) as manager:
            refused = apply(manager, "w1", action=EVACUATE)
            assert refused == {"w1": "Node w1:8041 has no label of the manager, although it was set."}
            assert yarn.effective() == {"w1": "gpu"}
            assert apply(manager, "w1", action=EVACUATE) == {}
            assert yarn.effective() == {"w1": "blocklist--gpu"}

    def test_resources_are_back_before_the_node_manager_has_ended_the_containers(self) -> None:
        """One that learned that it has none would be refused by a ResourceManager that restarts."""
        yarn = SlowNodeManager(["w1"], containers=2)
        with managing(yarn) as manager:
            assert apply(manager, "w1", action=EVACUATE) == {}
        assert yarn.seen[-1] == (MEGABYTES, 0)
        assert (MEGABYTES, 2) in yarn.seen[yarn.seen.index((0, 2)) :]

    def test_an_interrupted_evacuation_whose_request_is_still_queued_gives_the_resources_back(self) -> None:
        yarn = HookedYarn(["w1"])
        interrupted(yarn, "w1")
        yarn.memory["w1"] = MEGABYTES

        def take(_method: str, path: str) -> None:
            if path == "/metrics" and not yarn.requests["GET /metrics"]:
                yarn.memory["w1"] = 0

        yarn.hook = take
        with managing(yarn) as manager:
            assert apply(manager) == {}
        assert yarn.memory == {"w1": MEGABYTES}
        assert yarn.effective() == {}

    def test_a_container_that_starts_before_its_node_is_marked_is_evacuated_too(self) -> None:
        yarn = HookedYarn(["w1"])

        def start_container(_method: str, path: str) -> None:
            if path == "/replace-node-to-labels" and not yarn.effective():
                yarn.containers["w1"] = 1

        yarn.hook = start_container
        with managing(yarn) as manager:
            assert apply(manager, "w1", action=EVACUATE) == {}
        assert yarn.containers == {"w1": 0}
        assert yarn.memory == {"w1": MEGABYTES}

    @pytest.mark.parametrize("slow", ["resolver", "/apps"])
    def test_a_label_that_somebody_sets_while_a_plan_is_made_is_kept(self, slow: str) -> None:
        yarn = HookedYarn(["w1"], containers=1)
        yarn.labels = {"gpu": True}

        def set_label(_method: str, path: str) -> None:
            if path == slow:
                yarn.host_labels = {"w1": "gpu"}

        def look_up(_address: str) -> list[str]:
            set_label("", "resolver")
            return ["w1"]

        yarn.hook = set_label
        with managing(yarn, look_up) as manager:
            apply(manager, ADDRESS, action=MARK if slow == "resolver" else EVACUATE)
            assert yarn.effective() == {"w1": "blocklist--gpu"}

    def test_an_evacuation_does_not_depend_on_the_names_of_applications(self) -> None:
        yarn = HookedYarn(["w1"], containers=2)
        yarn.hook = reject("/apps")
        with managing(yarn) as manager:
            assert apply(manager, "w1", action=EVACUATE) == {}
        assert yarn.containers == {"w1": 0}

    def test_an_answer_that_lists_no_labels_is_an_error_and_takes_no_label_of_others(self) -> None:
        yarn = HookedYarn(["w1"])
        yarn.labels = {"gpu": True}
        yarn.host_labels = {"w1": "gpu"}
        with managing(yarn) as manager:
            apply(manager, "w1")
            labels, yarn.labels = yarn.labels, {}
            with pytest.raises(ManagerError, match="label blocklist--gpu, but its answer to GET /get-node-labels"):
                apply(manager)
            yarn.labels = labels
            apply(manager)
        assert yarn.effective() == {"w1": "gpu"}

    def test_the_scheduler_has_taken_a_label_when_its_queues_are_empty_twice_in_a_row(self) -> None:
        yarn = Queueing(["w1"])
        with managing(yarn) as manager:
            assert apply(manager, "w1") == {}
        assert yarn.queued == []

    def test_a_scheduler_that_is_behind_delays_the_acknowledgement_and_no_mark(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(resource_manager_module, "_QUEUE_SECONDS", 0.2)
        yarn = Queueing(["w1", "w2"])
        yarn.queued = [[0, 7]] * 1000
        with managing(yarn) as manager:
            for node_id in ("w1", "w2"):
                with pytest.raises(ManagerError, match="is behind: 0 and 7 events"):
                    apply(manager, "w1", node_id)
        assert yarn.effective().keys() == {"w1", "w2"}

    def test_a_resource_manager_that_rejects_the_manager_does_not_hide_the_active_one(self) -> None:
        rejecting, active = HookedYarn(["w1"]), SimulatedYarn(["w1"])
        rejecting.hook = reject("/info")
        with serving(rejecting) as first, serving(active) as second:
            found = ResourceManager([first, second], Access(), Stopping(), SECONDS)
            found.find_active()
            assert found.url == second
            found.close()
            alone = ResourceManager([first], Access(), Stopping(), SECONDS)
            with pytest.raises(NoAnswerError, match="rejected GET /info with 400: no such node"):
                alone.find_active()
            alone.close()


class TestNames:
    def test_no_host_is_freed_after_a_start_until_the_addresses_of_the_list_are_resolved(self) -> None:
        yarn = SimulatedYarn(["w1", "w2", "w3"])
        answers: dict[str, list[str]] = {ADDRESS: ["w1"]}
        with managing(yarn, answers.__getitem__) as manager:
            assert apply(manager, ADDRESS, "w2") == {}
        with managing(yarn, failing) as manager:
            with pytest.raises(ManagerError, match=f"Node w1 is not freed.*{ADDRESS}") as raised:
                apply(manager, ADDRESS, "w3")
            assert raised.value.known is not None
            assert raised.value.known.pending.keys() == {ADDRESS}
            assert yarn.effective().keys() == {"w1", "w2", "w3"}, "new blocks are carried out"
        with managing(yarn, answers.__getitem__) as manager:
            assert apply(manager, ADDRESS, "w3") == {}
            assert yarn.effective().keys() == {"w1", "w3"}

    def test_a_minimum_of_nodes_frees_nothing_that_is_marked(self) -> None:
        yarn = SimulatedYarn(["w1", "w2"])
        with managing(yarn) as manager:
            assert apply(manager, "w1") == {}
        with managing(yarn, min_nodes=2) as manager:
            assert apply(manager, "w1", "w2").keys() == {"w2"}
        assert yarn.effective() == {"w1": "blocklist"}


class Forgetful(SimulatedYarn):
    """Answers that it gives resources back, but does not do it for `forgets`."""

    forgets = "w1"

    def answer(self, method: str, path: str, body: Any) -> Any:
        if path.startswith(f"/nodes/{self.forgets}:") and body["resource"]["memory"]:
            return None
        return super().answer(method, path, body)


class SlowNodeManager(HookedYarn):
    """Its containers end only some answers after their node has lost its resources. `seen`: memory and containers."""

    def __init__(self, hosts: Iterable[str], containers: int = 0) -> None:
        super().__init__(hosts, containers)
        self.seen: list[tuple[int, int]] = []
        self._last_answers = 10

    def answer(self, method: str, path: str, body: Any) -> Any:
        before = self.containers["w1"]
        answer = super().answer(method, path, body)
        if path.endswith("/resource"):
            self.containers["w1"] = before
        elif path == "/nodes":
            self.seen.append((self.memory["w1"], self.containers["w1"]))
            self._last_answers -= any(memory == 0 for memory, _ in self.seen)
            if self._last_answers == 0:
                self.containers["w1"] = 0
        return answer


class Queueing(SimulatedYarn):
    """Its queues have these lengths, one after the other: in between, an event is in neither of them."""

    def __init__(self, hosts: Iterable[str]) -> None:
        super().__init__(hosts)
        self.queued = [[1, 0], [0, 0], [0, 1], [0, 0], [0, 0]]

    def answer(self, method: str, path: str, body: Any) -> Any:
        if path != "/metrics":
            return super().answer(method, path, body)
        queues = self.queued.pop(0)
        return {"clusterMetrics": {"rmEventQueueSize": queues[0], "schedulerEventQueueSize": queues[1]}}


def interrupted(yarn: SimulatedYarn, host: str) -> None:
    """As an evacuation that was killed leaves a node."""
    restoring = f"blocklist-restore-{MEGABYTES}-{VCORES}"
    yarn.labels |= {"blocklist": True, restoring: True}
    yarn.host_labels[host], yarn.node_labels[host] = "blocklist", restoring
    yarn.memory[host] = 0


def reject(rejected: str) -> Callable[[str, str], None]:
    def hook(_method: str, path: str) -> None:
        if path == rejected:
            raise RejectionError("no such node")

    return hook


def failing(address: str) -> list[str]:
    raise OSError(f"no answer for {address}")
