"""A listener's callback as a real HTTP server on loopback, which applies the pushes to its own list.

Each push must be signed, in order, without gaps, and for the registered session. Violations are collected in
`faults`, and fail the test when the receiver is left.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import httpx
from standardwebhooks import Webhook, WebhookVerificationError

from tests.integration.process import Until, wait_until

Json = dict[str, Any]
FIELDS: Final = frozenset(
    {"listenerId", "sessionId", "fromRevision", "toRevision", "history", "snapshot", "blocked", "unblocked"}
)


@dataclass(frozen=True, kw_only=True)
class Push:
    """One received request. `signatures` is, for each known secret, whether it verifies."""

    body: Json
    raw: bytes
    headers: dict[str, str]
    signatures: tuple[bool, ...]
    at: int
    """Monotonic nanoseconds, to order pushes."""

    @property
    def heartbeat(self) -> bool:
        return not self.body["snapshot"] and not self.body["blocked"] and not self.body["unblocked"]

    @property
    def revisions(self) -> tuple[int, int]:
        return self.body["fromRevision"], self.body["toRevision"]

    @property
    def ids(self) -> tuple[list[str], list[str]]:
        """The ids of the blocked nodes, and of the unblocked ones."""
        return [node["id"] for node in self.body["blocked"]], [node["id"] for node in self.body["unblocked"]]


Responder = Callable[["Receiver", Push, socket.socket], None]
"""Handles a push; may write a response to the socket."""


@dataclass
class Receiver:
    """A listener: its list, the revision it has applied, and all pushes."""

    url: str
    session: str = "s1"
    responder: Responder = field(default_factory=lambda: acknowledges)
    secrets: list[str] = field(default_factory=list)
    report: Json = field(default_factory=dict)
    """The report in its responses: taskManagers, runningTasks, refused."""
    nodes: dict[str, Json] = field(default_factory=dict)
    revision: int | None = None
    """None before the first push."""
    history: str | None = None
    """The history of that revision."""
    requests: list[Push] = field(default_factory=list)
    """All received pushes, with or without response, empty ones too."""
    applied: list[Push] = field(default_factory=list)
    """The pushes that were applied, in order; without empty and repeated ones."""
    repeated: int = 0
    wrong_session: int = 0
    """Number of pushes to another session than the current one; refused."""
    faults: list[str] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)
    """Set to release what `delays` holds back."""
    abandoned: int = 0
    """Number of responses that the service did not wait for."""
    lock: threading.RLock = field(default_factory=threading.RLock)

    def receive(self, push: Push) -> bool:
        """Check and apply the push; False if it is for another session."""
        with self.lock:
            if push.body["sessionId"] != self.session:
                self.wrong_session += 1
                return False
            self._check(push)
            if not push.heartbeat:
                self._apply(push)
            return True

    def heartbeats(self) -> list[Push]:
        return [push for push in self.requests if push.heartbeat]

    def has(self, revision: int) -> bool:
        """Whether it has applied the list up to a revision."""
        return self.revision is not None and self.revision >= revision

    def wait(self, condition: Callable[[Receiver], bool], until: Until = wait_until) -> None:
        until(lambda: condition(self) or bool(self.faults))
        assert not self.faults, self.faults

    def registration(self, **fields: object) -> Json:
        """The body that registers it as a JobMaster."""
        return {"role": "JOB_MASTER", "sessionId": self.session, "callbackUrl": self.url, **fields}

    def register(self, client: httpx.Client, listener: str, **fields: object) -> Json:
        """Register it, and store the secret if there is a new one."""
        answer = client.put(f"/listeners/{listener}", json=self.registration(**fields))
        assert answer.status_code in {200, 201}, answer.text
        registered: Json = answer.json()
        if "secret" in registered:
            self.secrets.append(registered["secret"])
        return registered

    def start_session(self, session: str) -> None:
        """Start a new session with an empty list."""
        with self.lock:
            self.session, self.revision, self.history, self.nodes = session, None, None, {}

    def _check(self, push: Push) -> None:
        if set(push.body) != FIELDS:
            self.faults.append(f"a push has the fields {sorted(push.body)}")
        # The first push may come before the registration's answer, and so before the secret.
        if push.signatures and not any(push.signatures):
            self.faults.append("a push is not signed with the listener's secret")
        begin, end = push.revisions
        if not 0 <= begin <= end:
            self.faults.append(f"a push goes from {begin} to {end}")
        known = self.revision or 0
        # After registering on an empty list it gets no push, so its first push may start anywhere.
        if self.revision is not None and begin > known:
            self.faults.append(f"the changes from {known} to {begin} were skipped")
        if self.history not in {None, push.body["history"]} and not push.body["snapshot"]:
            self.faults.append("a new history does not begin with the whole list")

    def _apply(self, push: Push) -> None:
        end = push.revisions[1]
        if self.revision is not None and end <= self.revision and not push.body["snapshot"]:
            self.repeated += 1
            return
        if push.body["snapshot"]:
            self.nodes = {}
        self.nodes |= {node["id"]: node for node in push.body["blocked"]}
        for node in push.body["unblocked"]:
            self.nodes.pop(node["id"], None)
        self.revision, self.history = end, push.body["history"]
        self.applied.append(push)


def http(status: int, body: bytes = b"", *headers: str) -> bytes:
    """The bytes of a response."""
    lines = [f"HTTP/1.1 {status} Whatever", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def acknowledges(receiver: Receiver, push: Push, connection: socket.socket) -> None:
    """Applies the push and acknowledges it, with the receiver's report if there is one."""
    if not receiver.receive(push):
        connection.sendall(http(410))
    elif receiver.report:
        connection.sendall(http(200, json.dumps(receiver.report).encode(), "Content-Type: application/json"))
    else:
        connection.sendall(http(204))


def responds(raw: bytes) -> Responder:
    """Sends these bytes, and applies nothing."""
    return lambda _receiver, _push, connection: connection.sendall(raw)


def fails(times: int, status: int = 500) -> Responder:
    """Fails the first times, then acknowledges."""
    left = iter(range(times))

    def answer(receiver: Receiver, push: Push, connection: socket.socket) -> None:
        if next(left, None) is None:
            acknowledges(receiver, push, connection)
        else:
            connection.sendall(http(status, b"sorry"))

    return answer


def loses_response(times: int) -> Responder:
    """Applies the push, but the first times the response is lost."""
    left = iter(range(times))

    def answer(receiver: Receiver, push: Push, connection: socket.socket) -> None:
        if next(left, None) is None:
            acknowledges(receiver, push, connection)
        else:
            receiver.receive(push)
            connection.shutdown(socket.SHUT_RDWR)

    return answer


def delays(receiver: Receiver, push: Push, connection: socket.socket) -> None:
    """Acknowledges when released; the connection may be closed by then."""
    receiver.release.wait(120)
    with suppress(OSError):
        acknowledges(receiver, push, connection)


def never_responds(receiver: Receiver, _push: Push, connection: socket.socket) -> None:
    """Sends nothing until the service gives up."""
    while connection.recv(65536):
        pass
    receiver.abandoned += 1


def drips(raw: bytes) -> Responder:
    """Responds byte by byte, then with `x` for ever."""

    def answer(receiver: Receiver, _push: Push, connection: socket.socket) -> None:
        with suppress(OSError):
            for number in range(10_000):
                connection.sendall(raw[number : number + 1] or b"x")
                if receiver.release.wait(0.05):
                    break
            connection.shutdown(socket.SHUT_RDWR)
            return
        receiver.abandoned += 1

    return answer


def floods(head: bytes, more: bytes, limit: int) -> Responder:
    """Responds without end; `abandoned` is the number of MiB that the service accepted, up to the limit."""

    def answer(receiver: Receiver, _push: Push, connection: socket.socket) -> None:
        connection.sendall(head)
        with suppress(OSError):
            for sent in range(limit * 2**20 // len(more)):
                connection.sendall(more)
                receiver.abandoned = max(receiver.abandoned, sent * len(more) // 2**20)
            connection.shutdown(socket.SHUT_RDWR)

    return answer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    receiver: Receiver
    connections: set[socket.socket]

    def setup(self) -> None:
        super().setup()
        self.connections.add(self.connection)

    def finish(self) -> None:
        self.connections.discard(self.connection)
        with suppress(OSError):
            super().finish()

    def handle(self) -> None:
        # The service may disconnect at any time.
        with suppress(OSError):
            super().handle()

    def do_GET(self) -> None:
        self.receiver.faults.append(f"a push is a POST, not a {self.command}")
        self.connection.sendall(http(405))

    do_PUT = do_HEAD = do_DELETE = do_GET

    def do_POST(self) -> None:
        # A request that was cut in its head has no length; one that was cut in its body is too short.
        length = int(self.headers.get("Content-Length", 0))
        raw = self.rfile.read(length)
        if not length or len(raw) < length:
            self.close_connection = True
            return
        push = _push(raw, dict(self.headers), self.receiver.secrets)
        self.receiver.requests.append(push)
        self.receiver.responder(self.receiver, push, self.connection)

    def log_message(self, *_: object) -> None:
        """Tests read `requests`."""


def _push(raw: bytes, headers: dict[str, str], secrets: list[str]) -> Push:
    at = time.monotonic_ns()
    signatures = tuple(_verifies(raw, headers, secret) for secret in secrets)
    named = {name.lower(): value for name, value in headers.items()}
    return Push(body=json.loads(raw), raw=raw, headers=named, signatures=signatures, at=at)


def _verifies(raw: bytes, headers: dict[str, str], secret: str) -> bool:
    try:
        Webhook(secret).verify(raw, headers)
    except WebhookVerificationError:
        return False
    return True


@contextmanager
def receiving(answer: Responder = acknowledges, *, session: str = "s1", port: int = 0) -> Iterator[Receiver]:
    """A receiver that runs until the end of the block; its faults fail the test."""
    with serving(answer, session=session, port=port) as receiver:
        yield receiver
    assert receiver.faults == []


@contextmanager
def serving(answer: Responder, *, session: str = "s1", port: int = 0) -> Iterator[Receiver]:
    """The same, but faults are left to the caller; leaving closes all connections."""
    connections: set[socket.socket] = set()
    handler = type("Handler", (_Handler,), {"connections": connections})
    with _Server(("127.0.0.1", port), handler) as server:
        receiver = Receiver(url=f"http://127.0.0.1:{server.server_port}/hook", session=session, responder=answer)
        server.receiver = handler.receiver = receiver  # type: ignore[attr-defined]
        accepting = threading.Thread(target=server.serve_forever, args=(0.02,))
        accepting.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            accepting.join()
            server.socket.close()
            receiver.release.set()
            _cut(connections)


class _Server(ThreadingHTTPServer):
    request_queue_size = 128

    receiver: Receiver

    def handle_error(self, *_: object) -> None:
        """Report exceptions of handlers."""
        self.receiver.faults.append(repr(sys.exception()))


def _cut(connections: set[socket.socket]) -> None:
    for connection in list(connections):
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
