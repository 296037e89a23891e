"""A client that changes the list continuously and records what was acknowledged."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import httpx

from tests.integration.bodies import block, later, revision_of
from tests.integration.process import ServiceProcess

RETRY_SECONDS: Final = 0.1
"""Interval between attempts while the service is down."""
NODES_PER_BATCH: Final = 3
"""Nodes of one request that blocks several."""


@dataclass
class Writer:
    """Blocks its own nodes, one or several at once, permanently or briefly; merges and unblocks.

    A request without a response may have been executed or not, so its nodes are not used again.
    """

    name: str
    acknowledged: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Revision -> (type of the change, node id)."""
    unanswered: int = 0
    _nodes: int = 0
    _blocked: list[str] = field(default_factory=list)

    def run(self, service: ServiceProcess, stop: threading.Event) -> None:
        with service.client() as client:
            while not stop.is_set():
                try:
                    self._change(client)
                except httpx.TransportError:
                    self.unanswered += 1
                    self._wait_until_up(client, stop)

    def _wait_until_up(self, client: httpx.Client, stop: threading.Event) -> None:
        while not stop.wait(RETRY_SECONDS):
            with suppress(httpx.TransportError):
                client.get("/healthz")
                return

    def _change(self, client: httpx.Client) -> None:
        number = random.random()
        if self._blocked and number < 0.45:
            self._unblock(client, self._any_blocked())
        elif self._blocked and number < 0.6:
            self._merge(client, self._any_blocked())
        elif number < 0.7:
            self._block_for_a_moment(client)
        elif number < 0.8:
            self._block_together(client)
        else:
            self._block(client)

    def _any_blocked(self) -> str:
        return self._blocked.pop(random.randrange(len(self._blocked)))

    def _block(self, client: httpx.Client) -> None:
        [node_id] = self._new_ids(1)
        response = client.put(f"/blocklist/nodes/{node_id}", json=block())
        self._record(response, 201, "blocked", [node_id])
        self._blocked.append(node_id)

    def _block_for_a_moment(self, client: httpx.Client) -> None:
        [node_id] = self._new_ids(1)
        response = client.put(f"/blocklist/nodes/{node_id}", json=block(endTimestamp=later(1)))
        self._record(response, 201, "blocked", [node_id])

    def _block_together(self, client: httpx.Client) -> None:
        ids = self._new_ids(NODES_PER_BATCH)
        response = client.put("/blocklist/nodes", json={node_id: block() for node_id in ids})
        self._record(response, 200, "blocked", ids)
        self._blocked += ids

    def _merge(self, client: httpx.Client, node_id: str) -> None:
        [cause] = self._new_ids(1)
        response = client.put(f"/blocklist/nodes/{node_id}", json=block(cause=cause, allowMerge=True))
        self._record(response, 202, "merged", [node_id])
        self._blocked.append(node_id)

    def _unblock(self, client: httpx.Client, node_id: str) -> None:
        self._record(client.delete(f"/blocklist/nodes/{node_id}"), 200, "unblocked", [node_id])

    def _new_ids(self, number: int) -> list[str]:
        """Node ids that were not used before."""
        self._nodes += number
        return [f"{self.name}-{self._nodes - n}" for n in reversed(range(number))]

    def _record(self, response: httpx.Response, status: int, kind: str, ids: Sequence[str]) -> None:
        """Record changes; the response has the revision of the last one, the others have the revisions before it."""
        assert response.status_code == status, response.text
        for revision, node_id in enumerate(ids, start=revision_of(response) - len(ids) + 1):
            assert revision not in self.acknowledged, f"revision {revision} was acknowledged twice"
            self.acknowledged[revision] = (kind, node_id)
