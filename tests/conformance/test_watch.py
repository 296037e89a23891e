"""The same over the watch: each party reads it with the client, and acknowledges by heartbeat."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise

import httpx
import pytest

from blocklist import BlocklistClient, Change, Snapshot
from blocklist.client.client import Watch
from blocklist.model.node import BlockedNode
from tests.conformance.runner import run
from tests.conformance.scenario import Node, Register, Scenario, Told
from tests.conformance.scenarios import SCENARIOS
from tests.conformance.service import Service
from tests.integration.bodies import held
from tests.integration.process import ServiceProcess, wait_until


class Party:
    """Reads a watch in a thread of its own; `ends` are the revisions after each step."""

    def __init__(self, watch: Watch) -> None:
        self.items: list[Snapshot | Change] = []
        self.ends = [-1]
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

    def calls(self) -> list[Told]:
        """What it heard: what one step changed is one call, though it is an event for each change."""
        said = [
            _told([item for item in self.items if begin < item.revision <= end]) for begin, end in pairwise(self.ends)
        ]
        return [told for told in said if told is not None]

    def _read(self) -> None:
        for item in self._watch:
            self.items.append(item)


class Watched(Service):
    """Each party brings itself up to the present revision after a step, and says so in a heartbeat."""

    def __init__(self, client: httpx.Client, reader: BlocklistClient, stack: ExitStack) -> None:
        super().__init__(client)
        self._reader, self._stack = reader, stack
        self._parties: dict[str, Party] = {}

    def register(self, step: Register) -> None:
        self.enrol(step)
        self._parties[step.party] = party = Party(self._reader.watch())
        self._stack.callback(party.close)

    def leave(self, party: str) -> None:
        self._parties[party].close()
        self.strike(party)

    def fenced(self, party: str) -> None:
        """Its heartbeat says that another has taken over: it reads no more."""
        super().fenced(party)
        self._parties[party].close()

    def heard(self, party: str, number: int) -> list[Told]:
        reader = self._parties[party]
        if reader.reading:
            revision = held(self.client)[0]
            wait_until(lambda: reader.reached(revision))
            reader.ends.append(revision)
            assert self.heartbeat(party, ackedRevision=revision).status_code == 200
            assert self.client.get(f"/listeners/{self.listeners[party]}").json()["lagRevisions"] == 0
        return reader.calls()


def _told(items: list[Snapshot | Change]) -> Told | None:
    """One call for what a step changed; nothing for nothing, and for the snapshot of an empty list."""
    if not items or (isinstance(items[0], Snapshot) and not items[0].nodes):
        return None
    if isinstance(items[0], Snapshot):
        return Told(blocked={node_id: _plain(node) for node_id, node in items[0].nodes.items()}, snapshot=True)
    last = {change.node.id: change for change in items if isinstance(change, Change)}
    return Told(
        blocked={node_id: _plain(change.node) for node_id, change in last.items() if not change.type.frees},
        unblocked={node_id: change.type.value for node_id, change in last.items() if change.type.frees},
    )


def _plain(node: BlockedNode) -> Node:
    return Node(node.cause, node.action, brief=not node.permanent)


@pytest.fixture
def watched(desk: httpx.Client, listened: ServiceProcess) -> Iterator[Watched]:
    with BlocklistClient(listened.url) as reader, ExitStack() as stack:
        yield Watched(desk, reader, stack)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_watch(scenario: Scenario, watched: Watched) -> None:
    run(scenario, watched)
