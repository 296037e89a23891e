"""The same over HTTP: each party is a real callback of a running service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from tests.conformance.runner import run
from tests.conformance.scenario import Register, Scenario, Told
from tests.conformance.scenarios import SCENARIOS
from tests.conformance.service import Service, told_node
from tests.integration.receiver import Push, Receiver, receiving


class Pushes(Service):
    """Heartbeats are left out; everything else that arrives is a call."""

    def __init__(self, client: httpx.Client, stack: ExitStack) -> None:
        super().__init__(client)
        self._stack = stack
        self._receivers: dict[str, Receiver] = {}

    def register(self, step: Register) -> None:
        receiver = self._stack.enter_context(receiving(session=step.party))
        self._receivers[step.party] = receiver
        self.enrol(step, callbackUrl=receiver.url)

    def leave(self, party: str) -> None:
        self.strike(party)

    def heard(self, party: str, number: int) -> list[Told]:
        receiver = self._receivers[party]
        receiver.wait(lambda it: len(it.applied) >= number)
        assert receiver.repeated == receiver.strangers == 0
        return [_told(push) for push in receiver.applied]


def _told(push: Push) -> Told:
    return Told(
        blocked={node["id"]: told_node(node) for node in push.body["blocked"]},
        unblocked={node["id"]: node["type"] for node in push.body["unblocked"]},
        snapshot=push.body["snapshot"],
    )


@pytest.fixture
def pushes(desk: httpx.Client) -> Iterator[Pushes]:
    with ExitStack() as stack:
        yield Pushes(desk, stack)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_push(scenario: Scenario, pushes: Pushes) -> None:
    run(scenario, pushes)
