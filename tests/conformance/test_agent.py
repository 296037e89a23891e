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
from tests.conformance.programs import WITHOUT_REPORTS, Differences, ProgramSubject
from tests.conformance.runner import run
from tests.conformance.scenario import JM, Node, Register, Scenario
from tests.integration.bodies import PERMANENT, current_list
from tests.integration.process import ServiceProcess, migrated_service

pytestmark = pytest.mark.timeout(300)


class AgentParty:
    """One start of the agent in a driver."""

    def __init__(self, driver: DriverProcess) -> None:
        self.driver = driver
        self.running = True
        self._differences = Differences[Node](lambda node: node, self._reason)
        self.calls = self._differences.calls
        self._ends: dict[str, int] = {}

    def receive(self, table: Mapping[str, Any]) -> None:
        """Add what has changed since the last call as a notification."""
        self._differences.receive({node_id: _node(*values) for node_id, values in table["nodes"].items()})
        self._ends = {node_id: int(end) for node_id, (end, _, _) in table["nodes"].items()}

    def close(self) -> None:
        if self.running:
            self.running = False
            assert self.driver.ask("stop") is False

    def _reason(self, node_id: str, _: Node) -> str:
        return "expired" if self._ends[node_id] <= time.time() * 1000 else "unblocked"


class AgentSubject(ProgramSubject[AgentParty]):
    """A JobMaster's listener id is its application's."""

    def __init__(
        self, client: httpx.Client, reader: BlocklistClient, stack: ExitStack, drivers: Sequence[DriverProcess]
    ) -> None:
        super().__init__(client, reader, stack)
        self._drivers = list(drivers)
        self._used: dict[str, DriverProcess] = {}

    def register(self, step: Register) -> None:
        if step.role != JM:
            return super().register(step)
        driver = self._used[step.id] = self._used.get(step.id) or self._drivers.pop()
        assert driver.ask("start") is True
        self.programs[step.party] = AgentParty(driver)
        self.listeners[step.party] = driver.id
        self.await_acknowledged(step.party, current_list(self.client)[0])
        return None

    def receive(self, program: AgentParty, revision: int) -> None:
        table = program.driver.ask("table")
        assert table["revision"] == table["table"] == revision
        program.receive(table)

    def close(self) -> None:
        for party, agent in self.programs.items():
            if agent.running:
                self.leave(party)


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
        yield AgentSubject(client, reader, stack, drivers)


@pytest.mark.parametrize("scenario", WITHOUT_REPORTS, ids=lambda scenario: scenario.name)
def test_agent(scenario: Scenario, subject: AgentSubject) -> None:
    run(scenario, subject)
