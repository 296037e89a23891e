"""Limits of connections: slow clients, large heads, many connections; with the fast paths and without."""

from __future__ import annotations

import resource
import shutil
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event

import pytest

from tests.integration.conftest import Start
from tests.integration.databases import Databases
from tests.integration.in_process import InProcessService, RunningClock, in_process
from tests.integration.process import ServiceProcess, wait_until
from tests.integration.raw_http import connection_to, exchange, read_response, read_until_closed, request, send_request
from tests.integration.secured import SecuredInProcess

NODE = b'{"action": "MARK_BLOCKED", "cause": "Hot machine"}'


@pytest.fixture(scope="module", params=["true", "false"], ids=["fast", "ordinary"])
def short_timeouts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, migrated: Path
) -> Iterator[ServiceProcess]:
    """A service with timeouts of 0.5 s for heads and 0.75 s for bodies."""
    folder = tmp_path_factory.mktemp("short_timeouts")
    constants = {"HEADER_SECONDS": 0.5, "BODY_SECONDS": 0.75}
    short = {f"app.http.connection.{name}": seconds for name, seconds in constants.items()}
    process = ServiceProcess(folder, fast_path=request.param, constants=short)
    shutil.copy(migrated, process.database)
    with process:
        yield process


@pytest.fixture(scope="module", params=["true", "false"], ids=["fast", "ordinary"])
def hurried(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, databases: Databases
) -> Iterator[InProcessService]:
    """A service whose time passes two hundred times as fast."""
    settings = databases.settings(tmp_path_factory.mktemp("hurried"))
    clock, over = RunningClock(), Event()

    def hurry() -> None:
        while not over.wait(0.005):
            clock.advance(1)

    with in_process(clock, **settings, fast_path=request.param) as service, ThreadPoolExecutor(1) as pool:
        hurrying = pool.submit(hurry)
        yield service
        over.set()
    hurrying.result()


class TestSlow:
    @pytest.mark.parametrize(
        "part",
        [
            b"G",
            b"GET /blocklist HTTP/1.1\r\nHo",
            b"GET /blocklist HTTP/1.1\r\nHost: localhost\r\n",
            b"PUT /blocklist/nodes/a HT",
        ],
    )
    def test_an_incomplete_head_gets_408(self, hurried: InProcessService, part: bytes) -> None:
        with connection_to(hurried.port) as connection, connection.makefile("rb") as stream:
            connection.sendall(part)
            response = read_response(stream)
            assert response.status == 408
            assert response.header("connection") == "close"
            assert response.header("content-type") == "application/problem+json"
            assert response.json()["detail"] == "The head of the request was not received within 10 seconds."
            assert stream.read() == b""

    @pytest.mark.parametrize("method", ["PUT", "DELETE", "POST"])
    @pytest.mark.parametrize("part", [b"", NODE[:10]])
    def test_an_incomplete_body_gets_408(self, hurried: InProcessService, method: str, part: bytes) -> None:
        head = request("/blocklist/nodes/slow", f"Content-Length: {len(NODE)}", method=method)
        with connection_to(hurried.port) as connection, connection.makefile("rb") as stream:
            connection.sendall(head + part)
            response = read_response(stream)
            if method != "POST":  # which gets 405 at once
                assert response.status == 408
                assert response.json()["detail"] == "The body of the request was not received within 30 seconds."
            assert stream.read() == b""
        assert send_request(hurried.port, request("/blocklist/nodes/slow")).status == 404

    def test_an_incomplete_chunked_body_gets_408(self, hurried: InProcessService) -> None:
        head = request("/blocklist/nodes/slow", "Transfer-Encoding: chunked", method="PUT")
        assert read_until_closed(hurried.port, head + b'5\r\n{"act\r\n').startswith(b"HTTP/1.1 408 ")

    def test_sending_byte_by_byte_does_not_extend_the_timeout(self, hurried: InProcessService) -> None:
        with connection_to(hurried.port) as connection, suppress(ConnectionError):
            connection.settimeout(0.05)
            for _ in range(400):
                connection.sendall(b"GET /blocklist HTTP/1.1\r\nX: " if not _ else b"x")
                with suppress(TimeoutError):
                    assert connection.recv(100).startswith(b"HTTP/1.1 408 ")
                    return
        pytest.fail("no 408 within 20 seconds")

    def test_a_connection_that_sends_nothing_is_closed_without_a_response(self, hurried: InProcessService) -> None:
        assert read_until_closed(hurried.port, b"") == b""

    def test_each_request_of_a_connection_has_its_own_timeout(self, hurried: InProcessService) -> None:
        with connection_to(hurried.port) as connection, connection.makefile("rb") as stream:
            for _ in range(2):
                connection.sendall(request("/blocklist"))
                assert read_response(stream).status == 200
            connection.sendall(b"GET /block")
            assert read_response(stream).status == 408

    def test_an_earlier_request_is_answered_before_a_timeout_closes_the_connection(
        self, hurried: InProcessService
    ) -> None:
        etag = send_request(hurried.port, request("/blocklist")).header("etag")
        wait = request("/blocklist", f"If-None-Match: {etag}", "Prefer: wait=20")
        with connection_to(hurried.port) as connection, connection.makefile("rb") as stream:
            connection.sendall(wait + b"GET /blocklist HT")
            assert read_response(stream).status == 304
            assert read_response(stream).status == 408
            assert stream.read() == b""

    def test_a_connection_whose_responses_are_not_read_is_reset(self, hurried: InProcessService) -> None:
        nodes = ",".join(f'"n{number}": {{"action": "MARK_BLOCKED", "cause": "{"x" * 1000}"}}' for number in range(900))
        body = f"{{{nodes}}}".encode()
        assert send_request(hurried.port, request("/blocklist/nodes", method="PUT", body=body)).status in (
            200,
            409,
        )
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", hurried.port))
            connection.sendall(request("/blocklist") * 20)
            wait_until(lambda: _is_reset(connection))


def test_no_timeout_applies_to_a_watch(short_timeouts: ServiceProcess) -> None:
    with connection_to(short_timeouts.port) as connection:
        connection.sendall(request("/blocklist/watch"))
        connection.settimeout(1.5)
        with pytest.raises(TimeoutError):
            _read_until_closed(connection)


def _read_until_closed(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


def _is_reset(connection: socket.socket) -> bool:
    """Whether the connection is closed in the kernel, without reading from it."""
    state = struct.unpack("B", connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1))[0]
    return bool(state == 7)  # TCP_CLOSE


class TestLarge:
    @pytest.mark.parametrize("pieces", [1, 3])
    @pytest.mark.parametrize("method", ["GET", "PUT"])
    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            (["X: " + "x" * 15_000], 0),
            (["X: " + "x" * 17_000], 431),
            ([f"X-{number}: {'x' * 1000}" for number in range(20)], 431),
            ([f"X-{number}: x" for number in range(90)], 0),
            ([f"X-{number}: x" for number in range(101)], 431),
        ],
    )
    def test_head_limits(
        self, short_timeouts: ServiceProcess, headers: list[str], status: int, method: str, pieces: int
    ) -> None:
        body = NODE if method == "PUT" else b""
        data = request("/blocklist/nodes/large", *headers, method=method, body=body)
        size = -(-len(data) // pieces)
        with connection_to(short_timeouts.port) as connection, connection.makefile("rb") as stream:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for begin in range(0, len(data), size):
                connection.sendall(data[begin : begin + size])
                time.sleep(0.02 * (pieces > 1))
            response = read_response(stream)
        assert response.status in ((status,) if status else (200, 201, 404, 409))
        if status:
            assert response.header("content-type") == "application/problem+json"
            assert "16 KiB" in response.json()["detail"]

    @pytest.mark.parametrize(("length", "status"), [(8000, 404), (8300, 404), (20_000, 414), (70_000, 414)])
    def test_url_limits(self, short_timeouts: ServiceProcess, length: int, status: int) -> None:
        response = send_request(short_timeouts.port, request("/nothing?" + "x" * length))
        assert response.status == status, response.body
        assert response.json()["instance"] == "/nothing"

    @pytest.mark.parametrize("opening", [b"GET /", b"GET / HTTP/1.1\r\nX", b"GET / HTTP/1.1\r\nX: "])
    def test_an_endless_head_is_refused_early(self, short_timeouts: ServiceProcess, opening: bytes) -> None:
        sent = 0
        with connection_to(short_timeouts.port) as connection, suppress(ConnectionError):
            connection.sendall(opening)
            while sent < 100_000_000:
                sent += connection.send(b"x" * 65536)
        assert sent < 20_000_000

    def test_the_head_limit_applies_to_each_pipelined_request(self, short_timeouts: ServiceProcess) -> None:
        many = request("/blocklist", "X: " + "x" * 800) * 60
        responses = exchange(short_timeouts.port, many, methods=["GET"] * 60)
        assert {response.status for response in responses} == {200}

    def test_requests_before_one_that_is_too_large_are_answered(self, short_timeouts: ServiceProcess) -> None:
        data = request("/blocklist") + request("/readyz") + request("/blocklist", "X: " + "x" * 20_000)
        with connection_to(short_timeouts.port) as connection, connection.makefile("rb") as stream:
            connection.sendall(data)
            assert [read_response(stream).status for _ in range(2)] == [200, 200]
            assert stream.read()[:12] in (b"", b"HTTP/1.1 431")

    def test_the_head_limit_does_not_count_bodies(self, short_timeouts: ServiceProcess) -> None:
        body = NODE[:-1] + b" " * 60_000 + b"}"
        put = request("/blocklist/nodes/again", method="PUT", body=body)
        responses = exchange(short_timeouts.port, put * 20, methods=["PUT"] * 20)
        assert {response.status for response in responses[1:]} == {409}


class TestGarbage:
    GARBAGE = b"\x16\x03\x01 no HTTP\r\n\r\n"

    def test_it_gets_400(self, short_timeouts: ServiceProcess) -> None:
        response = read_until_closed(short_timeouts.port, self.GARBAGE)
        assert response.startswith(b"HTTP/1.1 400 ")
        assert b"application/problem+json" in response

    def test_behind_a_pending_request_it_gets_its_400_after_that_one(self, short_timeouts: ServiceProcess) -> None:
        put = request("/blocklist/nodes/garbage", "Prefer: wait=1", method="PUT", body=NODE)
        with connection_to(short_timeouts.port) as connection, connection.makefile("rb") as stream:
            connection.sendall(put + self.GARBAGE)
            assert [read_response(stream, "PUT").status for _ in range(2)] in ([201, 400], [409, 400])
            assert stream.read() == b""

    def test_an_invalid_url_behind_a_pending_request_closes_the_connection(
        self, short_timeouts: ServiceProcess
    ) -> None:
        put = request("/blocklist/nodes/garbage", method="PUT", body=NODE)
        with connection_to(short_timeouts.port) as connection, connection.makefile("rb") as stream:
            connection.sendall(put + request("test:80", method="CONNECT"))
            assert read_response(stream, "PUT").status in (201, 409)
            assert read_response(stream).status == 405
            assert stream.read() == b""

    def test_behind_a_watch_nothing_is_read(self, short_timeouts: ServiceProcess) -> None:
        """The watch has no end: what comes behind it waits for ever, in the buffers of the sender."""
        with connection_to(short_timeouts.port) as connection, connection.makefile("rb") as stream:
            connection.sendall(request("/blocklist/watch"))
            assert stream.readline() == b"HTTP/1.1 200 OK\r\n"
            connection.settimeout(0.5)
            with pytest.raises(TimeoutError):
                connection.sendall(self.GARBAGE * 2_000_000)
            connection.settimeout(30)
            block = request("/blocklist/nodes/behind-a-watch", method="PUT", body=NODE)
            assert send_request(short_timeouts.port, block, "PUT").status in (201, 409)
            assert any(b"behind-a-watch" in line for line in iter(stream.readline, b""))

    def test_in_a_chunked_body_it_gets_one_400(self, short_timeouts: ServiceProcess) -> None:
        head = request("/blocklist/nodes/slow", "Transfer-Encoding: chunked", method="PUT")
        response = read_until_closed(short_timeouts.port, head + b"5\r\n12345\r\nzz\r\n")
        assert response.startswith(b"HTTP/1.1 400 ")
        assert response.count(b"HTTP/1.1 ") == 1

    @pytest.mark.parametrize(
        "head",
        [
            b"GET /blocklist HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"GET /blocklist HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            b"GET /blocklist HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
            b"GET /blocklist HTTP/1.1\r\nHost : x\r\n\r\n",
            b"GET /blocklist HTTP/1.1\r\nHost: localhost\r\n folded: y\r\n\r\n",
            b"GET /blocklist HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
        ],
    )
    def test_ambiguous_requests_get_400(self, short_timeouts: ServiceProcess, head: bytes) -> None:
        assert read_until_closed(short_timeouts.port, head + request("/readyz")).startswith(b"HTTP/1.1 400 ")


class TestTrailers:
    """Fields behind a chunked body. A proxy that replaces headers may pass them on as they are."""

    CHUNKED = "Transfer-Encoding: chunked"

    def test_they_are_not_taken_for_headers(self, short_timeouts: ServiceProcess) -> None:
        body = b"%x\r\n%b\r\n0\r\nX-Request-ID: of-a-trailer\r\nHost: evil.example\r\n\r\n" % (len(NODE), NODE)
        put = request("/blocklist/nodes/trailers", self.CHUNKED, method="PUT", body=body, length=False)
        response, listed = exchange(short_timeouts.port, put + request("/blocklist"), methods=["PUT", "GET"])
        assert (response.status, listed.status) == (201, 200)
        assert response.header("x-request-id") != "of-a-trailer"

    def test_they_are_no_credentials(self, secured: SecuredInProcess) -> None:
        trailer = b"Authorization: Bearer %b" % secured.admin.encode()
        body = b"%x\r\n%b\r\n0\r\n%b\r\n\r\n" % (len(NODE), NODE, trailer)
        put = request("/blocklist/nodes/trailers", self.CHUNKED, method="PUT", body=body, length=False)
        assert send_request(secured.service.port, put, "PUT").status == 401

    @pytest.mark.parametrize(
        "part",
        [b"0\r\n" + b"a: b\r\n" * 4000, b"0\r\na: " + b"x" * 20_000, b"1;" + b"x" * 20_000],
        ids=["trailers", "one trailer", "an extension of a chunk"],
    )
    def test_a_body_with_too_much_besides_its_content_gets_431(self, service: ServiceProcess, part: bytes) -> None:
        """An endless one would fill the memory: 100 MB of trailers took 1.9 GB."""
        head = request("/blocklist/nodes/trailers", self.CHUNKED, "Expect: 100-continue", method="PUT")
        with connection_to(service.port) as connection, connection.makefile("rb") as stream:
            connection.sendall(head)
            assert stream.readline() == b"HTTP/1.1 100 Continue\r\n"
            assert stream.readline() == b"\r\n"
            connection.sendall(part)
            response = read_response(stream)
            assert (response.status, stream.read()) == (431, b"")
            assert "16 KiB" in response.json()["detail"]

    def test_a_large_body_in_small_chunks_is_accepted(self, service: ServiceProcess) -> None:
        blank = b"1;x=y\r\n \r\n" * 10_000
        body = blank + b"%x\r\n%b\r\n0\r\n\r\n" % (len(NODE), NODE)
        put = request("/blocklist/nodes/small-chunks", self.CHUNKED, method="PUT", body=body, length=False)
        assert send_request(service.port, put, "PUT").status == 201


class TestMany:
    def test_connections_beyond_the_limit_get_503(self, start: Start) -> None:
        service = start(max_connections="20")
        with _idle_connections(service.port, 20) as idle:
            with connection_to(service.port) as connection, connection.makefile("rb") as stream:
                response = read_response(stream)
                assert (response.status, response.header("retry-after")) == (503, "1")
                assert stream.read() == b""
            idle.pop().close()
            wait_until(lambda: _status(service.port) == 200)

    def test_ten_thousand_idle_connections_disturb_no_other(self, start: Start) -> None:
        """Fewer if this process may not open as many."""
        service = start(constants={"app.http.connection.HEADER_SECONDS": 120.0})
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        count = min(10_000, int(hard * 0.9) - 500)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        try:
            with _idle_connections(service.port, count):
                etag = send_request(service.port, request("/blocklist")).header("etag")
                assert send_request(service.port, request("/blocklist", f"If-None-Match: {etag}")).status == 304
                assert (
                    send_request(service.port, request("/blocklist/nodes/a", method="PUT", body=NODE), "PUT").status
                    == 201
                )
                assert b"worker" not in send_request(service.port, request("/blocklist/nodes/a")).body
            wait_until(lambda: _status(service.port) == 200)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _status(port: int) -> int:
    with suppress(ConnectionError):
        return send_request(port, request("/blocklist")).status
    return 0


@contextmanager
def _idle_connections(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Idle connections, from several loopback addresses, as each has ports for a few thousand only."""
    with ExitStack() as stack:
        idle = []
        for number in range(count):
            source = (f"127.0.0.{2 + number // 2500}", 0)
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30, source))
            idle.append(connection)
        yield idle
