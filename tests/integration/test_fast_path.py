"""The fast path has the response and the effect of the ordinary route, byte for byte.

Two services with the same list and the same time, with the fast path and without, get the same requests in the same
order. `make fuzz` sends them a million random ones.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from blocklist.model.claims import Role
from tests.fuzz.differential import MismatchError, compare, fuzz, read_by_h11
from tests.fuzz.services import fuzzed_services
from tests.fuzz.traffic import Traffic
from tests.integration.bodies import EVACUATE, all_changes, block, current_list, later
from tests.integration.conftest import StartInProcess
from tests.integration.databases import Databases
from tests.integration.in_process import InProcessService, ManualClock, in_process
from tests.integration.process import ServiceProcess, url_of
from tests.integration.raw_http import connection_to, exchange, read_response, read_until_closed, request, send_request
from tests.integration.secured import secured_in_process
from tests.length import longer

CLOSING_REQUEST: Final = request("/healthz", "Connection: close")
"""Makes the server close the connection after it has answered all requests before this one."""
NODE: Final = "/blocklist/nodes/put"
BODY: Final = json.dumps(block()).encode()
MERGED: Final = json.dumps(block(allowMerge=True)).encode()
FORM: Final = "Content-Type: application/x-www-form-urlencoded"


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two services with the same content, with the fast path and without."""

    fast: InProcessService
    ordinary: InProcessService

    def same(self, ask_one: Callable[[int], object]) -> object:
        """What both answer at their port, which must be the same."""
        fast, ordinary = ask_one(self.fast.port), ask_one(self.ordinary.port)
        assert fast == ordinary
        return fast

    def same_bytes(self, payload: bytes) -> None:
        """Both send the same bytes until they close the connection."""
        assert self.same(lambda port: read_until_closed(port, payload + CLOSING_REQUEST)), "a response"


@contextmanager
def pair_on(folder: Path, content: Path, **settings: str) -> Iterator[Pair]:
    """Two services on copies of the database in the folder `content`, at the same moment."""
    clock = ManualClock(int(later(0)))
    # With its head file; without it the database would be taken for a backup, and begin a new history.
    fast, ordinary = (shutil.copytree(content, folder / name) / "blocklist.db" for name in ("fast", "ordinary"))
    with (
        in_process(clock, database_url=url_of(fast), **settings) as fast_service,
        in_process(clock, database_url=url_of(ordinary), fast_path="false", **settings) as ordinary_service,
    ):
        yield Pair(fast=fast_service, ordinary=ordinary_service)


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Path:
    """The folder of a service that blocked some nodes and stopped."""
    database = Path(shutil.copy(migrated, tmp_path_factory.mktemp("content") / "blocklist.db"))
    with in_process(database_url=url_of(database)) as service:
        client = service.client()
        ended = {f"ended-{n}": block(endTimestamp=service.clock.now + 2000) for n in range(3)}
        lasting = {f"n{n}": block(cause=f'"quoted" é 😀 {n}') for n in range(50)}
        client.put("/blocklist/nodes", json=ended | lasting).raise_for_status()
        service.until(lambda: len(all_changes(client)) == 56)
    return database.parent


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, content: Path) -> Iterator[Pair]:
    with pair_on(tmp_path_factory.mktemp("pair"), content) as pair:
        yield pair


READS: Final[dict[str, bytes]] = {
    "plain": request("/blocklist"),
    "gzip": request("/blocklist", "Accept-Encoding: gzip"),
    "gzip among others": request("/blocklist", "Accept-Encoding: br, GZIP;q=0.5, *;q=0"),
    "gzip refused": request("/blocklist", "Accept-Encoding: gzip;q=0"),
    "gzip refused, with digits": request("/blocklist", "Accept-Encoding: gzip;q=0.000, deflate"),
    "gzip by star": request("/blocklist", "Accept-Encoding: *"),
    "x-gzip": request("/blocklist", "Accept-Encoding: x-gzip"),
    "two Accept-Encodings": request("/blocklist", "Accept-Encoding: br", "Accept-Encoding: gzip"),
    "If-None-Match, other": request("/blocklist", 'If-None-Match: "x"'),
    "If-None-Match, star": request("/blocklist", "If-None-Match: *"),
    "If-None-Match, rubbish": request("/blocklist", 'If-None-Match: W/"'),
    "If-None-Match, bytes": request("/blocklist", "If-None-Match: \xff\xfe"),
    "If-Match": request("/blocklist", 'If-Match: "x"'),
    "If-Modified-Since": request("/blocklist", "If-Modified-Since: Sat, 01 Jan 2050 00:00:00 GMT"),
    "Range": request("/blocklist", "Range: bytes=0-1"),
    "Prefer without ETag": request("/blocklist", "Prefer: wait=5"),
    "Prefer rubbish": request("/blocklist", "Prefer: wait=x", 'If-None-Match: "x"'),
    "Accept": request("/blocklist", "Accept: text/html"),
    "Authorization": request("/blocklist", "Authorization: Basic eDp5"),
    "Cookie": request("/blocklist", "Cookie: a=b"),
    "Origin": request("/blocklist", "Origin: http://elsewhere.example"),
    "X-Forwarded": request("/blocklist", "X-Forwarded-For: 10.0.0.1", "X-Forwarded-Proto: https"),
    "odd header cases": request("/blocklist", "ACCEPT-encoding:gzip", "iF-nONE-mATCH:   *  "),
    "an empty header": request("/blocklist", "X-Empty:"),
    "a header of 8,000": request("/blocklist", "X-Long: " + "x" * 8_000),
    "Connection: close": request("/blocklist", "Connection: close"),
    "Connection: Close": request("/blocklist", "connection: Close"),
    "Connection: keep-alive": request("/blocklist", "Connection: keep-alive"),
    "Connection: several": request("/blocklist", "Connection: foo, close"),
    "HTTP/1.0": request("/blocklist", version="HTTP/1.0"),
    "HTTP/1.0 keep-alive": request("/blocklist", "Connection: keep-alive", version="HTTP/1.0"),
    "HTTP/1.0 without host": b"GET /blocklist HTTP/1.0\r\n\r\n",
    "HTTP/1.1 without host": b"GET /blocklist HTTP/1.1\r\n\r\n",
    "HTTP/1.2": request("/blocklist", version="HTTP/1.2"),
    "HTTP/2.0": request("/blocklist", version="HTTP/2.0"),
    "HTTP/0.9": b"GET /blocklist\r\n\r\n",
    "lone line feeds": b"GET /blocklist HTTP/1.1\nHost: localhost\n\n",
    "line breaks before it": b"\r\n\r\n" + request("/blocklist"),
    "two spaces": b"GET  /blocklist HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a body": request("/blocklist", body=b"{}"),
    "a long body": request("/blocklist", body=b"x" * 70_000),
    "a body in chunks": request("/blocklist", "Transfer-Encoding: chunked", body=b"2\r\n{}\r\n0\r\n\r\n", length=False),
    "no body in chunks": request("/blocklist", "Transfer-Encoding: chunked", body=b"0\r\n\r\n", length=False),
    "Content-Length: 0": request("/blocklist", "Content-Length: 0"),
    "Content-Length: rubbish": request("/blocklist", "Content-Length: x"),
    "two lengths": request("/blocklist", "Content-Length: 0", "Content-Length: 1", body=b"x", length=False),
    "length and chunks": request(
        "/blocklist", "Transfer-Encoding: chunked", "Content-Length: 2", body=b"0\r\n\r\n", length=False
    ),
    "Expect": request("/blocklist", "Expect: 100-continue"),
    "Expect with a body": request("/blocklist", "Expect: 100-continue", body=b"{}"),
    "a query": request("/blocklist?x=1"),
    "an empty query": request("/blocklist?"),
    "minRevision, there": request("/blocklist?minRevision=1"),
    "minRevision, rubbish": request("/blocklist?minRevision=x"),
    "percent-encoded": request("/%62locklist"),
    "a fragment": request("/blocklist#x"),
    "a slash after it": request("/blocklist/"),
    "two slashes": request("//blocklist"),
    "upper case": request("/BLOCKLIST"),
    "longer": request("/blocklists"),
    "bytes in the path": request(b"/blocklist\xc3\xa9"),
    "parameters": request("/blocklist;x=1"),
    "absolute": request("http://test/blocklist"),
    "absolute, elsewhere": request("http://elsewhere.example/blocklist?x"),
    "HEAD": request("/blocklist", method="HEAD"),
    "HEAD gzip": request("/blocklist", "Accept-Encoding: gzip", method="HEAD"),
    "HEAD 304": request("/blocklist", "If-None-Match: *", method="HEAD"),
    "POST": request("/blocklist", method="POST", body=b"{}"),
    "PUT": request("/blocklist", method="PUT", body=b"{}"),
    "get in lower case": request("/blocklist", method="get"),
    "a folded header": b"GET /blocklist HTTP/1.1\r\nHost: localhost\r\nX-A: b\r\n c\r\n\r\n",
    "a header without colon": b"GET /blocklist HTTP/1.1\r\nHost test\r\n\r\n",
    "a space before the colon": b"GET /blocklist HTTP/1.1\r\nHost: localhost\r\nIf-None-Match : *\r\n\r\n",
    "a zero byte in a header": b"GET /blocklist HTTP/1.1\r\nHost: localhost\r\nX-A: \x00\r\n\r\n",
    "not HTTP": b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
    "table": request("/blocklist/table"),
    "table, gzip": request("/blocklist/table", "Accept-Encoding: gzip"),
    "table, HEAD": request("/blocklist/table", method="HEAD"),
    "table, no wait": request("/blocklist/table", "Prefer: wait=0", "If-None-Match: *"),
    "table, star": request("/blocklist/table", "If-None-Match: *"),
}


def put(*headers: str, target: str | bytes = NODE, body: bytes = BODY, version: str = "HTTP/1.1") -> bytes:
    return request(target, *headers, method="PUT", body=body, version=version)


def raw_put(*lines: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join([b"PUT /blocklist/nodes/put HTTP/1.1", b"Host: localhost", *lines, b"", body])


def chunked(*parts: bytes) -> bytes:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return raw_put(b"Transfer-Encoding: chunked", body=chunks + b"0\r\n\r\n")


PUTS: Final[dict[str, bytes]] = {
    "plain": put(),
    "as curl sends it": put("User-Agent: curl/7.88.1", "Accept: */*", FORM),
    "json with charset": put("Content-Type: application/json; charset=utf-16"),
    "content type twice": put("Content-Type: text/plain", "Content-Type: application/json"),
    "evacuate": put(body=json.dumps(block(action=EVACUATE, endTimestamp=4102444800000)).encode()),
    "merge allowed": put(body=MERGED),
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


@pytest.mark.parametrize("payload", [pytest.param(payload, id=name) for name, payload in READS.items()])
def test_a_read(pair: Pair, payload: bytes) -> None:
    pair.same_bytes(payload)


@pytest.mark.parametrize("payload", [pytest.param(payload, id=name) for name, payload in PUTS.items()])
def test_a_put_and_the_list_after_it(pair: Pair, payload: bytes) -> None:
    for before in (DELETE, put()):
        pair.same_bytes(before)
        pair.same_bytes(payload)
        pair.same_bytes(request("/blocklist"))


@pytest.mark.parametrize(
    "name", ["plain", "gzip", "HEAD", "HEAD gzip", "If-None-Match, star", "Expect", "odd header cases"]
)
def test_a_read_on_a_connection_that_stays_open(pair: Pair, name: str) -> None:
    method = "HEAD" if name.startswith("HEAD") else "GET"
    pair.same(lambda port: send_request(port, READS[name], method).without_volatile_headers())


@pytest.mark.parametrize("extra", [[], ["Accept-Encoding: gzip"], ["Prefer: wait=0"], ["Connection: close"]])
@pytest.mark.parametrize("path", ["/blocklist", "/blocklist/table"])
def test_etags(pair: Pair, path: str, extra: list[str]) -> None:
    asked = (request(path), request(path, "Accept-Encoding: gzip"))
    for etag in [send_request(pair.ordinary.port, payload).header("etag") for payload in asked]:
        for form in ("{0}", "W/{0}", '"x", {0}', '{0},"y"', "W/{0}, *", " {0}", "{0} {0}"):
            pair.same_bytes(request(path, f"If-None-Match: {form.format(etag)}", *extra))
        lines = ['If-None-Match: "x"', f"If-None-Match: {etag}", "Accept-Encoding: br", "Accept-Encoding: gzip"]
        pair.same_bytes(request(path, *lines, *extra) + request(path, *lines[::-1], *extra))


@pytest.mark.parametrize("whole", [READS["gzip"], DELETE + put()], ids=["read", "put"])
def test_requests_that_arrive_byte_by_byte(pair: Pair, whole: bytes) -> None:
    pieces = [whole[n : n + 1] for n in range(len(whole))]
    methods = ["GET"] * whole.count(b"Host:")
    pair.same(lambda port: [answer.without_volatile_headers() for answer in exchange(port, *pieces, methods=methods)])


@pytest.mark.parametrize("in_chunks", [False, True])
def test_a_body_that_looks_like_a_request_is_a_body(pair: Pair, *, in_chunks: bool) -> None:
    """The body arrives alone, after the 100 Continue, and its bytes are those of a plain read."""
    looks = READS["plain"]
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(looks), looks) if in_chunks else looks
    how = "Transfer-Encoding: chunked" if in_chunks else f"Content-Length: {len(looks)}"
    head = request("/blocklist/nodes/n1", how, "Expect: 100-continue", method="PUT")

    def talk(port: int) -> object:
        with connection_to(port) as connection, connection.makefile("rb") as stream:
            responses = []
            for _ in range(3):
                connection.sendall(looks)
                responses.append(read_response(stream).without_volatile_headers())
            connection.sendall(head)
            assert stream.readline() + stream.readline() == b"HTTP/1.1 100 Continue\r\n\r\n"
            for piece in (body[: -len(looks)], body[-len(looks) :]):
                connection.sendall(piece)
            responses.append(read_response(stream).without_volatile_headers())
            assert responses[-1][0] == 400
            connection.sendall(looks)
            return [*responses, read_response(stream).without_volatile_headers()]

    pair.same(talk)


@pytest.mark.parametrize("cut", [1, 5, 20, -4, -2, -1])
def test_a_read_behind_an_incomplete_request_belongs_to_it(pair: Pair, cut: int) -> None:
    """A whole plain read behind half a request is read as the rest of that one, as on the ordinary route."""
    plain = READS["plain"]

    def talk(port: int) -> object:
        with connection_to(port) as connection, connection.makefile("rb") as stream:
            for _ in range(2):
                connection.sendall(plain)
                assert read_response(stream).status == 200
            connection.sendall(plain[:cut])
            # Once this is answered, on another connection, the part has been read.
            send_request(port, request("/healthz"))
            connection.sendall(plain)
            return read_response(stream).without_volatile_headers()

    pair.same(talk)


def test_a_body_may_arrive_after_its_head(pair: Pair) -> None:
    pair.same_bytes(DELETE)

    def talk(port: int) -> list[int]:
        statuses = []
        with connection_to(port) as connection, connection.makefile("rb") as stream:
            for cut in (None, None, -len(BODY), -5):
                connection.sendall(put()[:cut])
                if cut is not None:
                    send_request(port, request("/healthz"))  # answered, so the first part has been read
                    connection.sendall(put()[cut:])
                statuses.append(read_response(stream).status)
        return statuses

    assert pair.same(talk) == [201, 409, 409, 409]


@pytest.mark.parametrize(
    "requests",
    [
        [READS["plain"], READS["plain"]],
        [READS["plain"], READS["gzip"], READS["plain"]],
        [READS["HEAD"], READS["plain"]],
        [READS["PUT"], READS["plain"]],
        [READS["a query"], READS["plain"]],
        [READS["plain"], READS["a body"]],
        [READS["a body"], READS["plain"]],
        [READS["line breaks before it"], READS["plain"]],
        [put(), DELETE, put(), put(), request(NODE), DELETE],
    ],
)
def test_pipelined_requests_are_answered_in_full_each_time(pair: Pair, requests: Sequence[bytes]) -> None:
    """The same bytes repeatedly on an idle connection: each time as many responses as requests."""
    methods = [payload.split()[0].decode() for payload in requests]

    def talk(port: int) -> object:
        with connection_to(port) as connection, connection.makefile("rb") as stream:
            responses = []
            for _ in range(4):
                connection.sendall(b"".join(requests))
                responses.append([read_response(stream, method).without_volatile_headers() for method in methods])
            statuses = [[response[0] for response in turn] for turn in responses]
            assert statuses[1:] == statuses[1:2] * 3
            return responses

    pair.same(talk)


def test_cached_and_ordinary_responses_alternate_on_one_connection(pair: Pair) -> None:
    sent = [
        request("/blocklist"),
        request("/blocklist/nodes/n1"),
        request("/blocklist", method="HEAD"),
        request("/blocklist/nodes/free", method="DELETE"),
        request("/blocklist", "If-None-Match: *"),
        request("/blocklist?x"),
        request("/blocklist", body=b"{}"),
        request("/blocklist"),
    ]
    methods = [payload.split()[0].decode() for payload in sent]

    def one_by_one(port: int) -> object:
        with connection_to(port) as connection, connection.makefile("rb") as stream:
            responses = []
            for payload, method in zip(sent, methods, strict=True):
                connection.sendall(payload)
                responses.append(read_response(stream, method).without_volatile_headers())
            return responses

    pair.same(one_by_one)
    pair.same_bytes(b"".join(sent))


def test_many_pipelined_requests_are_answered_in_order(pair: Pair) -> None:
    pair.same_bytes(
        (request("/blocklist") + request("/blocklist/nodes/n1") + request("/blocklist", "If-None-Match: *")) * 100
    )


def test_a_slow_reader_gets_every_response(pair: Pair) -> None:
    """More responses than fit into the socket's buffers, requested before the first is read."""

    def read_late(port: int) -> bytes:
        with connection_to(port) as connection, connection.makefile("rb") as stream:
            connection.sendall(request("/blocklist") * 2_000)
            responses = {read_response(stream).body for _ in range(2_000)}
        assert len(responses) == 1
        return responses.pop()

    pair.same(read_late)


def test_an_expired_node_is_absent_from_cached_responses(content: Path, tmp_path: Path) -> None:
    """At each time a node is listed until its end and never after it."""
    with pair_on(tmp_path, content) as pair:
        clock = pair.fast.clock
        ends = {f"short-{n}": clock.now + 200 * (n + 1) for n in range(8)}
        body = {name: block(endTimestamp=end) for name, end in ends.items()}
        for service in (pair.fast, pair.ordinary):
            service.client().put("/blocklist/nodes", json=body).raise_for_status()
        etags: dict[str, bytes] = {}
        with connection_to(pair.fast.port) as connection, connection.makefile("rb") as stream:
            while clock.now <= max(ends.values()):
                for _ in range(3):
                    connection.sendall(request("/blocklist"))
                    response = read_response(stream)
                    listed = {name for name in response.json() if name in ends}
                    assert listed == {name for name, end in ends.items() if end > clock.now}
                    etag = response.header("etag") or ""
                    assert etags.setdefault(etag, response.body) == response.body, "one ETag is one body"
                clock.advance(0.05)
        for service in (pair.fast, pair.ordinary):
            service.until(lambda service=service: len(all_changes(service.client())) == 56 + 16)  # type: ignore[misc]
        pair.same_bytes(request("/blocklist"))
        etag = send_request(pair.ordinary.port, request("/blocklist")).header("etag") or ""
        assert pair.same(lambda port: send_request(port, request("/blocklist", f"If-None-Match: {etag}")).status) == 304


def test_a_read_after_a_change_returns_the_new_list(start_in_process: StartInProcess) -> None:
    service = start_in_process()
    with connection_to(service.port) as connection, connection.makefile("rb") as stream:
        for number in range(100):
            payload = put(target=f"/blocklist/nodes/n{number}")
            behind = READS["plain"] + READS["gzip"]
            for piece in (payload + behind,) if number % 2 else (payload, READS["plain"], READS["gzip"]):
                connection.sendall(piece)
            made = read_response(stream)
            for listed in (read_response(stream), read_response(stream)):
                assert listed.header("blocklist-revision") == made.header("blocklist-revision") == str(number + 1)
            assert made.status == 201


def test_each_put_has_its_own_id(start_in_process: StartInProcess) -> None:
    ids = []
    with connection_to(start_in_process().port) as connection, connection.makefile("rb") as stream:
        for headers in ([], [], [], ["X-Request-ID: mine"], ["X-Request-ID: mine"], ["X-Request-ID: {}"], []):
            connection.sendall(put(*headers))
            ids.append(read_response(stream).header("x-request-id"))
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


@pytest.mark.parametrize("fast_path", ["true", "false"])
def test_concurrent_connections_get_their_own_responses(start_in_process: StartInProcess, fast_path: str) -> None:
    port = start_in_process(fast_path=fast_path).port

    def write(writer: int) -> set[str]:
        with connection_to(port) as connection, connection.makefile("rb") as stream:
            revisions = set()
            for number in range(50):
                node_id = f"many-{writer}-{number}"
                connection.sendall(put(target=f"/blocklist/nodes/{node_id}"))
                response = read_response(stream)
                assert (response.status, response.json()["id"]) == (201, node_id)
                revisions.add(response.header("blocklist-revision") or "")
            return revisions

    with ThreadPoolExecutor(8) as pool:
        assert len(set.union(*pool.map(write, range(8)))) == 400


def test_plain_puts_are_handled_below_asgi(start_in_process: StartInProcess) -> None:
    """Otherwise the other tests of this file would compare the ordinary route with itself."""
    service = start_in_process()
    for payload in (put(), put(), put(), put("Prefer: return=minimal")):
        send_request(service.port, payload)
    lines = service.client().get("/metrics").text.splitlines()
    counts = [line for line in lines if line.startswith("blocklist_fast_requests_total{") and 'method="PUT"' in line]
    assert sum(float(line.split()[-1]) for line in counts) == 3


WORDS: Final = ("READER", "LISTENER", "OPERATOR", "ADMIN", "FILE", "REVOKED", "MIXED")
CREDENTIALS: Final[dict[str, list[str]]] = {
    "none": [],
    "reader": ["Authorization: Bearer READER"],
    "listener": ["Authorization: Bearer LISTENER"],
    "operator": ["Authorization: Bearer OPERATOR"],
    "admin": ["Authorization: Bearer ADMIN"],
    "the admin's file": ["Authorization: Bearer FILE"],
    "revoked": ["Authorization: Bearer REVOKED"],
    "unknown": [f"Authorization: Bearer blocklist_00000000_{'A' * 43}"],
    "another's secret": ["Authorization: Bearer MIXED"],
    "lower case": ["authorization: bearer OPERATOR"],
    "blanks": ["Authorization:   Bearer   OPERATOR  "],
    "a tab": ["Authorization: Bearer\tOPERATOR"],
    "no scheme": ["Authorization: OPERATOR"],
    "basic": ["Authorization: Basic OPERATOR"],
    "no token": ["Authorization: Bearer"],
    "two": ["Authorization: Bearer OPERATOR", "Authorization: Bearer OPERATOR"],
    "good then bad": ["Authorization: Bearer OPERATOR", "Authorization: Bearer x"],
    "cut": ["Authorization: Bearer OPERATO"],
    "more": ["Authorization: Bearer OPERATORx"],
    "in a list": ["Authorization: Bearer OPERATOR, Bearer x"],
    "not ASCII": ["Authorization: Bearer \xff"],
    "as a cookie": ["Cookie: blocklist_session=OPERATOR"],
    "and a cookie": ["Authorization: Bearer OPERATOR", "Cookie: blocklist_session=x"],
    "for a proxy": ["Proxy-Authorization: Bearer OPERATOR"],
    "and a user": ["Authorization: Bearer OPERATOR", "X-Forwarded-User: eve"],
}
SECURED: Final[dict[str, tuple[str, str, list[str], bytes]]] = {
    "list": ("GET", "/blocklist", [], b""),
    "list, gzip": ("GET", "/blocklist", ["Accept-Encoding: gzip"], b""),
    "list, known": ("GET", "/blocklist", ["If-None-Match: *"], b""),
    "list, HEAD": ("HEAD", "/blocklist", [], b""),
    "list, query": ("GET", "/blocklist?x", [], b""),
    "put": ("PUT", NODE, [], MERGED),
    "put, malformed": ("PUT", NODE, [], b"{"),
    "put, bad id": ("PUT", "/blocklist/nodes/a%20b", [], MERGED),
    "put, too large": ("PUT", NODE, [], MERGED.ljust(65_537)),
    "put, several": ("PUT", "/blocklist/nodes", [], b'{"put": %b}' % MERGED),
    "delete": ("DELETE", "/blocklist/nodes/free", [], b""),
}


@dataclass(frozen=True, kw_only=True)
class SecuredPair:
    """A pair that authenticates; `tokens` has the text for each of the WORDS."""

    pair: Pair
    tokens: dict[str, str]

    def payload(self, name: str, who: str) -> bytes:
        method, path, headers, body = SECURED[name]
        lines = list(CREDENTIALS[who])
        for word in WORDS:
            lines = [line.replace(word, self.tokens[word]) for line in lines]
        return request(path, *headers, *lines, method=method, body=body)


@pytest.fixture(scope="module")
def secured_pair(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[SecuredPair]:
    folder = tmp_path_factory.mktemp("tokens")
    with secured_in_process(folder, databases) as secured:
        revoked = secured.make_token(Role.ADMIN)
        with secured.client(secured.admin) as client:
            client.delete(f"/tokens/{revoked['id']}").raise_for_status()
        found = {role.name: token for role, token in secured.tokens.items()}
    mixed = found["OPERATOR"][:18] + found["ADMIN"][18:]
    tokens = {**found, "FILE": secured.admin, "REVOKED": revoked["token"], "MIXED": mixed}
    settings = {"auth": "tokens", "admin_token_file": str(folder / "admin.token")}
    with pair_on(tmp_path_factory.mktemp("secured"), folder, **settings) as pair:
        yield SecuredPair(pair=pair, tokens=tokens)


@pytest.mark.parametrize("who", CREDENTIALS)
def test_a_credential(secured_pair: SecuredPair, who: str) -> None:
    for name in SECURED:
        secured_pair.pair.same_bytes(secured_pair.payload(name, who))


def test_a_request_never_gets_the_credential_of_an_earlier_one(secured_pair: SecuredPair) -> None:
    """Different credentials in turn on one connection: each gets the same response every time."""

    def talk(port: int) -> object:
        rounds = []
        with connection_to(port) as connection, connection.makefile("rb") as stream:
            for _ in range(4):
                statuses = []
                for who in ("operator", "none", "reader", "revoked", "admin", "another's secret"):
                    for name in ("list", "put"):
                        connection.sendall(secured_pair.payload(name, who))
                        statuses.append(read_response(stream).status)
                rounds.append(statuses)
        return rounds[1:]

    assert secured_pair.pair.same(talk) == [[200, 202, 401, 401, 200, 403, 401, 401, 200, 202, 401, 401]] * 3


def test_a_poller_with_a_token_gets_cached_responses(secured_pair: SecuredPair) -> None:
    bearer = f"Authorization: Bearer {secured_pair.tokens['READER']}"
    port = secured_pair.pair.fast.port

    def route_reads() -> str:
        text = send_request(port, request("/metrics", bearer)).body.decode()
        (line,) = [line for line in text.splitlines() if line.startswith("blocklist_list_reads") and "route" in line]
        return line

    # The route fills the cache; after that it is not needed.
    assert send_request(port, request("/blocklist?", bearer)).status == 200
    before = route_reads()
    responses = exchange(port, *[request("/blocklist", bearer)] * 10, methods=["GET"] * 10)
    assert [response.status for response in responses] == [200] * 10
    assert route_reads() == before


@pytest.mark.timeout(900)
@pytest.mark.parametrize("auth", ["tokens", "off"])
def test_random_bytes_mean_the_same_to_the_fast_path_the_ordinary_route_and_h11(tmp_path: Path, auth: str) -> None:
    with fuzzed_services(tmp_path, auth) as (ports, credentials):
        assert fuzz(ports, credentials, requests=longer(1_500), seed=1) > 0


def test_a_difference_is_found(pair: Pair) -> None:
    send_request(pair.fast.port, put(target="/blocklist/nodes/a"))
    delete = Traffic(pieces=[request("/blocklist/nodes/a", "Connection: close", method="DELETE")], requests=1)
    with pytest.raises(MismatchError, match="differ"):
        # One service in the place of both: it answers 200, and then 404.
        compare((pair.fast.port, pair.fast.port), delete, set())


def test_h11_reads_up_to_the_first_request_that_it_refuses() -> None:
    seen, whole = read_by_h11(READS["plain"] + b"\x00" + READS["plain"], set())
    assert [request.target for request in seen] == [b"/blocklist"]
    assert not whole
