"""The scenarios of tests/conformance with the bridge: each ResourceManager is a bridge to the real cluster.

A notification is the difference between what a bridge had sent to Flink before a step, and once it has acknowledged the
step. JobMasters read a watch.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from blocklist import BlocklistClient
from blocklist.client.session import ListenerSession
from blocklist.client.watch import WatchThread
from blocklist.flink.bridge import Bridge, BridgeOptions
from blocklist.flink.connection import FlinkConnection
from blocklist.flink.jvm import ChildJvm
from blocklist.flink.rpc import FlinkRpc
from tests.conformance.programs import WITH_MANAGERS, WITHOUT_REPORTS, Differences, ProgramSubject, why_free
from tests.conformance.runner import run
from tests.conformance.scenario import RM, Register, Scenario
from tests.conformance.test_watch import scenario_node
from tests.flink.cluster import FlinkCluster
from tests.integration.bodies import current_list
from tests.integration.process import ServiceProcess, wait_until

pytestmark = pytest.mark.timeout(900)

# The bridge reports TaskManagers itself, and nothing else: test_marking.py.
SUITABLE = [scenario for scenario in WITH_MANAGERS if scenario in WITHOUT_REPORTS]


class SharedConnection(FlinkConnection):
    """Stays open when a bridge ends: the next one uses its JVM."""

    def close(self) -> None:
        self._disconnect()

    def end(self) -> None:
        super().close()


class BridgeParty:
    """A bridge in a thread of its own."""

    def __init__(self, url: str, listener_id: str, connection: SharedConnection) -> None:
        self._differences = Differences(scenario_node, why_free)
        self.calls = self._differences.calls
        self._bridge = Bridge(
            connection,
            lambda registration: ListenerSession(url, registration, interval=registration.lease / 3000),
            BridgeOptions(listener_id=listener_id),
        )
        self._watch = WatchThread(BlocklistClient(url).watch, self._bridge.wake)
        self._thread = threading.Thread(target=self._bridge.run, args=(self._watch,))
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def receive(self) -> None:
        """Add what has changed since the last call as a notification."""
        self._differences.receive({node_id: node for node_id, (node, _) in self._bridge._received.items()})

    def close(self) -> None:
        self._bridge.stop()
        self._thread.join(120)
        assert not self._thread.is_alive()
        self._watch.close()
        self._bridge.close()


class BridgeSubject(ProgramSubject[BridgeParty]):
    def __init__(
        self,
        client: httpx.Client,
        reader: BlocklistClient,
        stack: ExitStack,
        url: str,
        connections: list[SharedConnection],
    ) -> None:
        super().__init__(client, reader, stack)
        self._url, self._connections = url, list(connections)

    def register(self, step: Register) -> None:
        if step.role != RM:
            return super().register(step)
        former = [party for party, listener in self.listeners.items() if listener == step.id]
        self.listeners[step.party] = step.id
        self.programs[step.party] = BridgeParty(self._url, step.id, self._connections.pop())
        for party in former:
            # The session of the former bridge has been taken over: it stops by itself.
            wait_until(lambda party=party: not self.programs[party].running, seconds=150)  # type: ignore[misc]
        self.await_acknowledged(step.party, current_list(self.client)[0])
        return None

    def receive(self, program: BridgeParty, revision: int) -> None:
        program.receive()


@pytest.fixture(scope="module")
def connections(cluster: FlinkCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[SharedConnection]]:
    """As many as one scenario has bridges at the same time."""
    opened = [_connection(cluster, tmp_path_factory.mktemp("bridge")) for _ in range(2)]
    yield opened
    for connection in opened:
        connection.end()


def _connection(cluster: FlinkCluster, folder: Path) -> SharedConnection:
    def start() -> FlinkRpc:
        return FlinkRpc(ChildJvm(cluster.lib, cluster.java, folder), cluster.conf_dir, "127.0.0.1")

    return SharedConnection(start)


@pytest.fixture
def subject(service: ServiceProcess, connections: list[SharedConnection]) -> Iterator[BridgeSubject]:
    """On an empty list."""
    with service.client() as client, BlocklistClient(service.url) as reader, ExitStack() as stack:
        for node_id in current_list(client)[1]:
            client.delete(f"/blocklist/nodes/{node_id}")
        yield BridgeSubject(client, reader, stack, service.url, connections)


@pytest.mark.parametrize("scenario", SUITABLE, ids=lambda scenario: scenario.name)
def test_bridge(scenario: Scenario, subject: BridgeSubject) -> None:
    run(scenario, subject)
