"""Requests, and what their clients saw of them."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import httpx

from tests.chaos.model import Effect
from tests.integration.process import NO_TLS


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
    READ_NODE = "GET of a node"
    READ_CLAIMS = "GET of a node's claims"
    HEARTBEAT = "heartbeat"


UNBLOCKS: Final = frozenset({Kind.UNBLOCK, Kind.UNBLOCK_MANY})
PUTS: Final = frozenset({Kind.PUT, Kind.PUT_MERGED})
PUTS_OF_SEVERAL: Final = frozenset({Kind.PUT_MANY, Kind.PUT_CLAIMS})
READS: Final = frozenset({Kind.READ_LIST, Kind.READ_NODE, Kind.READ_CLAIMS})


class WallClock:
    """Unix milliseconds by the monotonic clock; comparable with the clocks of the replicas on this machine."""

    def __init__(self) -> None:
        self._offset = time.time_ns() - time.monotonic_ns()

    def now(self) -> int:
        return (time.monotonic_ns() + self._offset) // 1_000_000

    def error(self) -> int:
        """Milliseconds by which the machine's clock was set since."""
        return abs(time.time_ns() // 1_000_000 - self.now())


class HighestRevision:
    """The highest revision that any client has seen."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.revision = 0

    def observe(self, revision: int) -> None:
        with self._lock:
            self.revision = max(self.revision, revision)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request.

    `effects` are what it does to each node; the nodes `must_be_free` are without allowMerge; a read names its `node`.
    `earliest_end` is the earliest end that it asks for (Unix ms): a PUT is a 400 once it has passed. An `ordered` read
    asks for the highest revision that any client has seen.
    """

    kind: Kind
    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    effects: Mapping[str, Effect] = field(default_factory=dict)
    must_be_free: frozenset[str] = frozenset()
    node: str | None = None
    earliest_end: int = 2**63
    ordered: bool = False


@dataclass(eq=False, frozen=True, kw_only=True)
class Operation:
    """A request and its response. `status` is None without a response; times are Unix milliseconds."""

    client: str
    request: Request
    replica: int
    invoked: int
    returned: int
    min_revision: int = 0
    status: int | None = None
    revision: int | None = None
    history: str | None = None
    etag: str | None = None
    retry_after: bool = False
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
        where = f"of {self.client} at replica {self.replica} from {self.invoked} to {self.returned}"
        return f"{sent} {where}: {self.status} {self.revision}"


class RecordingClient:
    """Sends the requests of one actor, one after another, and puts what it saw into `seen`.

    The timeout of each is drawn from `timeouts` (seconds).
    """

    def __init__(
        self,
        name: str,
        urls: Sequence[str],
        clock: WallClock,
        highest: HighestRevision,
        seen: deque[Operation],
        timeouts: tuple[float, float],
    ) -> None:
        self.replicas = len(urls)
        self.now = clock.now
        self._name, self._highest, self._seen, self._timeouts = name, highest, seen, timeouts
        self._clients = [httpx.Client(base_url=url, trust_env=False, verify=NO_TLS) for url in urls]

    def unrecorded(self, replica: int) -> httpx.Client:
        """For requests that are not recorded."""
        return self._clients[replica]

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def send(self, request: Request, replica: int) -> Operation:
        """Send it, and record the answer.

        The time of invocation is taken before the highest revision is read, and the time of return after it is updated.
        So an ordered read names at least the revision of every operation that returned before it was invoked.
        """
        invoked = self.now()
        least = self._highest.revision if request.ordered else 0
        answer = self._answer(request, replica, least)
        seen = {} if answer is None else _read(answer)
        if seen.get("revision"):
            self._highest.observe(seen["revision"])
        operation = Operation(
            client=self._name,
            request=request,
            replica=replica,
            invoked=invoked,
            min_revision=least,
            returned=self.now(),
            **seen,
        )
        self._seen.append(operation)
        return operation

    def _answer(self, request: Request, replica: int, least: int) -> httpx.Response | None:
        params = {**request.params, "minRevision": least} if least else dict(request.params)
        try:
            return self._clients[replica].request(
                request.method,
                request.path,
                params=params,
                json=request.body,
                # Each encoding has an ETag of its own.
                headers={"Accept-Encoding": "identity"},
                timeout=random.uniform(*self._timeouts),
            )
        except httpx.TransportError:
            return None


def _read(answer: httpx.Response) -> dict[str, Any]:
    revision = answer.headers.get("blocklist-revision")
    return {
        "status": answer.status_code,
        "revision": None if revision is None else int(revision),
        "history": answer.headers.get("blocklist-history"),
        "etag": answer.headers.get("etag"),
        "retry_after": "retry-after" in answer.headers,
        "body": answer.json() if answer.content else None,
    }
