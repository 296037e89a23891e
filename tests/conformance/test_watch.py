"""The scenarios over watch: each party reads it with the client, and acknowledges in heartbeats."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise

import httpx
import pytest

from blocklist import BlocklistClient, Change, Snapshot
from blocklist.client.watch import Watch
from blocklist.model.node import BlockedNode
from tests.conformance.runner import run
from tests.conformance.scenario import Node, Notification, Register, Scenario
from tests.conformance.scenarios import SCENARIOS
from tests.conformance.service import ServiceSubject
from tests.integration.bodies import current_list
from tests.integration.process import ServiceProcess, wait_until


class Party:
    """Reads a watch in its own thread; `step_revisions` holds the revision after each step."""

    def __init__(self, watch: Watch) -> None:
        self.items: list[Snapshot | Change] = []
        self.step_revisions = [-1]
        self.reading = True
        self._watch = watch
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def reached(self, revision: int) -> bool:
        return bool(self.items) and self.items[-1].revision >= revision

    def close(self) -> None:
        self.reading = False
        self._watch.close()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def calls(self) -> list[Notification]:
        """The changes of one step as one notification, although each change is an event."""
        notifications = [
            _notification([item for item in self.items if begin < item.revision <= end])
            for begin, end in pairwise(self.step_revisions)
        ]
        return [notification for notification in notifications if notification is not None]

    def _read(self) -> None:
        for item in self._watch:
            self.items.append(item)


class WatchSubject(ServiceSubject):
    """Each party reads up to the current revision after a step, and acknowledges it in a heartbeat."""

    def __init__(self, client: httpx.Client, reader: BlocklistClient, stack: ExitStack) -> None:
        super().__init__(client)
        self._reader, self._stack = reader, stack
        self._parties: dict[str, Party] = {}

    def register(self, step: Register) -> None:
        self.register_party(step)
        self._parties[step.party] = party = Party(self._reader.watch())
        self._stack.callback(party.close)

    def leave(self, party: str) -> None:
        self._parties[party].close()
        self.deregister_party(party)

    def fenced(self, party: str) -> None:
        """Its heartbeat is rejected: it stops reading."""
        super().fenced(party)
        self._parties[party].close()

    def notifications(self, party: str, number: int) -> list[Notification]:
        reader = self._parties[party]
        if reader.reading:
            revision = current_list(self.client)[0]
            wait_until(lambda: reader.reached(revision))
            reader.step_revisions.append(revision)
            assert self.heartbeat(party, ackedRevision=revision).status_code == 200
            assert self.client.get(f"/listeners/{self.listeners[party]}").json()["lagRevisions"] == 0
        return reader.calls()


def _notification(items: list[Snapshot | Change]) -> Notification | None:
    """One notification for all changes of a step; None for no change, and for the snapshot of an empty list."""
    if not items or (isinstance(items[0], Snapshot) and not items[0].nodes):
        return None
    if isinstance(items[0], Snapshot):
        return Notification(
            blocked={node_id: scenario_node(node) for node_id, node in items[0].nodes.items()}, snapshot=True
        )
    last = {change.node.id: change for change in items if isinstance(change, Change)}
    return Notification(
        blocked={node_id: scenario_node(change.node) for node_id, change in last.items() if not change.type.frees},
        unblocked={node_id: change.type.value for node_id, change in last.items() if change.type.frees},
    )


def scenario_node(node: BlockedNode) -> Node:
    """The node as scenarios describe it."""
    return Node(node.cause, node.action, brief=not node.permanent)


@pytest.fixture
def watched(listener_client: httpx.Client, listener_service: ServiceProcess) -> Iterator[WatchSubject]:
    with BlocklistClient(listener_service.url) as reader, ExitStack() as stack:
        yield WatchSubject(listener_client, reader, stack)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_watch(scenario: Scenario, watched: WatchSubject) -> None:
    run(scenario, watched)
