"""Random connections: pipelined requests, some of them malformed, cut into pieces at random places."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Final

MAX_REQUESTS: Final = 8
NODE_IDS: Final = ("a", "b", "c", "A", "a.b", "fe80::1", "FE80:0::1", "worker-17.example")
METHODS: Final = ("PUT", "PUT", "PUT", "GET", "GET", "DELETE", "HEAD", "POST", "get", "CONNECT", "OPTIONS")
TARGETS: Final = (
    *(f"/blocklist/nodes/{node_id}" for node_id in NODE_IDS),
    *["/blocklist"] * 5,
    *["/blocklist/table"] * 3,
    "/blocklist/node/a",
    "/blocklist/nodes/%61",
    "/blocklist?",
    "/blocklist/nodes/a?dryRun=true",
    "/blocklist/nodes/..",
    "/healthz",
    "/nowhere",
    "*",
)
HEADERS: Final = (
    "Connection: keep-alive",
    "Connection: Upgrade, HTTP2-Settings",
    "Upgrade: h2c",
    "HTTP2-Settings: AAMAAABkAAQAAP__",
    "Accept-Encoding: gzip",
    "accept-encoding:gzip;q=0",
    "Accept-Encoding: gzip;q=0.5, br",
    "Accept: application/json",
    "accept: */*",
    "If-None-Match: *",
    'If-None-Match: "x"',
    'If-None-Match: W/"x", *',
    "Expect: 100-continue",
    "Content-Type: application/x-www-form-urlencoded",
    "X-Forwarded-User: eve",
    "Prefer: return=minimal",
    "Prefer: wait=0",
    "Prefer: wait=x",
    "Cache-Control: no-cache",
    "X-Request-ID: mine",
    "X-Empty:",
    "X-Long: " + "x" * 2000,
)
BODIES: Final = (
    *[json.dumps({"action": "MARK_BLOCKED", "cause": "disk", "allowMerge": True}).encode()] * 4,
    json.dumps({"action": "MARK_BLOCKED", "cause": "disk"}).encode(),
    json.dumps({"action": "MARK_BLOCKED_AND_EVACUATE_TASKS", "cause": "heat", "allowMerge": "true"}).encode(),
    b"GET /blocklist HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"PUT /blocklist/nodes/c HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}",
    b"{",
    b"",
)
CLOSING_TARGET: Final = b"/nowhere/else"
CLOSE: Final = b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % CLOSING_TARGET


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What one connection sends, in its pieces; `requests` is the number of requests as they were written."""

    pieces: Sequence[bytes]
    requests: int

    @property
    def payload(self) -> bytes:
        return b"".join(self.pieces)


def random_traffic(random: Random, credentials: Mapping[str, Sequence[str]]) -> Traffic:
    """One connection; `credentials` are header lines by the name of who sends them."""
    # Half of the connections send only what the fast path answers: else it would hardly ever see two in a row.
    make = _plain_request if (plain := random.random() < 0.5) else _request
    requests = [make(random, credentials) for _ in range(random.randint(1, MAX_REQUESTS))]
    payload = b"".join(requests)
    if not plain and random.random() < 0.3:
        payload = _mutated(random, payload)
    ends = list(accumulate(map(len, requests)))
    return Traffic(pieces=_cut(random, payload + CLOSE, ends), requests=len(requests))


def _request(random: Random, credentials: Mapping[str, Sequence[str]]) -> bytes:
    lines = [f"{random.choice(METHODS)} {random.choice(TARGETS)} HTTP/1.1"]
    if random.random() < 0.02:
        lines[0] = lines[0].removesuffix("1") + "0"
    lines += ["Host: localhost", *random.choice(list(credentials.values()))]
    lines += random.sample(HEADERS, random.choice((0, 0, 0, 1, 1, 2, 4)))
    body = random.choice(BODIES)
    head, framed = _framed(random, body)
    lines += head
    if random.random() < 0.3:
        first, *rest = lines
        random.shuffle(rest)
        lines = [first, *rest]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + framed


def _plain_request(random: Random, credentials: Mapping[str, Sequence[str]]) -> bytes:
    lines = [f"GET {random.choice(('/blocklist', '/blocklist/table'))} HTTP/1.1", "Host: localhost"]
    body = random.choice((b"", BODIES[0]))
    if body:
        lines = [
            f"PUT /blocklist/nodes/{random.choice(NODE_IDS)} HTTP/1.1",
            "Host: localhost",
            f"Content-Length: {len(body)}",
        ]
    lines += random.choice(list(credentials.values()))
    return "\r\n".join([*lines, "", ""]).encode() + body


def _framed(random: Random, body: bytes) -> tuple[list[str], bytes]:
    """The header lines that say where the body ends, and the body as they say it; seldom they lie."""
    way = random.random()
    if way < 0.65:
        return [f"Content-Length: {len(body)}"] if body or random.random() < 0.5 else [], body
    if way < 0.85:
        size = random.randint(1, 40)
        chunks = [body[start : start + size] for start in range(0, len(body), size)]
        framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
        return ["Transfer-Encoding: chunked"], framed
    if way < 0.9:
        return ["Transfer-Encoding: chunked"], b"ZZ\r\n" + body
    if way < 0.94:
        return [f"Content-Length: {len(body)}", f"Content-Length: {len(body) + 1}"], body
    if way < 0.97:
        return [f"Content-Length: {len(body)}", "Transfer-Encoding: chunked"], b"0\r\n\r\n"
    return [f"Content-Length: {max(0, len(body) - 1)}"], body


def _mutated(random: Random, payload: bytes) -> bytes:
    """With one byte changed, left out or put in."""
    at = random.randrange(len(payload))
    byte = bytes([random.choice((0, 9, 10, 13, 32, 58, 65, 128, 255))])
    return payload[:at] + random.choice((b"", byte, byte + payload[at : at + 1])) + payload[at + 1 :]


def _cut(random: Random, payload: bytes, ends: Sequence[int]) -> list[bytes]:
    """In up to six pieces, many of which end where a request ends."""
    places = [*ends, *(random.randrange(1, len(payload)) for _ in ends)]
    cuts = sorted(set(random.sample(places, min(random.choice((0, 1, 2, 3, 5)), len(places)))))
    return [payload[start:end] for start, end in zip([0, *cuts], [*cuts, len(payload)], strict=True)]
