"""The rules alone: tracker, draft and listeners, with a manual clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import pytest

from blocklist.model.changes import Change, Snapshot
from blocklist.model.draft import BlocklistTracker, Draft
from blocklist.model.errors import ConflictError
from blocklist.model.listener import FencedError, Listener, ListenerRole, Registration, heartbeat, register
from blocklist.model.node import PERMANENT, BlockedNode
from tests.conformance.runner import run
from tests.conformance.scenario import Node, Notification, Register, Scenario
from tests.conformance.scenarios import SCENARIOS

BRIEF = 1_000


class InProcessSubject:
    """After each operation, notifies each listener once of everything after its acknowledged revision."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.tracker = BlocklistTracker(Snapshot(revision=0, history="00c0ffee"))
        self.log: list[Change] = []
        self.listeners: dict[str, Listener] = {}
        self.calls: dict[str, list[Notification]] = defaultdict(list)
        self.task_managers: dict[str, dict[str, str]] = {}

    def register(self, step: Register) -> None:
        before = self.listeners.get(step.id)
        wanted = Registration(id=step.id, role=ListenerRole(step.role), session=step.party)
        empty = not self.tracker.blocked(self.now)
        self.listeners[step.id] = register(before, wanted, now=self.now, revision=self.tracker.revision, empty=empty)
        if before is not None:
            with pytest.raises(FencedError):
                heartbeat(self.listeners[step.id], before.session, None, now=self.now, revision=self.tracker.revision)
        self._fan_out()

    def leave(self, party: str) -> None:
        del self.listeners[self._of(party).id]
        self.task_managers.pop(party, None)

    def block(self, nodes: Mapping[str, Node], *, merge: bool) -> bool:
        draft = Draft(self.tracker, self.now)
        wanted = {node_id: (self._node(node_id, node), merge) for node_id, node in nodes.items()}
        try:
            draft.block_many(wanted)
        except ConflictError:
            return False
        self._commit(draft)
        return True

    def unblock(self, node: str) -> None:
        draft = Draft(self.tracker, self.now)
        draft.unblock(node)
        self._commit(draft)

    def expire(self) -> None:
        self.now += BRIEF
        draft = Draft(self.tracker, self.now)
        for node in self.tracker.ended(self.now):
            draft.expire(node.id)
        self._commit(draft)

    def report(self, party: str, task_managers: Mapping[str, str]) -> None:
        self.task_managers[party] = dict(task_managers)

    def blocked(self, task_manager: str) -> bool | None:
        nodes = [known[task_manager] for known in self.task_managers.values() if task_manager in known]
        return nodes[-1] in self.tracker.blocked(self.now) if nodes else None

    def notifications(self, party: str, number: int) -> list[Notification]:
        return [call for call in self.calls[party] if not call.tells_nothing]

    def _of(self, party: str) -> Listener:
        return next(listener for listener in self.listeners.values() if listener.session == party)

    def _node(self, node_id: str, node: Node) -> BlockedNode:
        end = self.now + BRIEF if node.brief else PERMANENT
        return BlockedNode(id=node_id, action=node.action, start=self.now, end=end, cause=node.cause)

    def _commit(self, draft: Draft) -> None:
        for change in draft.changes:
            self.tracker.apply(change)
        self.log += draft.changes
        self._fan_out()

    def _fan_out(self) -> None:
        revision = self.tracker.revision
        for listener in list(self.listeners.values()):
            if listener.is_behind(revision):
                self.calls[listener.session].append(self._push(listener.acked))
            self.listeners[listener.id] = heartbeat(
                listener, listener.session, revision, now=self.now, revision=revision
            )

    def _push(self, acked: int | None) -> Notification:
        if acked is None:
            blocked = self.tracker.blocked(self.now)
            return Notification(
                blocked={node_id: _scenario_node(node) for node_id, node in blocked.items()}, snapshot=True
            )
        last = {change.node.id: change for change in self.log[acked:]}
        return Notification(
            blocked={node_id: _scenario_node(change.node) for node_id, change in last.items() if not change.type.frees},
            unblocked={node_id: change.type.value for node_id, change in last.items() if change.type.frees},
        )


def _scenario_node(node: BlockedNode) -> Node:
    return Node(node.cause, node.action, brief=not node.permanent)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_in_process(scenario: Scenario) -> None:
    run(scenario, InProcessSubject())
