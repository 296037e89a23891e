"""The scenarios over push: each party is a real callback of a running service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from tests.conformance.runner import run
from tests.conformance.scenario import RM, Notification, Register, Scenario
from tests.conformance.scenarios import SCENARIOS
from tests.conformance.service import ServiceSubject, parse_node
from tests.integration.receiver import Push, Receiver, receiving


class PushSubject(ServiceSubject):
    """Every received push is a notification, except heartbeats."""

    def __init__(self, client: httpx.Client, stack: ExitStack) -> None:
        super().__init__(client)
        self._stack = stack
        self._receivers: dict[str, Receiver] = {}

    def register(self, step: Register) -> None:
        receiver = self._stack.enter_context(receiving(session=step.party))
        self._receivers[step.party] = receiver
        self.register_party(step, callbackUrl=receiver.url)
        if step.role == RM:
            # The whole list, also an empty one; what changes before it is sent would be part of it.
            receiver.wait(lambda it: bool(it.applied))

    def leave(self, party: str) -> None:
        self.deregister_party(party)

    def notifications(self, party: str, number: int) -> list[Notification]:
        receiver = self._receivers[party]
        receiver.wait(lambda it: len(_notifications(it)) >= number)
        assert receiver.repeated == receiver.wrong_session == 0
        return _notifications(receiver)


def _notifications(receiver: Receiver) -> list[Notification]:
    return [found for push in receiver.applied if not (found := _notification(push)).tells_nothing]


def _notification(push: Push) -> Notification:
    return Notification(
        blocked={node["id"]: parse_node(node) for node in push.body["blocked"]},
        unblocked={node["id"]: node["type"] for node in push.body["unblocked"]},
        snapshot=push.body["snapshot"],
    )


@pytest.fixture
def pushes(listener_client: httpx.Client) -> Iterator[PushSubject]:
    with ExitStack() as stack:
        yield PushSubject(listener_client, stack)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_push(scenario: Scenario, pushes: PushSubject) -> None:
    run(scenario, pushes)
