"""The same traffic to two services, and what h11 makes of it."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

import h11

from tests.fuzz.traffic import CLOSING_TARGET, Traffic, random_traffic
from tests.integration.raw_http import request, send_request, without_volatile_lines

ATTEMPTS: Final = 3
GAP_SECONDS: Final = 0.0003
"""Between two pieces: long enough for a service that waits to read the first one alone."""
_REFUSAL: Final = re.compile(
    rb'HTTP/1\.1 4\d\d [^\r]*\r\n(?:[^\r]+\r\n)*connection: close\r\n\r\n\{"type": "urn[^}]*\}\n$'
)
"""The last answer on a connection whose bytes are no HTTP, as the protocol writes it."""
_NO_METHOD: Final = re.compile(rb"(?:get|CONNECT) ")
"""Of the methods that are sent, those that the service refuses and h11 does not."""
CHANGING: Final = (b"PUT", b"DELETE", b"POST")


class MismatchError(AssertionError):
    """The two services, or h11, read the same bytes in different ways."""


class InterruptedAnswersError(MismatchError):
    """They differ, and at least one of the two timed out, or its answers were lost with a reset connection."""


@dataclass(frozen=True, kw_only=True)
class SeenRequest:
    """A request as h11 reads it."""

    method: bytes
    target: bytes
    authorized: bool


def fuzz(ports: tuple[int, int], credentials: Mapping[str, Sequence[str]], *, requests: int, seed: int) -> int:
    """Send at least this many requests; how many connections it took.

    Raises MismatchError, which names the seed and the connection.
    """
    strong = {line.partition(": ")[2].encode() for who in ("operator", "admin") for line in credentials.get(who, ())}
    sent = connections = 0
    while sent < requests:
        connections += 1
        traffic = random_traffic(Random(f"{seed}-{connections}"), credentials)
        sent += traffic.requests
        try:
            if _compare_patiently(ports, traffic, strong):
                _empty_lists(ports, strong)
        except MismatchError as mismatch:
            raise MismatchError(f"seed {seed}, connection {connections}: {mismatch}\n{traffic.pieces!r}") from None
    return connections


def _compare_patiently(ports: tuple[int, int], traffic: Traffic, strong: set[bytes]) -> bool:
    """As `compare`. On a busy machine the answers of one may be interrupted: then both get the traffic again.

    What is sent to a connection that the service has closed resets it, and answers that were not read yet are lost.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return compare(ports, traffic, strong)
        except InterruptedAnswersError:
            _empty_lists(ports, strong)
    return compare(ports, traffic, strong)


def compare(ports: tuple[int, int], traffic: Traffic, strong: set[bytes]) -> bool:
    """Whether malformed bytes ended the connection: then one may have done more. Raises MismatchError."""
    raw, resets = zip(*(_answers(port, traffic.pieces) for port in ports), strict=True)
    fast, ordinary = (_comparable(answer) for answer in raw)
    seen, whole = read_by_h11(traffic.payload, strong)
    refused = any(_REFUSAL.search(answers) for answers in raw)
    malformed = not whole or refused or _NO_METHOD.search(traffic.payload) is not None
    # Malformed bytes may close the connection before the requests ahead of them are answered.
    if fast != ordinary and not (malformed and (fast.startswith(ordinary) or ordinary.startswith(fast))):
        interrupted = any(resets) or any(b"HTTP/1.1 408 " in answers for answers in raw)
        kind = InterruptedAnswersError if interrupted else MismatchError
        raise kind(f"the fast path and the ordinary route differ:\n{raw[0]!r}\n{raw[1]!r}")
    statuses = _statuses(raw[0], [own.method for own in seen])
    for own, status in zip(seen, statuses, strict=False):
        if strong and status < 300 and own.method in CHANGING and not own.authorized:
            raise MismatchError(f"{own} was answered {status} without an operator's credential")
    if CLOSING_TARGET in raw[0] and seen and seen[-1].target == CLOSING_TARGET and len(statuses) != len(seen):
        raise MismatchError(f"h11 reads {len(seen)} requests, the service answered {len(statuses)}: {raw[0]!r}")
    return malformed


def _empty_lists(ports: tuple[int, int], strong: set[bytes]) -> None:
    """Both begin the next connection with the same list, also where a connection was ended early."""
    lines = [f"Authorization: {min(strong).decode()}"] if strong else []
    for port in ports:
        # Answered after all changes that are still under way for a client that has gone.
        send_request(port, request("/blocklist/nodes/nobody", *lines, method="DELETE"))
    ids = [json.loads(send_request(port, request("/blocklist", *lines)).body) for port in ports]
    if _without_times(ids[0]) == _without_times(ids[1]):
        return
    for port, listed in zip(ports, ids, strict=True):
        for node_id in listed:
            send_request(port, request(f"/blocklist/nodes/{node_id}", *lines, method="DELETE"))


def _without_times(listed: Mapping[str, Mapping[str, object]]) -> dict[str, tuple[object, object]]:
    return {node_id: (node["action"], node["cause"]) for node_id, node in listed.items()}


def _comparable(answers: bytes) -> bytes:
    """Without what depends on the moment: a refusal of malformed bytes comes before or after the answers before it.

    Revisions differ once such bytes have ended a connection, because one of the services may have done more.
    """
    answers = without_volatile_lines(_REFUSAL.sub(b"", answers))
    answers = re.sub(rb"(?m)^blocklist-table 1 [0-9]+ ", b"", answers)
    answers = re.sub(rb'"startTimestamp":"[0-9]+"', b"", answers)
    names = rb"connection|content-length|etag|blocklist-(history|revision)"
    return re.sub(rb"(?im)^(%b): [^\r]*\r\n" % names, b"", answers)


def _answers(port: int, pieces: Sequence[bytes]) -> tuple[bytes, bool]:
    """What was answered, and whether the connection was reset."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for number, piece in enumerate(pieces):
                if number:
                    time.sleep(GAP_SECONDS)
                connection.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            return _read_all(connection)[0], True  # It has refused what came before, and closed.
        return _read_all(connection)


def _read_all(connection: socket.socket) -> tuple[bytes, bool]:
    found = b""
    try:
        while piece := connection.recv(1 << 20):
            found += piece
    except ConnectionResetError:
        return found, True
    return found, False


def read_by_h11(payload: bytes, strong: set[bytes]) -> tuple[list[SeenRequest], bool]:
    """The requests up to the first that h11 refuses, or that ends the connection; and whether it refused none."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(payload)
    seen = []
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                given = [value for name, value in event.headers if name == b"authorization"]
                seen.append(
                    SeenRequest(
                        method=event.method,
                        target=event.target,
                        authorized=len(given) == 1 and _normal_scheme(given[0]) in strong,
                    )
                )
            elif isinstance(event, h11.EndOfMessage):
                connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
                if connection.our_state is not h11.DONE:
                    return seen, True
                connection.start_next_cycle()
            elif event in (h11.NEED_DATA, h11.PAUSED) or isinstance(event, h11.ConnectionClosed):
                return seen, event is not h11.NEED_DATA
    except (h11.RemoteProtocolError, h11.LocalProtocolError):
        return seen, False


def _normal_scheme(credential: bytes) -> bytes:
    """The credential with `Bearer` as it is usually written: schemes are in any case (RFC 9110, section 11.1)."""
    scheme, space, token = credential.partition(b" ")
    return scheme.capitalize() + space + token


def _statuses(answers: bytes, methods: Sequence[bytes]) -> list[int]:
    """The final statuses in these answers, as h11's client reads them."""
    statuses: list[int] = []
    rest = answers
    for method in [*methods, b"GET"]:
        client = h11.Connection(h11.CLIENT)
        client.send(h11.Request(method="HEAD" if method == b"HEAD" else "GET", target="/", headers=[("host", "test")]))
        client.send(h11.EndOfMessage())
        client.receive_data(rest)
        try:
            while not isinstance(event := client.next_event(), h11.EndOfMessage):
                if isinstance(event, h11.Response):
                    statuses.append(event.status_code)
                elif event in (h11.NEED_DATA, h11.PAUSED) or isinstance(event, h11.ConnectionClosed):
                    return statuses
        except h11.RemoteProtocolError:
            return statuses
        rest = client.trailing_data[0]
        if not rest:
            return statuses
    return statuses
