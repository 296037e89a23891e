"""The plain GET /blocklist, answered below ASGI, returns the bytes of the ordinary route."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.integration.bodies import all_changes, block, later
from tests.integration.conftest import StartInProcess
from tests.integration.in_process import InProcessService
from tests.integration.process import ServiceProcess, wait_until
from tests.integration.raw_http import connection_to, exchange, read_response, read_until_closed, request, send_request
from tests.length import longer

CLOSING_REQUEST = request("/healthz", "Connection: close")
"""Makes the server close the connection after it has answered all requests before this one."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two services with the same database, with the fast path and without."""

    fast: ServiceProcess | InProcessService
    ordinary: ServiceProcess | InProcessService

    def same_response(self, ask_one: Callable[[int], object]) -> object:
        """The response of both, which must be the same."""
        fast, ordinary = ask_one(self.fast.port), ask_one(self.ordinary.port)
        assert fast == ordinary
        return fast


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Path:
    """The database of a service that blocked some nodes and stopped."""
    process = ServiceProcess(tmp_path_factory.mktemp("content"))
    process.database.write_bytes(migrated.read_bytes())
    with process, process.client() as client:
        ended = {f"ended-{n}": block(endTimestamp=later(2)) for n in range(3)}
        lasting = {f"n{n}": block(cause=f'"quoted" é 😀 {n}') for n in range(50)}
        client.put("/blocklist/nodes", json=ended | lasting).raise_for_status()
        wait_until(lambda: len(all_changes(client)) == 56)
    return process.database


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, content: Path) -> Iterator[Pair]:
    fast = ServiceProcess(tmp_path_factory.mktemp("fast"))
    ordinary = ServiceProcess(tmp_path_factory.mktemp("ordinary"), fast_path="false")
    for process in (fast, ordinary):
        # With its head file; without it the database would be taken for a backup, and begin a new history.
        for name in (content.name, f"{content.name}.head"):
            shutil.copy(content.with_name(name), process.database.with_name(name))
    with fast, ordinary:
        yield Pair(fast=fast, ordinary=ordinary)


@pytest.fixture(scope="module")
def etags(pair: Pair) -> list[str]:
    """The ETags of the list, plain and compressed."""
    asked = (request("/blocklist"), request("/blocklist", "Accept-Encoding: gzip"))
    return [send_request(pair.ordinary.port, payload).header("etag") or "" for payload in asked]


REQUESTS: dict[str, bytes] = {
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
    "HTTP/1.0 HEAD": request("/blocklist", method="HEAD", version="HTTP/1.0"),
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
    "Content-Length: negative": request("/blocklist", "Content-Length: -1"),
    "two lengths": request("/blocklist", "Content-Length: 0", "Content-Length: 1", body=b"x", length=False),
    "length and chunks": request(
        "/blocklist", "Transfer-Encoding: chunked", "Content-Length: 2", body=b"0\r\n\r\n", length=False
    ),
    "Expect": request("/blocklist", "Expect: 100-continue"),
    "Expect with a body": request("/blocklist", "Expect: 100-continue", body=b"{}"),
    "Expect, other": request("/blocklist", "Expect: a-miracle"),
    "a query": request("/blocklist?x=1"),
    "an empty query": request("/blocklist?"),
    "minRevision, there": request("/blocklist?minRevision=1"),
    "minRevision, rubbish": request("/blocklist?minRevision=x"),
    "percent-encoded": request("/%62locklist"),
    "percent-encoded slash": request("/blocklist%2F"),
    "percent-encoded zero": request("/blocklist%00"),
    "a fragment": request("/blocklist#x"),
    "a slash after it": request("/blocklist/"),
    "two slashes": request("//blocklist"),
    "a dot path": request("/./blocklist"),
    "a path up": request("/x/../blocklist"),
    "upper case": request("/BLOCKLIST"),
    "longer": request("/blocklists"),
    "shorter": request("/blocklis"),
    "bytes in the path": request(b"/blocklist\xc3\xa9"),
    "parameters": request("/blocklist;x=1"),
    "absolute": request("http://test/blocklist"),
    "absolute, elsewhere": request("http://elsewhere.example/blocklist?x"),
    "star": request("*", method="OPTIONS"),
    "CONNECT": request("test:80", method="CONNECT"),
    "HEAD": request("/blocklist", method="HEAD"),
    "HEAD gzip": request("/blocklist", "Accept-Encoding: gzip", method="HEAD"),
    "HEAD 304": request("/blocklist", "If-None-Match: *", method="HEAD"),
    "POST": request("/blocklist", method="POST", body=b"{}"),
    "PUT": request("/blocklist", method="PUT", body=b"{}"),
    "DELETE": request("/blocklist", method="DELETE"),
    "OPTIONS": request("/blocklist", method="OPTIONS"),
    "TRACE": request("/blocklist", method="TRACE"),
    "PATCH": request("/blocklist", method="PATCH"),
    "an unknown method": request("/blocklist", method="BREW"),
    "get in lower case": request("/blocklist", method="get"),
    "a folded header": b"GET /blocklist HTTP/1.1\r\nHost: localhost\r\nX-A: b\r\n c\r\n\r\n",
    "a header without colon": b"GET /blocklist HTTP/1.1\r\nHost test\r\n\r\n",
    "a space before the colon": b"GET /blocklist HTTP/1.1\r\nHost: localhost\r\nIf-None-Match : *\r\n\r\n",
    "a zero byte in a header": b"GET /blocklist HTTP/1.1\r\nHost: localhost\r\nX-A: \x00\r\n\r\n",
    "not HTTP": b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
}


@pytest.mark.parametrize("payload", [pytest.param(payload, id=name) for name, payload in REQUESTS.items()])
def test_the_response_is_that_of_the_ordinary_route(pair: Pair, payload: bytes) -> None:
    raw = pair.same_response(lambda port: read_until_closed(port, payload + CLOSING_REQUEST))
    assert raw, "a response"


@pytest.mark.parametrize(
    "name", ["plain", "gzip", "HEAD", "HEAD gzip", "If-None-Match, star", "Expect", "odd header cases"]
)
def test_the_response_is_the_same_on_a_connection_that_stays_open(pair: Pair, name: str) -> None:
    method = "HEAD" if name.startswith("HEAD") else "GET"
    pair.same_response(lambda port: send_request(port, REQUESTS[name], method).without_volatile_headers())


@pytest.mark.parametrize("form", ["{0}", "W/{0}", '"x", {0}', '{0},"y"', "W/{0}, *", " {0}", "{0} {0}"])
@pytest.mark.parametrize("extra", [[], ["Accept-Encoding: gzip"], ["Prefer: wait=x"], ["Connection: close"]])
@pytest.mark.parametrize("which", [0, 1])
def test_etags_match_as_on_the_ordinary_route(
    pair: Pair, etags: list[str], form: str, extra: list[str], which: int
) -> None:
    line = "If-None-Match: " + form.format(etags[which])
    pair.same_response(lambda port: read_until_closed(port, request("/blocklist", line, *extra) + CLOSING_REQUEST))


UPGRADES = {
    "Upgrade to WebSocket": request(
        "/blocklist",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version: 13",
    ),
    "Upgrade to HTTP/2": request(
        "/blocklist", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AA"
    ),
}


@pytest.mark.parametrize("payload", [pytest.param(payload, id=name) for name, payload in UPGRADES.items()])
def test_an_unsupported_upgrade_gets_the_response_of_the_ordinary_route(pair: Pair, payload: bytes) -> None:
    """Sent alone, because the parser does not read what follows as HTTP/1.1."""
    pair.same_response(lambda port: send_request(port, payload).without_volatile_headers())


def test_repeated_headers_are_read_as_on_the_ordinary_route(pair: Pair, etags: list[str]) -> None:
    lines = ['If-None-Match: "x"', f"If-None-Match: {etags[0]}", "Accept-Encoding: br", "Accept-Encoding: gzip"]
    for order in (lines, lines[::-1]):
        payload = request("/blocklist", *order) + CLOSING_REQUEST
        pair.same_response(partial(read_until_closed, payload=payload))


def test_a_request_sent_byte_by_byte_gets_the_same_response(pair: Pair) -> None:
    whole = REQUESTS["gzip"]
    pair.same_response(
        lambda port: exchange(port, *(whole[n : n + 1] for n in range(len(whole))))[0].without_volatile_headers()
    )


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_looks_like_a_request_is_a_body(pair: Pair, *, chunked: bool) -> None:
    """The body arrives alone, after the 100 Continue, and its bytes are those of a plain read."""
    looks = REQUESTS["plain"]
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(looks), looks) if chunked else looks
    how = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(looks)}"
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

    pair.same_response(talk)


@pytest.mark.parametrize("cut", [1, 5, 20, -4, -2, -1])
def test_a_read_behind_an_incomplete_request_belongs_to_it(pair: Pair, cut: int) -> None:
    """A whole plain read behind half a request is read as the rest of that one, as on the ordinary route."""
    plain = REQUESTS["plain"]

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

    pair.same_response(talk)


@pytest.mark.parametrize(
    "names",
    [
        ["plain", "plain"],
        ["plain", "gzip", "plain"],
        ["HEAD", "plain"],
        ["PUT", "plain"],
        ["a query", "plain"],
        ["plain", "a body"],
        ["a body", "plain"],
        ["line breaks before it", "plain"],
    ],
)
def test_pipelined_requests_are_answered_in_full_each_time(pair: Pair, names: list[str]) -> None:
    """The same bytes repeatedly on an idle connection: each time as many responses as requests."""
    together = b"".join(REQUESTS[name] for name in names)
    methods = [REQUESTS[name].split()[0].decode() for name in names]

    def talk(port: int) -> object:
        with connection_to(port) as connection, connection.makefile("rb") as stream:
            responses = []
            for _ in range(4):
                connection.sendall(together)
                responses.append([read_response(stream, method).without_volatile_headers() for method in methods])
            assert responses == [responses[0]] * 4
            return responses

    pair.same_response(talk)


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

    pair.same_response(one_by_one)
    pair.same_response(
        lambda port: [
            response.without_volatile_headers() for response in exchange(port, b"".join(sent), methods=methods)
        ]
    )


def test_many_pipelined_requests_are_answered_in_order(pair: Pair) -> None:
    sent = (request("/blocklist") + request("/blocklist/nodes/n1") + request("/blocklist", "If-None-Match: *")) * 100
    pair.same_response(lambda port: read_until_closed(port, sent + CLOSING_REQUEST))


def test_a_slow_reader_gets_every_response(pair: Pair) -> None:
    """More responses than fit into the socket's buffers, requested before the first is read."""
    sent = request("/blocklist") * 2_000

    def read_late(port: int) -> bytes:
        with connection_to(port) as connection, connection.makefile("rb") as stream:
            connection.sendall(sent)
            responses = {read_response(stream).body for _ in range(2_000)}
        assert len(responses) == 1
        return responses.pop()

    pair.same_response(read_late)


# Well-formed only: uvicorn's 400 for a malformed request overtakes pending responses of the ordinary route.
names = st.sampled_from(
    ["Accept-Encoding", "If-None-Match", "Connection", "Prefer", "Expect", "Cache-Control", "Authorization", "X-Other"]
)
values = st.sampled_from(
    ["gzip", "*", '"x"', "{0}", "{1}", "W/{0}", "keep-alive", "wait=x", "0", "", "gzip;q=0", "a, b"]
)
bodies = st.sampled_from([b"", b"", b"", b"{}", b"x" * 100])
headers = st.lists(st.tuples(names, st.sampled_from([str.title, str.lower, str.upper]), values), max_size=4)
one_request = st.builds(
    lambda method, target, version, lines, body: request(target, *lines, method=method, version=version, body=body),
    st.sampled_from(["GET"] * 6 + ["HEAD", "POST", "DELETE", "OPTIONS"]),
    st.sampled_from(["/blocklist"] * 5 + ["/blocklist?x=1", "/blocklist/nodes/n1", "/%62locklist", "/blocklist/x"]),
    st.sampled_from(["HTTP/1.1"] * 4 + ["HTTP/1.0"]),
    headers.map(lambda found: [f"{case(name)}: {value}" for name, case, value in found]),
    bodies,
)


@given(st.lists(one_request, min_size=1, max_size=5))
@settings(max_examples=longer(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_mix_of_requests_gets_the_responses_of_the_ordinary_route(
    pair: Pair, etags: list[str], mix: list[bytes]
) -> None:
    payload = b"".join(mix).replace(b"{0}", etags[0].encode()).replace(b"{1}", etags[1].encode())
    pair.same_response(lambda port: read_until_closed(port, payload + CLOSING_REQUEST))


def test_an_expired_node_is_absent_from_cached_responses(
    start_in_process: StartInProcess, content: Path, tmp_path: Path
) -> None:
    """At each time a node is listed until its end and never after it."""
    for name in ("fast", "ordinary"):
        shutil.copytree(content.parent, tmp_path / name, ignore=shutil.ignore_patterns("*.log"))
    fast = start_in_process(tmp_path / "fast")
    ordinary = start_in_process(tmp_path / "ordinary", fast_path="false")
    for service in (fast, ordinary):
        client = service.client()
        ends = {f"short-{n}": service.clock.now + 200 * (n + 1) for n in range(8)}
        body = {name: block(endTimestamp=end) for name, end in ends.items()}
        client.put("/blocklist/nodes", json=body).raise_for_status()
        _poll_until_expired(service, ends)
        service.until(lambda client=client: len(all_changes(client)) == 56 + 16)  # type: ignore[misc]
    pair = Pair(fast=fast, ordinary=ordinary)
    bodies = pair.same_response(lambda port: send_request(port, request("/blocklist")).body)
    assert b"short-" not in bytes(str(bodies), "utf-8")
    etag = pair.same_response(lambda port: send_request(port, request("/blocklist")).header("etag"))
    pair.same_response(
        lambda port: send_request(port, request("/blocklist", f"If-None-Match: {etag}")).without_volatile_headers()
    )


def _poll_until_expired(service: InProcessService, ends: dict[str, int]) -> None:
    """Poll until all have expired, often without any change between two responses, and at each end exactly."""
    with connection_to(service.port) as connection, connection.makefile("rb") as stream:
        etags: dict[str, bytes] = {}
        while service.clock.now <= max(ends.values()):
            for _ in range(3):
                connection.sendall(request("/blocklist"))
                response = read_response(stream)
                listed = {name for name in response.json() if name in ends}
                assert listed == {name for name, end in ends.items() if end > service.clock.now}
                etag = response.header("etag") or ""
                assert etags.setdefault(etag, response.body) == response.body, "one ETag is one body"
            service.clock.advance(0.05)


def test_a_read_after_a_change_returns_the_new_list(start_in_process: StartInProcess) -> None:
    service = start_in_process()
    with connection_to(service.port) as connection, connection.makefile("rb") as stream:
        for number in range(100):
            payload = request(
                f"/blocklist/nodes/n{number}", method="PUT", body=b'{"action":"MARK_BLOCKED","cause":"x"}'
            )
            behind = request("/blocklist") + request("/blocklist", "Accept-Encoding: gzip")
            for piece in (payload + behind,) if number % 2 else (payload, request("/blocklist"), REQUESTS["gzip"]):
                connection.sendall(piece)
            made = read_response(stream)
            for listed in (read_response(stream), read_response(stream)):
                assert listed.header("blocklist-revision") == made.header("blocklist-revision") == str(number + 1)
            assert made.status == 201
