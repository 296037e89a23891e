"""The body of a JSON response ends with a newline, so that a shell's next prompt begins a line of its own."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Final

import pytest

from app.engine.cached_list import MIN_GZIP
from tests.integration.bodies import block, later
from tests.integration.databases import Databases
from tests.integration.in_process import in_process
from tests.integration.raw_http import request, send_request

BODY: Final = json.dumps(block()).encode()
MERGE: Final = json.dumps(block(allowMerge=True)).encode()
NODE: Final = "/blocklist/nodes/a"
NODES: Final = request("/blocklist")
PUT: Final = request(NODE, method="PUT", body=BODY)
RESPONSES: Final[dict[str, tuple[bytes, int]]] = {
    "blocked": (request("/blocklist/nodes/new", method="PUT", body=BODY), 201),
    "conflict": (PUT, 409),
    "merged": (request(NODE, method="PUT", body=MERGE), 202),
    "refused": (request(NODE, method="PUT", body=b"{"), 400),
    "dry run": (request(NODE + "?dryRun=true", method="PUT", body=MERGE), 200),
    "several": (request("/blocklist/nodes", method="PUT", body=b'{"b": %b, "c": %b}' % (BODY, BODY)), 200),
    "node": (request(NODE), 200),
    "no node": (request("/blocklist/nodes/free"), 404),
    "list": (NODES, 200),
    "list, details": (request("/blocklist?details=true"), 200),
    "past list": (request("/blocklist?at=0"), 200),
    "status": (request(NODE + "/status"), 200),
    "changes": (request("/blocklist/changes"), 200),
    "listeners": (request("/listeners"), 200),
    "whoami": (request("/whoami"), 200),
    "evidence": (request("/evidence"), 200),
    "a parameter's fault": (request("/blocklist?minRevision=x"), 400),
    "no path": (request("/nothing"), 404),
    "another method": (request("/blocklist", method="PATCH"), 405),
    "not HTTP": (b"rubbish\r\n\r\n", 400),
    "a long head": (request("/blocklist", "X-Long: " + "x" * 70_000), 431),
    "the API document": (request("/openapi.json"), 200),
}


@pytest.fixture(scope="module", params=["true", "false"], ids=["fast path", "ordinary route"])
def single(
    tmp_path_factory: pytest.TempPathFactory, databases: Databases, request: pytest.FixtureRequest
) -> Iterator[int]:
    """The port of a service on which the node is blocked."""
    own = databases.settings(tmp_path_factory.mktemp("single"))
    with in_process(fast_path=request.param, **own) as service:
        empty = send_request(service.port, NODES)
        assert (empty.status, empty.body) == (200, b"{}\n")
        assert send_request(service.port, PUT).status == 201
        yield service.port


@pytest.mark.parametrize("name", RESPONSES)
def test_a_json_body_ends_with_one_newline(single: int, name: str) -> None:
    payload, status = RESPONSES[name]
    response = send_request(single, payload)
    assert response.status == status
    assert (response.header("content-type") or "").endswith("json")
    assert response.body.count(b"\n") == 1
    assert response.body.endswith(b"\n")
    assert response.json() is not None


@pytest.mark.parametrize("target", ["/blocklist", NODE, "/blocklist/nodes/free", "/openapi.json", "/listeners"])
def test_the_length_and_the_tag_of_a_head_are_those_of_the_body(single: int, target: str) -> None:
    whole = send_request(single, request(target))
    head = send_request(single, request(target, method="HEAD"), "HEAD")
    assert whole.header("content-length") == str(len(whole.body))
    assert [head.header(name) for name in ("content-length", "etag")] == [
        whole.header(name) for name in ("content-length", "etag")
    ]


def test_a_compressed_list_ends_with_the_newline(single: int) -> None:
    many = {f"many-{n}": block(endTimestamp=later(3600), cause="x" * (MIN_GZIP // 10)) for n in range(10)}
    put = request("/blocklist/nodes", method="PUT", body=json.dumps(many).encode())
    assert send_request(single, put).status in {200, 409}
    plain = send_request(single, request("/blocklist"))
    compressed = send_request(single, request("/blocklist", "Accept-Encoding: gzip"))
    assert compressed.header("content-encoding") == "gzip"
    assert gzip.decompress(compressed.body) == plain.body
    assert plain.body.endswith(b"}\n")


def test_an_empty_body_stays_empty(single: int) -> None:
    send_request(single, request("/blocklist/nodes/gone", method="PUT", body=BODY))
    removed = send_request(single, request("/blocklist/nodes/gone", method="DELETE"))
    assert (removed.status, removed.body, removed.header("content-length")) == (200, b"", "0")
