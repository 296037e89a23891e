"""A running service as the subject of a scenario; subclasses receive the notifications."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from blocklist.model.node import BlockAction
from tests.conformance.scenario import Node, Register
from tests.integration.bodies import PERMANENT, all_changes, later
from tests.integration.process import wait_until


class ServiceSubject:
    """The list and its TaskManagers over HTTP. A party's id is its session id."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.listeners: dict[str, str] = {}
        """Party -> listener."""
        self.brief: set[str] = set()
        """Nodes that were blocked for a short time at least once."""

    def block(self, nodes: Mapping[str, Node], *, merge: bool) -> bool:
        self.brief |= {node_id for node_id, node in nodes.items() if node.brief}
        bodies = {node_id: _body(node, merge=merge) for node_id, node in nodes.items()}
        answer = self.client.put("/blocklist/nodes", json=bodies)
        assert answer.status_code in {200, 409}, answer.text
        return answer.status_code == 200

    def unblock(self, node: str) -> None:
        assert self.client.delete(f"/blocklist/nodes/{node}").status_code == 200

    def expire(self) -> None:
        """Wait until the brief blocks have expired in the change log."""
        wait_until(lambda: not any(map(self._is_brief, self.brief)))

    def blocked(self, task_manager: str) -> bool | None:
        answer = self.client.get(f"/taskmanagers/{task_manager}")
        assert answer.status_code in {200, 404}, answer.text
        return bool(answer.json()["blocked"]) if answer.is_success else None

    def report(self, party: str, task_managers: Mapping[str, str]) -> None:
        assert self.heartbeat(party, taskManagers=dict(task_managers)).status_code == 200

    def heartbeat(self, party: str, **fields: object) -> httpx.Response:
        body = {"sessionId": party, **fields}
        return self.client.post(f"/listeners/{self.listeners[party]}/heartbeat", json=body)

    def register_party(self, step: Register, **fields: object) -> None:
        """Register; an earlier party of the same listener is fenced from now on."""
        former = [party for party, listener in self.listeners.items() if listener == step.id]
        self.listeners[step.party] = step.id
        body = {"role": step.role, "sessionId": step.party, **fields}
        answer = self.client.put(f"/listeners/{step.id}", json=body)
        assert answer.status_code in {200, 201}, answer.text
        for party in former:
            self.fenced(party)

    def fenced(self, party: str) -> None:
        assert self.heartbeat(party).status_code == 409

    def deregister_party(self, party: str) -> None:
        """Deregister."""
        assert self.client.delete(f"/listeners/{self.listeners.pop(party)}").status_code == 204

    def _is_brief(self, node_id: str) -> bool:
        last = all_changes(self.client, node=node_id)[-1]
        return last["type"] in {"blocked", "merged"} and last["node"]["endTimestamp"] != PERMANENT


def parse_node(node: Mapping[str, Any]) -> Node:
    """A node of a response."""
    return Node(node["cause"], BlockAction[node["action"]], brief=node["endTimestamp"] != PERMANENT)


def _body(node: Node, *, merge: bool) -> dict[str, Any]:
    """A brief block outlasts the steps before its end."""
    end = {"endTimestamp": later(2)} if node.brief else {}
    return {"action": node.action.name, "cause": node.cause, "allowMerge": merge, **end}
