"""Runs a scenario against anything that can be told: after each step all that was heard is just what must be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Protocol

from tests.conformance.scenario import Block, Expire, Leave, Node, Register, Report, Scenario, Step, Told, Unblock

END = {"the-end": Node("the end")}
"""Blocked last: who was told more than he should have been was told it before this."""


class Subject(Protocol):
    """What tells, seen from outside. A party is a registered listener, in one session."""

    def register(self, step: Register) -> None: ...

    def leave(self, party: str) -> None: ...

    def block(self, nodes: Mapping[str, Node], *, merge: bool) -> bool:
        """Whether it was not refused."""
        ...

    def unblock(self, node: str) -> None: ...

    def expire(self) -> None: ...

    def report(self, party: str, task_managers: Mapping[str, str]) -> None: ...

    def blocked(self, task_manager: str) -> bool | None: ...

    def heard(self, party: str, number: int) -> list[Told]:
        """All calls that a party got, when it has got at least so many."""
        ...


def run(scenario: Scenario, subject: Subject) -> None:
    expected: dict[str, list[Told]] = defaultdict(list)
    present: dict[str, str] = {}
    for step in scenario.steps:
        _perform(step, subject)
        _enter(step, present)
        _compare(step, subject, expected)
    end = Step(Block(END), {party: Told(blocked=END) for party in present.values()})
    _perform(end, subject)
    _compare(end, subject, expected)


def _enter(step: Step, present: dict[str, str]) -> None:
    """Keep who is registered at present: listener -> party."""
    match step.action:
        case Register() as registration:
            present[registration.id] = registration.party
        case Leave(party):
            for listener in [known for known, it in present.items() if it == party]:
                del present[listener]
        case _:
            pass


def _perform(step: Step, subject: Subject) -> None:
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


def _compare(step: Step, subject: Subject, expected: dict[str, list[Told]]) -> None:
    if isinstance(step.action, Register):
        expected[step.action.party] = []
    for party, told in step.hears.items():
        expected[party].append(told)
    for party, calls in expected.items():
        assert subject.heard(party, len(calls)) == calls, (party, step)
    for task_manager, blocked in step.blocked.items():
        assert subject.blocked(task_manager) is blocked, (task_manager, step)
