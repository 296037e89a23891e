"""Clients that send requests and record the answers."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import httpx

from tests.chaos.operation import CHANGES, Kind, NodeParser, Operation, WallClock
from tests.chaos.workload import Request, Workload
from tests.integration.process import NO_TLS

_TIMEOUT_SECONDS: Final = (0.2, 3.0)
"""Minimum and maximum timeout of a request."""
_THINK_SECONDS: Final = 0.03
"""Mean pause between two requests."""
_BACKOFF_SECONDS: Final = 0.25
"""Additional pause after a request without an answer, so that such requests do not dominate."""
_SWITCH_PROBABILITY: Final = 0.3
"""Probability that the next request goes to another replica; 1 after a request without an answer."""


class HighestRevision:
    """The highest revision that any client has seen."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._revision = 0

    def observe(self, revision: int) -> None:
        with self._lock:
            self._revision = max(self._revision, revision)

    @property
    def revision(self) -> int:
        with self._lock:
            return self._revision


class Client:
    """Sends requests to replicas, one after another, and records them in `operations`."""

    def __init__(self, number: int, urls: Sequence[str], clock: WallClock, horizon: HighestRevision) -> None:
        self.operations: list[Operation] = []
        self._number = number
        self._clock = clock
        self._highest_revision = horizon
        self._nodes = NodeParser()
        self._replicas = [httpx.Client(base_url=url, trust_env=False, verify=NO_TLS) for url in urls]

    def close(self) -> None:
        for replica in self._replicas:
            replica.close()

    def run(self, seed: str, stop: threading.Event) -> None:
        """Send random requests until `stop` is set."""
        rng = random.Random(f"{seed} client {self._number}")
        workload = Workload(str(self._number), rng, lambda: self._clock.now() // 1_000_000)
        again: Request | None = None
        replica = rng.randrange(len(self._replicas))
        while not stop.wait(rng.expovariate(1 / _THINK_SECONDS)):
            request = again or workload.next()
            ordered = request.kind in CHANGES or rng.random() < 0.7
            timeout = rng.uniform(*_TIMEOUT_SECONDS)
            done = self.request(request, replica, with_min_revision=ordered, timeout_seconds=timeout)
            if done.status is None:
                stop.wait(_BACKOFF_SECONDS)
            if done.status is None or rng.random() < _SWITCH_PROBABILITY:
                replica = rng.randrange(len(self._replicas))
            again = request if done.unknown and request.kind is not Kind.PUT_MANY and rng.random() < 0.5 else None

    def request(self, request: Request, replica: int, *, with_min_revision: bool, timeout_seconds: float) -> Operation:
        """Send a request; `with_min_revision` makes a read name the highest revision that any client has seen.

        The time of invocation is taken before that revision, and the time of return after updating it. So a read names
        at least the revision of every operation that returned before it was invoked.
        """
        invoked = self._clock.now()
        reads = request.kind not in CHANGES
        min_revision = self._highest_revision.revision if reads and with_min_revision else None
        answer = self._send(request, replica, min_revision, timeout_seconds)
        if answer is not None and (revision := answer.headers.get("blocklist-revision")):
            self._highest_revision.observe(int(revision))
        operation = Operation(
            client=self._number,
            replica=replica,
            kind=request.kind,
            requested=request.requested,
            min_revision=min_revision,
            invoked=invoked,
            returned=self._clock.now(),
            **({} if answer is None else self._read(request, answer)),
        )
        self.operations.append(operation)
        return operation

    def _send(
        self, request: Request, replica: int, min_revision: int | None, timeout_seconds: float
    ) -> httpx.Response | None:
        params = {} if min_revision is None else {"minRevision": min_revision}
        # No gzip: each encoding has its own ETag.
        headers = {"Accept-Encoding": "identity"}
        try:
            return self._replicas[replica].request(
                request.method, request.path, json=request.body, params=params, headers=headers, timeout=timeout_seconds
            )
        except httpx.TransportError:
            return None

    def _read(self, request: Request, answer: httpx.Response) -> dict[str, Any]:
        nodes = {node_id: self._nodes.read(node_id, node) for node_id, node in _shown(request, answer).items()}
        several = request.kind is Kind.PUT_MANY and answer.status_code == 200
        revision = answer.headers.get("blocklist-revision")
        return {
            "status": answer.status_code,
            "revision": None if revision is None else int(revision),
            "history": answer.headers.get("blocklist-history"),
            "etag": answer.headers.get("etag"),
            "nodes": nodes,
            "statuses": {node_id: node["status"] for node_id, node in answer.json().items()} if several else {},
            "retry_after": "retry-after" in answer.headers,
        }


def _shown(request: Request, answer: httpx.Response) -> Mapping[str, Any]:
    """The nodes in a response, by id."""
    status, kind = answer.status_code, request.kind
    if status == 409:
        body = answer.json()
        return dict(body["blockedNodes"]) if kind is Kind.PUT_MANY else {body["blockedNode"]["id"]: body["blockedNode"]}
    if not answer.is_success or kind is Kind.DELETE:
        return {}
    nodes: Any = answer.json()
    return dict(nodes) if kind in {Kind.LIST, Kind.PUT_MANY} else {nodes["id"]: nodes}
