"""The conformance scenarios with the Kubernetes manager: each ResourceManager is one, each JobMaster a watch.

A notification is the difference between the annotations in the cluster before a step, and once the manager has
acknowledged the step.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from blocklist import BlocklistClient
from blocklist.managers.kubernetes.running import run as run_manager
from blocklist.managers.options import build_parser
from blocklist.managers.stopping import Stopping
from blocklist.model.node import ACTION_BY_NAME
from tests.conformance.runner import run
from tests.conformance.scenario import RM, Block, Node, Notification, Register, Scenario
from tests.conformance.scenarios import SCENARIOS
from tests.conformance.test_watch import WatchSubject
from tests.integration.bodies import current_list
from tests.integration.process import ServiceProcess, wait_until
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.kubelets import Kubelets
from tests.kubernetes.manager import manager_token

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.timeout(600)]


def _has_manager(scenario: Scenario) -> bool:
    return any(isinstance(step.action, Register) and step.action.role == RM for step in scenario.steps)


WITH_MANAGER = [scenario for scenario in SCENARIOS if _has_manager(scenario)]
NODES = sorted(
    {n for s in WITH_MANAGER for step in s.steps if isinstance(step.action, Block) for n in step.action.nodes}
)


class ManagerParty:
    """One start of the manager, in a thread."""

    def __init__(self, url: str, kubeconfig: Path, listener: str, key: str) -> None:
        self.calls: list[Notification] = []
        self.key = key
        self._nodes: dict[str, Node] = {}
        self._ends: dict[str, float] = {}
        self._received = False
        options = ["--url", url, "--kubeconfig", str(kubeconfig), "--id", listener, "--taint", key]
        self._arguments = build_parser("test").parse_args(["kubernetes", *options])
        self._stopping = Stopping()
        self._thread = threading.Thread(target=run_manager, args=(self._arguments, self._stopping))
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def receive(self, nodes: dict[str, Node]) -> None:
        """Add what has changed since the last call as a notification."""
        blocked = {name: node for name, node in nodes.items() if self._nodes.get(name) != node}
        freed = {name: self._reason(name) for name in self._nodes.keys() - nodes.keys()}
        if blocked or freed:
            self.calls.append(Notification(blocked=blocked, unblocked=freed, snapshot=not self._received))
        self._received, self._nodes = True, nodes

    def _reason(self, name: str) -> str:
        # No scenario unblocks a brief block.
        return "expired" if self._nodes[name].brief else "unblocked"


class ManagerSubject(WatchSubject):
    """`key` is that of the taints of this scenario."""

    def __init__(
        self, service: ServiceProcess, reader: BlocklistClient, stack: ExitStack, cluster: Cluster, kubeconfig: Path
    ) -> None:
        super().__init__(stack.enter_context(service.client()), reader, stack)
        self._cluster, self._service, self._kubeconfig = cluster, service, kubeconfig
        self._key = f"conformance/{time.time_ns()}"
        self._managers: dict[str, ManagerParty] = {}
        self._api: httpx.Client = stack.enter_context(cluster.api())

    def register(self, step: Register) -> None:
        if step.role != RM:
            return super().register(step)
        former = [party for party, listener in self.listeners.items() if listener == step.id]
        self._managers[step.party] = ManagerParty(self._service.url, self._kubeconfig, step.id, self._key)
        self.listeners[step.party] = step.id
        for party in former:
            wait_until(lambda party=party: not self._managers[party].running, seconds=120)  # type: ignore[misc]
        return None

    def leave(self, party: str) -> None:
        if party not in self._managers:
            return super().leave(party)
        self._managers[party].stop()
        assert self.client.get(f"/listeners/{self.listeners.pop(party)}").status_code == 404
        return None

    def notifications(self, party: str, number: int) -> list[Notification]:
        if party not in self._managers:
            return super().notifications(party, number)
        manager = self._managers[party]
        if manager.running:
            revision = current_list(self.client)[0]
            wait_until(lambda: self._acknowledged(party, revision), seconds=120)
            manager.receive(self._marks())
        return manager.calls

    def close(self) -> None:
        """Stop what still runs."""
        for manager in self._managers.values():
            manager.stop()

    def _acknowledged(self, party: str, revision: int) -> bool:
        answer = self.client.get(f"/listeners/{self.listeners[party]}")
        return answer.is_success and answer.json()["ackedRevision"] is not None and self._acked(answer) >= revision

    def _acked(self, answer: httpx.Response) -> int:
        return int(answer.json()["ackedRevision"])

    def _marks(self) -> dict[str, Node]:
        """What the nodes in the cluster carry: each annotation goes with a taint."""
        found = {}
        for node in self._api.get("/api/v1/nodes").raise_for_status().json()["items"]:
            text = node["metadata"].get("annotations", {}).get(self._key)
            tainted = any(taint["key"] == self._key for taint in node["spec"].get("taints") or [])
            assert (text is not None) is tainted
            if text is not None:
                mark = json.loads(text)
                brief = mark["blocked"] != "without end"
                found[node["metadata"]["name"]] = Node(mark["cause"], ACTION_BY_NAME[mark["action"]], brief=brief)
        return found


@pytest.fixture(scope="module")
def nodes(kubelets: Kubelets) -> Iterator[None]:
    with kubelets.nodes(*NODES, "the-end"):
        yield


@pytest.fixture
def subject(
    tmp_path: Path, cluster: Cluster, nodes: None, listener_service: ServiceProcess, listener_client: httpx.Client
) -> Iterator[ManagerSubject]:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(cluster.kubeconfig(manager_token(cluster)))
    with BlocklistClient(listener_service.url) as reader, ExitStack() as stack:
        subject = ManagerSubject(listener_service, reader, stack, cluster, kubeconfig)
        stack.callback(subject.close)
        yield subject


@pytest.mark.parametrize("scenario", WITH_MANAGER, ids=lambda scenario: scenario.name)
def test_manager(scenario: Scenario, subject: ManagerSubject) -> None:
    run(scenario, subject)
