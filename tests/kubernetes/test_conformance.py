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
from blocklist.managers.command import Stopping
from blocklist.managers.kubernetes.running import run as run_manager
from blocklist.managers.options import build_parser
from blocklist.model.node import ACTION_BY_NAME
from tests.conformance.programs import WITH_MANAGERS, Differences, ProgramSubject
from tests.conformance.runner import run
from tests.conformance.scenario import RM, Block, Node, Register, Scenario
from tests.integration.process import ServiceProcess, wait_until
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.kubelets import Kubelets
from tests.kubernetes.manager import manager_token

pytestmark = pytest.mark.timeout(600)


NODES = sorted(
    {n for s in WITH_MANAGERS for step in s.steps if isinstance(step.action, Block) for n in step.action.nodes}
)


class ManagerParty:
    """One start of the manager, in a thread."""

    def __init__(self, url: str, kubeconfig: Path, listener: str, key: str) -> None:
        # No scenario unblocks a brief block.
        self.differences = Differences[Node](
            lambda node: node, lambda _, node: "expired" if node.brief else "unblocked"
        )
        self.calls = self.differences.calls
        options = ["--url", url, "--kubeconfig", str(kubeconfig), "--id", listener, "--taint", key]
        self._arguments = build_parser("test", ["kubernetes"]).parse_args(["kubernetes", *options])
        self._stopping = Stopping()
        self._thread = threading.Thread(target=run_manager, args=(self._arguments, self._stopping))
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


class ManagerSubject(ProgramSubject[ManagerParty]):
    """`key` is that of the taints of this scenario."""

    def __init__(
        self, service: ServiceProcess, reader: BlocklistClient, stack: ExitStack, cluster: Cluster, kubeconfig: Path
    ) -> None:
        super().__init__(stack.enter_context(service.client()), reader, stack)
        self._cluster, self._service, self._kubeconfig = cluster, service, kubeconfig
        self._key = f"conformance/{time.time_ns()}"
        self._api: httpx.Client = stack.enter_context(cluster.api())

    def register(self, step: Register) -> None:
        if step.role != RM:
            return super().register(step)
        former = [party for party, listener in self.listeners.items() if listener == step.id]
        self.programs[step.party] = ManagerParty(self._service.url, self._kubeconfig, step.id, self._key)
        self.listeners[step.party] = step.id
        for party in former:
            wait_until(lambda party=party: not self.programs[party].running, seconds=120)  # type: ignore[misc]
        return None

    def receive(self, program: ManagerParty, revision: int) -> None:
        program.differences.receive(self._marks())

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
        yield ManagerSubject(listener_service, reader, stack, cluster, kubeconfig)


@pytest.mark.parametrize("scenario", WITH_MANAGERS, ids=lambda scenario: scenario.name)
def test_manager(scenario: Scenario, subject: ManagerSubject) -> None:
    run(scenario, subject)
