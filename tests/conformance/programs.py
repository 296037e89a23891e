"""Parties of a scenario that are real programs, such as a manager; the other parties read watches."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Final, Generic, Protocol, TypeVar

import httpx

from blocklist import BlocklistClient
from blocklist.model.node import BlockedNode
from tests.conformance.scenario import RM, Node, Notification, Register, Report
from tests.conformance.scenarios import SCENARIOS
from tests.conformance.test_watch import WatchSubject
from tests.integration.bodies import current_list
from tests.integration.process import wait_until

WITH_MANAGERS: Final = [
    scenario
    for scenario in SCENARIOS
    if any(isinstance(it.action, Register) and it.action.role == RM for it in scenario.steps)
]
WITHOUT_REPORTS: Final = [
    scenario for scenario in SCENARIOS if not any(isinstance(it.action, Report) for it in scenario.steps)
]
"""For programs that report what runs, and nothing else."""
T = TypeVar("T")


class Program(Protocol):
    """`running` until it has ended, by itself or by `close`."""

    calls: list[Notification]

    @property
    def running(self) -> bool: ...

    def close(self) -> None: ...


P = TypeVar("P", bound=Program)


class Differences(Generic[T]):
    """What a program has in force after each step, as notifications of what is new: `calls`."""

    def __init__(self, node_of: Callable[[T], Node], reason: Callable[[str, T], str]) -> None:
        """`reason` says why a node is free, by its name and what was in force."""
        self.calls: list[Notification] = []
        self._node_of, self._reason = node_of, reason
        self._nodes: Mapping[str, T] = {}
        self._received = False

    def receive(self, nodes: Mapping[str, T]) -> None:
        """Add what has changed since the last call as a notification."""
        blocked = {name: self._node_of(node) for name, node in nodes.items() if self._nodes.get(name) != node}
        freed = {name: self._reason(name, node) for name, node in self._nodes.items() if name not in nodes}
        if blocked or freed:
            self.calls.append(Notification(blocked=blocked, unblocked=freed, snapshot=not self._received))
        self._received, self._nodes = True, nodes


class ProgramSubject(WatchSubject, Generic[P]):
    """`programs` are the parties that are real programs. A subclass registers them and reads what is in force there."""

    def __init__(self, client: httpx.Client, reader: BlocklistClient, stack: ExitStack) -> None:
        super().__init__(client, reader, stack)
        self.programs: dict[str, P] = {}
        stack.callback(self.close)

    def receive(self, program: P, revision: int) -> None:
        """Read what the program has in force; it has acknowledged the revision."""
        raise NotImplementedError

    def leave(self, party: str) -> None:
        if party not in self.programs:
            return super().leave(party)
        self.programs[party].close()
        assert self.client.get(f"/listeners/{self.listeners.pop(party)}").status_code == 404
        return None

    def notifications(self, party: str, number: int) -> list[Notification]:
        if party not in self.programs:
            return super().notifications(party, number)
        program = self.programs[party]
        if program.running:
            revision = current_list(self.client)[0]
            self.await_acknowledged(party, revision)
            self.receive(program, revision)
        return program.calls

    def await_acknowledged(self, party: str, revision: int) -> None:
        """Wait until the party has acknowledged the revision."""

        def has_acked() -> bool:
            answer = self.client.get(f"/listeners/{self.listeners[party]}")
            acked = answer.json()["ackedRevision"] if answer.is_success else None
            return acked is not None and int(acked) >= revision

        wait_until(has_acked, seconds=150)

    def close(self) -> None:
        """End what still runs."""
        for program in self.programs.values():
            program.close()


def why_free(_name: str, node: BlockedNode) -> str:
    """Why a block is not in force any more."""
    return "expired" if node.ended(time.time_ns() // 1_000_000) else "unblocked"
