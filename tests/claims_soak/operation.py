"""Requests, and what their clients saw of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import httpx

from tests.chaos.operation import WallClock
from tests.claims_soak.model import Effect
from tests.integration.process import NO_TLS

_TIMEOUT_SECONDS: Final = 10.0
_MILLISECOND: Final = 1_000_000


class Kind(StrEnum):
    """Kind of a request."""

    PUT = "PUT of a node"
    PUT_MERGED = "PUT with allowMerge"
    PUT_MANY = "PUT of several nodes"
    UNBLOCK = "DELETE of a node"
    UNBLOCK_MANY = "DELETE of several nodes"
    PUT_CLAIM = "PUT of a claim"
    PUT_CLAIMS = "PUT of several claims"
    REMOVE_CLAIM = "DELETE of a claim"
    REMOVE_CLAIMS = "DELETE of several claims"
    ALERTS = "post of alerts"
    READ_LIST = "GET of the list"
    READ_CLAIMS = "GET of a node's claims"
    HEARTBEAT = "heartbeat"


UNBLOCKS: Final = frozenset({Kind.UNBLOCK, Kind.UNBLOCK_MANY})
PUTS_OF_SEVERAL: Final = frozenset({Kind.PUT_MANY, Kind.PUT_CLAIMS})


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request.

    `effects` are what it does to each node; a read names its `node`.
    `earliest_end` is the earliest end that it asks for (Unix ms): a PUT is a 400 once it has passed.
    """

    kind: Kind
    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    effects: Mapping[str, Effect] = field(default_factory=dict)
    node: str | None = None
    earliest_end: int = 2**63


@dataclass(eq=False, frozen=True, kw_only=True)
class Operation:
    """A request and its response. `status` is None without a response; times are Unix milliseconds."""

    request: Request
    replica: int
    invoked: int
    returned: int
    status: int | None = None
    revision: int | None = None
    history: str | None = None
    body: Any = None

    @property
    def acknowledged(self) -> bool:
        return self.status in {200, 201, 202}

    @property
    def unknown(self) -> bool:
        """Whether it may or may not have been executed."""
        return self.status in {None, 503}

    def __str__(self) -> str:
        it = self.request
        sent = f"{it.kind} {it.path} {dict(it.params) or ''} {it.body if it.body is not None else ''}"
        return f"{sent} at replica {self.replica} from {self.invoked} to {self.returned}: {self.status} {self.revision}"


class RecordingClient:
    """Sends the requests of one actor, one after another, and puts what it saw into `seen`."""

    def __init__(self, urls: Sequence[str], clock: WallClock, seen: deque[Operation]) -> None:
        self.replicas = len(urls)
        self._clock = clock
        self._seen = seen
        self._clients = [
            httpx.Client(base_url=url, timeout=_TIMEOUT_SECONDS, trust_env=False, verify=NO_TLS) for url in urls
        ]

    def now(self) -> int:
        return self._clock.now() // _MILLISECOND

    def unrecorded(self, replica: int) -> httpx.Client:
        """For requests that are not recorded."""
        return self._clients[replica]

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def send(self, request: Request, replica: int) -> Operation:
        invoked = self.now()
        answer = self._answer(request, replica)
        operation = Operation(
            request=request,
            replica=replica,
            invoked=invoked,
            returned=self.now(),
            **({} if answer is None else _read(answer)),
        )
        self._seen.append(operation)
        return operation

    def _answer(self, request: Request, replica: int) -> httpx.Response | None:
        try:
            return self._clients[replica].request(
                request.method, request.path, params=dict(request.params), json=request.body
            )
        except httpx.TransportError:
            return None


def _read(answer: httpx.Response) -> dict[str, Any]:
    revision = answer.headers.get("blocklist-revision")
    return {
        "status": answer.status_code,
        "revision": None if revision is None else int(revision),
        "history": answer.headers.get("blocklist-history"),
        "body": answer.json() if answer.content else None,
    }
