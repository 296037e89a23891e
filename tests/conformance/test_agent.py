"""The scenarios with the agent: each JobMaster is the driver of a real application, each ResourceManager a watch.

A notification is the difference between what the agent had in force before a step, and what it has once it has
acknowledged the step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from blocklist import BlockAction, BlocklistClient
from tests.conformance.driver_process import DriverProcess
from tests.conformance.runner import run
from tests.conformance.scenario import JM, Node, Notification, Register, Report, Scenario
from tests.conformance.scenarios import SCENARIOS
from tests.conformance.test_watch import WatchSubject
from tests.integration.bodies import PERMANENT, current_list
from tests.integration.process import ServiceProcess, migrated_service, wait_until

pytestmark = [pytest.mark.xdist_group("applications"), pytest.mark.timeout(300)]

# The agent reports its executors and nothing else: tests/acceptance/test_listener.py.
WITHOUT_REPORTS = [scenario for scenario in SCENARIOS if not any(isinstance(s.action, Report) for s in scenario.steps)]


class AgentParty:
    """One start of the agent in a driver."""

    def __init__(self, driver: DriverProcess) -> None:
        self.driver = driver
        self.calls: list[Notification] = []
        self.running = True
        self._nodes: dict[str, Node] = {}
        self._ends: dict[str, int] = {}
        self._received = False

    def receive(self, table: Mapping[str, Any]) -> None:
        """Add what has changed since the last call as a notification."""
        nodes = {node_id: _node(*values) for node_id, values in table["nodes"].items()}
        blocked = {node_id: node for node_id, node in nodes.items() if self._nodes.get(node_id) != node}
        freed = {node_id: self._reason(node_id) for node_id in self._nodes.keys() - nodes.keys()}
        if blocked or freed:
            self.calls.append(Notification(blocked=blocked, unblocked=freed, snapshot=not self._received))
        self._received, self._nodes = True, nodes
        self._ends = {node_id: int(end) for node_id, (end, _, _) in table["nodes"].items()}

    def _reason(self, node_id: str) -> str:
        return "expired" if self._ends[node_id] <= time.time() * 1000 else "unblocked"


class AgentSubject(WatchSubject):
    """A JobMaster's listener id is its application's."""

    def __init__(
        self, client: httpx.Client, reader: BlocklistClient, stack: ExitStack, drivers: Sequence[DriverProcess]
    ) -> None:
        super().__init__(client, reader, stack)
        self._drivers = list(drivers)
        self._used: dict[str, DriverProcess] = {}
        self._agents: dict[str, AgentParty] = {}

    def register(self, step: Register) -> None:
        if step.role != JM:
            return super().register(step)
        driver = self._used[step.id] = self._used.get(step.id) or self._drivers.pop()
        assert driver.ask("start") is True
        self._agents[step.party] = AgentParty(driver)
        self.listeners[step.party] = driver.id
        wait_until(lambda: self._acknowledged(driver, current_list(self.client)[0]))
        return None

    def leave(self, party: str) -> None:
        if party not in self._agents:
            return super().leave(party)
        self._agents[party].running = False
        assert self._agents[party].driver.ask("stop") is False
        assert self.client.get(f"/listeners/{self.listeners.pop(party)}").status_code == 404
        return None

    def notifications(self, party: str, number: int) -> list[Notification]:
        if party not in self._agents:
            return super().notifications(party, number)
        agent = self._agents[party]
        if agent.running:
            revision = current_list(self.client)[0]
            wait_until(lambda: self._acknowledged(agent.driver, revision))
            table = agent.driver.ask("table")
            assert table["revision"] == table["table"] == revision
            agent.receive(table)
        return agent.calls

    def close(self) -> None:
        """Stop what still runs."""
        for party, agent in self._agents.items():
            if agent.running:
                self.leave(party)

    def _acknowledged(self, driver: DriverProcess, revision: int) -> bool:
        answer = self.client.get(f"/listeners/{driver.id}")
        return answer.is_success and int(answer.json()["ackedRevision"]) >= revision


def _node(end: str, evacuates: bool, cause: str) -> Node:
    action = BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS if evacuates else BlockAction.MARK_BLOCKED
    return Node(cause, action, brief=end != PERMANENT)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with migrated_service(tmp_path_factory.mktemp("service")) as process:
        yield process


@pytest.fixture(scope="module")
def drivers(service: ServiceProcess) -> Iterator[list[DriverProcess]]:
    """As many as one scenario has JobMasters at the same time."""
    with DriverProcess(service.url) as one, DriverProcess(service.url) as other:
        yield [one, other]


@pytest.fixture
def subject(service: ServiceProcess, drivers: list[DriverProcess]) -> Iterator[AgentSubject]:
    """On an empty list."""
    with service.client() as client, BlocklistClient(service.url) as reader, ExitStack() as stack:
        for node_id in current_list(client)[1]:
            client.delete(f"/blocklist/nodes/{node_id}")
        subject = AgentSubject(client, reader, stack, drivers)
        stack.callback(subject.close)
        yield subject


@pytest.mark.parametrize("scenario", WITHOUT_REPORTS, ids=lambda scenario: scenario.name)
def test_agent(scenario: Scenario, subject: AgentSubject) -> None:
    run(scenario, subject)
