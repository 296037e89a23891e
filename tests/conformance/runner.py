"""Runs a scenario against a subject: after each step every party has received exactly the expected notifications."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Protocol

from tests.conformance.scenario import (
    Block,
    Expire,
    Leave,
    Node,
    Notification,
    Register,
    Report,
    Scenario,
    Step,
    Unblock,
)

END = {"the-end": Node("the end")}
"""Blocked last: any unexpected notification arrives before this one."""


class Subject(Protocol):
    """The system under test, seen from outside. A party is one session of a registered listener."""

    def register(self, step: Register) -> None: ...

    def leave(self, party: str) -> None: ...

    def block(self, nodes: Mapping[str, Node], *, merge: bool) -> bool:
        """False if it was a conflict."""
        ...

    def unblock(self, node: str) -> None: ...

    def expire(self) -> None: ...

    def report(self, party: str, task_managers: Mapping[str, str]) -> None: ...

    def blocked(self, task_manager: str) -> bool | None: ...

    def notifications(self, party: str, number: int) -> list[Notification]:
        """All notifications of a party, once it has received at least `number`."""
        ...


def run(scenario: Scenario, subject: Subject) -> None:
    expected: dict[str, list[Notification]] = defaultdict(list)
    registered: dict[str, str] = {}
    for step in scenario.steps:
        _execute(step, subject)
        _track_registration(step, registered)
        _compare(step, subject, expected)
    end = Step(Block(END), {party: Notification(blocked=END) for party in registered.values()})
    _execute(end, subject)
    _compare(end, subject, expected)


def _track_registration(step: Step, registered: dict[str, str]) -> None:
    """Record the registered party of each listener."""
    match step.action:
        case Register() as registration:
            registered[registration.id] = registration.party
        case Leave(party):
            for listener in [known for known, it in registered.items() if it == party]:
                del registered[listener]
        case _:
            pass


def _execute(step: Step, subject: Subject) -> None:
    match step.action:
        case Register() as registration:
            subject.register(registration)
        case Leave(party):
            subject.leave(party)
        case Block(nodes, merge, refused):
            assert subject.block(nodes, merge=merge) is not refused
        case Unblock(node):
            subject.unblock(node)
        case Expire():
            subject.expire()
        case Report(party, task_managers):
            subject.report(party, task_managers)


def _compare(step: Step, subject: Subject, expected: dict[str, list[Notification]]) -> None:
    if isinstance(step.action, Register):
        expected[step.action.party] = []
    for party, notification in step.notifies.items():
        expected[party].append(notification)
    for party, calls in expected.items():
        assert subject.notifications(party, len(calls)) == calls, (party, step)
    for task_manager, blocked in step.blocked.items():
        assert subject.blocked(task_manager) is blocked, (task_manager, step)
