"""A plain PUT, handled below ASGI, has the response and the effect of the ordinary route.

Two services, with the fast path and without, start with an empty list and get the same requests in the same order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.integration.bodies import EVACUATE, all_changes, block, current_list
from tests.integration.conftest import StartInProcess
from tests.integration.process import ServiceProcess
from tests.integration.raw_http import (
    connection_to,
    exchange,
    read_response,
    read_until_closed,
    request,
    send_request,
    without_volatile_lines,
)
from tests.length import longer

BODY: Final = json.dumps(block()).encode()
CLOSING_REQUEST: Final = request("/healthz", "Connection: close")
NODE: Final = "/blocklist/nodes/put"
FORM: Final = "Content-Type: application/x-www-form-urlencoded"

Pair = tuple[ServiceProcess, ServiceProcess]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Iterator[Pair]:
    fast = ServiceProcess(tmp_path_factory.mktemp("fast"))
    ordinary = ServiceProcess(tmp_path_factory.mktemp("ordinary"), fast_path="false")
    for process in (fast, ordinary):
        process.database.write_bytes(migrated.read_bytes())
    with fast, ordinary:
        yield fast, ordinary


def without_volatile_parts(raw: bytes) -> bytes:
    """Without the parts that depend on the time or the database."""
    raw = re.sub(rb'"(startTimestamp|at)":"[0-9]+"', b"", without_volatile_lines(raw))
    raw = re.sub(rb"the current time is [0-9]+", b"", raw)
    return re.sub(rb"(?im)^(etag|content-length|blocklist-history): [^\r]*\r\n", b"", raw)


def same_response(pair: Pair, payload: bytes) -> None:
    """Assert that both send the same bytes until they close the connection, and then have the same list."""
    fast, ordinary = (
        without_volatile_parts(read_until_closed(process.port, payload + CLOSING_REQUEST)) for process in pair
    )
    assert fast == ordinary
    fast, ordinary = (
        without_volatile_parts(send_request(process.port, request("/blocklist")).body) for process in pair
    )
    assert fast == ordinary


def put(*headers: str, target: str | bytes = NODE, body: bytes = BODY, version: str = "HTTP/1.1") -> bytes:
    return request(target, *headers, method="PUT", body=body, version=version)


def raw_put(*lines: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join([b"PUT /blocklist/nodes/put HTTP/1.1", b"Host: localhost", *lines, b"", body])


def chunked(*parts: bytes) -> bytes:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return raw_put(b"Transfer-Encoding: chunked", body=chunks + b"0\r\n\r\n")


PUTS: dict[str, bytes] = {
    "plain": put(),
    "as curl sends it": put("User-Agent: curl/7.88.1", "Accept: */*", FORM),
    "json with charset": put("Content-Type: application/json; charset=utf-16"),
    "content type twice": put("Content-Type: text/plain", "Content-Type: application/json"),
    "evacuate": put(body=json.dumps(block(action=EVACUATE, endTimestamp=4102444800000)).encode()),
    "merge allowed": put(body=json.dumps(block(allowMerge=True)).encode()),
    "another cause": put(body=json.dumps(block(cause="other,disk", allowMerge="true")).encode()),
    "not ASCII": put(body=json.dumps(block(cause="é 😀"), ensure_ascii=False).encode()),
    "white space around": put(body=b" \n" + BODY + b"\t "),
    "alias": put(target="/blocklist/node/put"),
    "percent-encoded": put(target="/blocklist/nodes/%70ut"),
    "an address": put(target="/blocklist/nodes/fe80::1"),
    "an address, encoded": put(target="/blocklist/nodes/fe80%3A%3A1"),
    "a query": put(target=NODE + "?x=1"),
    "an empty query": put(target=NODE + "?"),
    "a fragment": put(target=NODE + "#x"),
    "absolute": put(target="http://test" + NODE),
    "a slash behind": put(target=NODE + "/"),
    "two slashes": put(target="/blocklist//nodes/put"),
    "no id": put(target="/blocklist/nodes/"),
    "dot": put(target="/blocklist/nodes/."),
    "dot dot": put(target="/blocklist/nodes/.."),
    "dots": put(target="/blocklist/nodes/..."),
    "bytes in the id": put(target=b"/blocklist/nodes/\xc3\xa9"),
    "encoded slash": put(target="/blocklist/nodes/a%2Fb"),
    "encoded zero": put(target="/blocklist/nodes/a%00"),
    "half an escape": put(target="/blocklist/nodes/a%"),
    "upper case path": put(target="/BLOCKLIST/nodes/put"),
    "several": put(target="/blocklist/nodes", body=b'{"put": %b}' % BODY),
    "no body": raw_put(),
    "length 0": raw_put(b"Content-Length: 0"),
    "length with zeros": raw_put(b"Content-Length: 000%d" % len(BODY), body=BODY),
    "an unknown field": put(body=b'{"action": "MARK_BLOCKED", "cause": "x", "x": 1}'),
    "a field twice": put(body=b'{"action": "MARK_BLOCKED", "cause": "x", "cause": "x"}'),
    "an end that is past": put(body=b'{"action": "MARK_BLOCKED", "cause": "x", "endTimestamp": "5"}'),
    "a lone surrogate": put(body=b'{"action": "MARK_BLOCKED", "cause": "\\ud800"}'),
    "deep": put(body=b"[" * 30_000),
    "64 KiB": put(body=BODY.ljust(65_536)),
    "64 KiB and one": put(body=BODY.ljust(65_537)),
    "chunked": chunked(BODY),
    "in many chunks": chunked(*(BODY[n : n + 7] for n in range(0, len(BODY), 7))),
    "too large in chunks": chunked(BODY, b" " * 65_536),
    "to be asked for its body": put("Expect: 100-continue"),
    "a miracle expected": put("Expect: a-miracle"),
    "to be closed": put("Connection: close"),
    "HTTP/1.0": put(version="HTTP/1.0"),
    "without host": b"PUT /blocklist/nodes/put HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY),
    "odd header cases": raw_put(b"cOnTeNt-LeNgTh:%d" % len(BODY), body=BODY),
    "a precondition": put('If-Match: "x"'),
    "If-None-Match": put("If-None-Match: *"),
    "a preference": put("Prefer: return=minimal"),
    "gzip wanted": put("Accept-Encoding: gzip"),
    "gzip sent": put("Content-Encoding: gzip"),
    "another method meant": put("X-HTTP-Method-Override: DELETE"),
    "from elsewhere": put("Origin: http://elsewhere.example"),
    "a long header": put("X-Long: " + "x" * 8_000),
}
DELETE: Final = request(NODE, method="DELETE")


@pytest.mark.parametrize("payload", [pytest.param(payload, id=name) for name, payload in PUTS.items()])
@pytest.mark.parametrize("before", [pytest.param(DELETE, id="free"), pytest.param(put(), id="blocked")])
def test_the_response_and_the_list_are_those_of_the_ordinary_route(pair: Pair, payload: bytes, before: bytes) -> None:
    same_response(pair, before)
    same_response(pair, payload)


def one_by_one(port: int, *payloads: bytes) -> list[tuple[int, bytes]]:
    """Send each request on one connection after the response to the one before."""
    responses = []
    with connection_to(port) as connection, connection.makefile("rb") as stream:
        for payload in payloads:
            connection.sendall(payload)
            response = read_response(stream, "PUT")
            responses.append((response.status, without_volatile_parts(response.body)))
    return responses


def test_a_body_may_arrive_after_its_head(pair: Pair) -> None:
    for process in pair:
        with connection_to(process.port) as connection, connection.makefile("rb") as stream:
            for cut in (None, None, -len(BODY), -5):
                connection.sendall(put()[:cut])
                if cut is not None:
                    # Once this is answered, on another connection, the first part has been read.
                    send_request(process.port, request("/healthz"))
                    connection.sendall(put()[cut:])
                assert read_response(stream, "PUT").status in (201, 409)


def test_requests_behind_one_wait_for_its_response(pair: Pair) -> None:
    many = [DELETE, put(), put(), put() + DELETE + put() + request("/blocklist/nodes/put")]
    for process in pair:
        with connection_to(process.port) as connection, connection.makefile("rb") as stream:
            found = []
            for payload, responses in zip(many, (1, 1, 1, 4), strict=True):
                connection.sendall(payload)
                found += [read_response(stream, "PUT").status for _ in range(responses)]
        assert found[1:] == [201, 409, 409, 200, 201, 200]


def test_each_request_has_its_own_id(pair: Pair) -> None:
    with connection_to(pair[0].port) as connection, connection.makefile("rb") as stream:
        ids = []
        for headers in ([], [], [], ["X-Request-ID: mine"], ["X-Request-ID: mine"], ["X-Request-ID: {}"], []):
            connection.sendall(put(*headers))
            ids.append(read_response(stream, "PUT").header("x-request-id"))
    assert ids[3:5] == ["mine", "mine"]
    assert len(set(ids)) == 6
    assert None not in ids


def test_the_list_and_the_log_agree_after_clients_disconnect_early(fresh: ServiceProcess) -> None:
    """Such a PUT may be executed or not; the service continues, and a restart changes nothing."""
    for number in range(50):
        exchange(fresh.port, put(target=f"/blocklist/nodes/gone-{number}"), methods=())
    assert send_request(fresh.port, put()).status == 201
    fresh.stop()
    fresh.start()
    with fresh.client() as client:
        logged = [change["node"]["id"] for change in all_changes(client)]
        assert "put" in logged
        assert sorted(logged) == sorted(current_list(client)[1])


def test_concurrent_connections_get_their_own_responses(pair: Pair) -> None:
    def write(port: int, writer: int) -> set[str]:
        with connection_to(port) as connection, connection.makefile("rb") as stream:
            revisions = set()
            for number in range(50):
                node_id = f"many-{writer}-{number}"
                connection.sendall(put(target=f"/blocklist/nodes/{node_id}"))
                response = read_response(stream)
                assert (response.status, response.json()["id"]) == (201, node_id)
                revisions.add(response.header("blocklist-revision") or "")
            return revisions

    for process in pair:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(write, [process.port] * 8, range(8)))
        assert len(set.union(*found)) == 400


steps = st.sampled_from(
    [
        *(PUTS[name] for name in ("plain", "evacuate", "merge allowed", "another cause", "alias", "deep", "chunked")),
        DELETE,
        request("/blocklist/nodes", method="PUT", body=b'{"put": %b, "more": %b}' % (BODY, BODY)),
        request("/blocklist/nodes/more", method="DELETE"),
        request(NODE),
        request("/blocklist"),
        request("/blocklist", "If-None-Match: *"),
        request("/blocklist/changes?since=1000000"),
    ]
)


@given(st.lists(steps, min_size=1, max_size=8))
@settings(max_examples=longer(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_pipelined_mix_gets_the_responses_of_the_ordinary_route(pair: Pair, mix: list[bytes]) -> None:
    same_response(pair, b"".join(mix))


def test_a_request_may_arrive_byte_by_byte(pair: Pair) -> None:
    with connection_to(pair[0].port) as connection:
        for byte in put(target="/blocklist/nodes/pieces"):
            connection.sendall(bytes([byte]))
        with connection.makefile("rb") as stream:
            assert read_response(stream, "PUT").status == 201


def test_plain_puts_are_handled_below_asgi(start_in_process: StartInProcess) -> None:
    """Otherwise the other tests of this file would compare the ordinary route with itself."""
    service = start_in_process()
    one_by_one(service.port, put(), put(), put(), put("Prefer: return=minimal"))
    lines = service.client().get("/metrics").text.splitlines()
    counts = [line for line in lines if line.startswith("blocklist_fast_requests_total{") and 'method="PUT"' in line]
    assert sum(float(line.split()[-1]) for line in counts) == 3
