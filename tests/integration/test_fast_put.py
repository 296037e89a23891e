"""The plain PUT of one node is handled below ASGI; the ordinary route says what the answer is, byte for byte."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.bodies import all_changes, block, later
from tests.integration.process import ServiceProcess
from tests.integration.raw_http import RawAnswer, ask, connected, exchange, read_answer, request

TARGET = "/blocklist/nodes/worker-17"


def put(body: bytes | None = None, target: str = TARGET, *headers: str, **more: object) -> bytes:
    payload = json.dumps(block(allowMerge=True)).encode() if body is None else body
    return request(target, *headers, method="PUT", body=payload, **more)  # type: ignore[arg-type]


BODY = json.dumps(block(cause="again", allowMerge=True)).encode()
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
REQUESTS: dict[str, bytes] = {
    "new": put(target="/blocklist/nodes/new", body=json.dumps(block(endTimestamp=4102444800000)).encode()),
    "conflict": put(json.dumps(block()).encode()),
    "merged": put(BODY),
    "merged again": put(BODY),
    "form content type": put(BODY, TARGET, "Content-Type: application/x-www-form-urlencoded"),
    "keep-alive": put(BODY, TARGET, "Connection: keep-alive"),
    "close": put(BODY, TARGET, "Connection: close"),
    "HTTP/1.0": put(BODY, version="HTTP/1.0"),
    "no body": request(TARGET, method="PUT"),
    "empty body": request(TARGET, "Content-Length: 0", method="PUT"),
    "no JSON": put(b"{"),
    "wrong fields": put(b'{"action": "STOP", "cause": "", "x": 1}'),
    "an end that is past": put(b'{"action": "MARK_BLOCKED", "cause": "x", "endTimestamp": 1}'),
    "not UTF-8": put(b'{"cause": "\xff"}'),
    "too large": put(b'{"cause": "' + b"x" * 65536 + b'"}'),
    "just not too large": put(b'{"cause": "' + b"x" * (65536 - 13) + b'"}'),
    "chunked": request(TARGET, "Transfer-Encoding: chunked", method="PUT") + CHUNKED,
    "alias": put(BODY, "/blocklist/node/worker-17"),
    "query": put(BODY, TARGET + "?x=1"),
    "percent-encoded": put(BODY, "/blocklist/nodes/%77orker-17"),
    "bad id": put(BODY, "/blocklist/nodes/a%20b"),
    "id of dots": put(BODY, "/blocklist/nodes/.."),
    "id that begins with a dot": put(BODY, "/blocklist/nodes/.hidden"),
    "longest id": put(BODY, "/blocklist/nodes/" + "n" * 253),
    "too long an id": put(BODY, "/blocklist/nodes/" + "n" * 254),
    "expects to go on": put(BODY, TARGET, "Expect: nothing"),
    "prefers": put(BODY, TARGET, "Prefer: wait=1"),
    "authorized": put(BODY, TARGET, "Authorization: Bearer x"),
}


@dataclass(frozen=True, kw_only=True)
class Pair:
    fast: ServiceProcess
    ordinary: ServiceProcess


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Iterator[Pair]:
    """Two services, each with the node of TARGET blocked."""
    fast = ServiceProcess(tmp_path_factory.mktemp("fast"))
    ordinary = ServiceProcess(tmp_path_factory.mktemp("ordinary"), fast_path="false")
    for process in (fast, ordinary):
        process.database.write_bytes(migrated.read_bytes())
    with fast, ordinary:
        for process in (fast, ordinary):
            assert ask(process.port, put()).status == 201
        yield Pair(fast=fast, ordinary=ordinary)


def same(answer: RawAnswer) -> object:
    """What must be the same: all but the date and the moments at which the two were asked."""
    status, headers, body = answer.undated()
    return status, headers, re.sub(rb'(startTimestamp":"|the present )[0-9]+', rb"\1-", body)


@pytest.mark.parametrize("name", REQUESTS)
def test_the_answer_is_that_of_the_route(pair: Pair, name: str) -> None:
    assert same(ask(pair.fast.port, REQUESTS[name])) == same(ask(pair.ordinary.port, REQUESTS[name]))


def test_both_lists_are_the_same_in_the_end(pair: Pair) -> None:
    def log(process: ServiceProcess) -> list[object]:
        with process.client() as client:
            return [(change["type"], change["node"]["id"], change["node"]["cause"]) for change in all_changes(client)]

    assert log(pair.fast) == log(pair.ordinary)


def test_requests_in_one_packet_are_answered_in_their_order(pair: Pair) -> None:
    """A PUT under way holds back what came behind it on its connection, whatever it is."""
    ids = [f"piped-{n}" for n in range(20)]
    targets = [f"/blocklist/nodes/{node_id}" for node_id in ids]
    packet = b"".join(put(target=target) + request(target) for target in targets)
    answers = exchange(pair.fast.port, packet, methods=["PUT", "GET"] * len(ids))
    assert [(answer.status, answer.json()["id"]) for answer in answers] == [
        (status, node_id) for node_id in ids for status in (201, 200)
    ]


def test_a_body_may_come_in_pieces(pair: Pair) -> None:
    payload = put(target="/blocklist/nodes/pieces")
    with connected(pair.fast.port) as connection:
        for byte in payload:
            connection.sendall(bytes([byte]))
        with connection.makefile("rb") as stream:
            assert read_answer(stream, "PUT").status == 201


def test_who_leaves_before_the_answer_harms_nobody(pair: Pair) -> None:
    """The change is made or not, and the service goes on."""
    for n in range(50):
        with connected(pair.fast.port) as connection:
            connection.sendall(put(target=f"/blocklist/nodes/left-{n}"))
    with pair.fast.client() as client:
        assert client.put(TARGET, json=block(allowMerge=True, endTimestamp=later(60))).status_code == 202
