"""The scenarios with the YARN manager: each ResourceManager is its loop, on simulated answers of YARN.

A notification is the difference between what it had applied before a step, and what it has acknowledged after it; YARN
must have exactly these nodes marked then.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import httpx
import pytest

from blocklist import BlocklistClient
from blocklist.client.session import ListenerSession
from blocklist.client.watch import WatchThread
from blocklist.managers.command import Stopping
from blocklist.managers.plan import DesiredState, NotInForce
from blocklist.managers.reconcile import ReconcileLoop
from blocklist.managers.yarn.manager import LabelManager
from blocklist.managers.yarn.node_names import AddressNames
from blocklist.managers.yarn.plan import LabelPlan, MarkLabels
from blocklist.managers.yarn.resource_manager import Access, ResourceManager
from blocklist.model.listener import ListenerRole, Registration
from blocklist.model.node import BlockedNode
from tests.conformance.programs import WITH_MANAGERS, WITHOUT_REPORTS, Differences, ProgramSubject, why_free
from tests.conformance.runner import run
from tests.conformance.scenario import RM, Register, Scenario
from tests.conformance.test_watch import scenario_node
from tests.integration.process import ServiceProcess, wait_until
from tests.yarn.simulated import SimulatedYarn, serving

# A manager reports the containers on blocked nodes and nothing else.
SUITABLE = [scenario for scenario in WITH_MANAGERS if scenario in WITHOUT_REPORTS]


class AnyHost(SimulatedYarn):
    """Has each node that a scenario blocks, so that none is refused."""

    def know(self, nodes: Mapping[str, BlockedNode]) -> None:
        for node_id in nodes:
            self.memory.setdefault(node_id, 1024)
            self.containers.setdefault(node_id, 0)


class ManagerParty(LabelManager):
    """The manager with what it had applied last."""

    def __init__(self, url: str, step: Register, stack: ExitStack) -> None:
        self.yarn = AnyHost(["spare"])
        stop = Stopping()
        resource_manager = ResourceManager([stack.enter_context(serving(self.yarn))], Access(), stop, 60)
        super().__init__(resource_manager, MarkLabels(), stop, AddressNames(stop), min_nodes=0)
        self._differences = Differences(scenario_node, why_free)
        self.calls = self._differences.calls
        self.running = True
        self._planned: Mapping[str, BlockedNode] = {}
        self._applied: Mapping[str, BlockedNode] = {}
        registration = Registration(id=step.id, role=ListenerRole.RESOURCE_MANAGER, session=step.party)
        # A session that another one replaces notices it at its next heartbeat.
        self.session = ListenerSession(url, registration, interval=1)
        self._loop = ReconcileLoop(self, self.session)
        self._watch = WatchThread(self.session.open_watch, self._loop.wake)
        self._thread = threading.Thread(target=self._loop.run, args=[self._watch])
        self._thread.start()
        wait_until(lambda: self.session.registered)

    def plan(self, desired: DesiredState) -> LabelPlan:
        self.yarn.know(desired.nodes)
        self._planned = desired.nodes
        return super().plan(desired)

    def apply(self, plan: LabelPlan) -> NotInForce:
        found = super().apply(plan)
        self._applied = self._planned
        return found

    def receive(self) -> None:
        """Add what has changed since the last call as a notification."""
        assert self.yarn.marked() == set(self._applied)
        self._differences.receive(self._applied)

    def close(self) -> None:
        """Stop as a process does at SIGTERM."""
        if self.running:
            self.running = False
            self._loop.stop()
            self._thread.join(60)
            self._watch.close()
            self.session.close()
            self._resource_manager.close()


class ManagerSubject(ProgramSubject[ManagerParty]):
    """Each ResourceManager of a scenario is a manager."""

    def register(self, step: Register) -> None:
        if step.role != RM:
            return super().register(step)
        former = [party for party, listener in self.listeners.items() if listener == step.id]
        self.listeners[step.party] = step.id
        manager = self.programs[step.party] = ManagerParty(self._reader.url, step, self._stack)
        # Before its YARN ends.
        self._stack.callback(manager.close)
        for party in former:
            self.fenced(party)
        return None

    def fenced(self, party: str) -> None:
        if party not in self.programs:
            return super().fenced(party)
        wait_until(lambda: self.programs[party].session.fenced)
        self.programs[party].close()
        return None

    def receive(self, program: ManagerParty, revision: int) -> None:
        program.receive()


@pytest.fixture
def managed(listener_client: httpx.Client, listener_service: ServiceProcess) -> Iterator[ManagerSubject]:
    with BlocklistClient(listener_service.url) as reader, ExitStack() as stack:
        yield ManagerSubject(listener_client, reader, stack)


@pytest.mark.parametrize("scenario", SUITABLE, ids=lambda scenario: scenario.name)
def test_manager(scenario: Scenario, managed: ManagerSubject) -> None:
    run(scenario, managed)
