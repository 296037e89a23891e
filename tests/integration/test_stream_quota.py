"""How many requests one client may hold open."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.integration.conftest import Start
from tests.integration.process import ServiceProcess, wait_until
from tests.integration.raw_http import RawResponse, request, send_request

NODE = b'{"action": "MARK_BLOCKED", "cause": "Hot machine"}'
MOST = 3


@pytest.fixture(params=["true", "false"], ids=["fast", "ordinary"])
def narrow(request: pytest.FixtureRequest, start: Start) -> ServiceProcess:
    return start(max_waits_per_client=str(MOST), trusted_proxies="127.0.0.2/32", fast_path=request.param)


def test_beyond_the_limit_nothing_waits_and_all_else_goes_on(narrow: ServiceProcess) -> None:
    etag = send_request(narrow.port, request("/blocklist")).header("etag")
    with ExitStack() as stack:
        for _ in range(MOST):
            assert stack.enter_context(watching(narrow)).status == 200
        for payload in (
            request("/blocklist/watch"),
            request("/blocklist", "Prefer: wait=1", f"If-None-Match: {etag}"),
            request("/blocklist/nodes/a", "Prefer: wait=1", method="PUT", body=NODE),
        ):
            answer = send_request(narrow.port, payload)
            assert (answer.status, answer.header("retry-after")) == (503, "5")
            assert answer.json()["detail"] == "This client has 3 watches and waiting requests open, and may have 3."
        assert send_request(narrow.port, request("/blocklist/nodes/a")).status == 404
        assert send_request(narrow.port, request("/blocklist", "Prefer: wait=1")).status == 200
        assert send_request(narrow.port, request("/blocklist/nodes/a", method="PUT", body=NODE)).status == 201
    wait_until(lambda: may_watch(narrow))


def test_every_way_out_makes_room(narrow: ServiceProcess) -> None:
    """Of clients that leave, of answers that come, and of those that are asked for no more."""
    etag = send_request(narrow.port, request("/blocklist")).header("etag")
    poll = request("/blocklist", "Prefer: wait=1", f"If-None-Match: {etag}")
    for _ in range(MOST + 1):
        assert send_request(narrow.port, poll).status == 304
    for _ in range(MOST + 1):
        with socket.create_connection(("127.0.0.1", narrow.port), 30) as leaving:
            leaving.sendall(poll.replace(b"wait=1", b"wait=60"))
        wait_until(lambda: may_watch(narrow))
    with ExitStack() as stack:
        for number in range(MOST):
            wait = request(f"/blocklist/nodes/n{number}", "Prefer: wait=1", method="PUT", body=NODE)
            waiting = stack.enter_context(socket.create_connection(("127.0.0.1", narrow.port), 30))
            waiting.sendall(wait)
    wait_until(lambda: may_watch(narrow))


def test_each_address_is_a_client_of_its_own(narrow: ServiceProcess) -> None:
    with ExitStack() as stack:
        for _ in range(MOST):
            stack.enter_context(watching(narrow, source="127.0.0.9"))
        assert not may_watch(narrow, source="127.0.0.9")
        assert may_watch(narrow)
        # Who is no trusted proxy says of others what it likes.
        assert not may_watch(narrow, "X-Forwarded-For: 203.0.113.7", source="127.0.0.9")


def test_behind_a_trusted_proxy_the_address_is_the_last_one_it_names(narrow: ServiceProcess) -> None:
    with ExitStack() as stack:
        for number in range(MOST):
            forged = f"X-Forwarded-For: 198.51.100.{number}, 203.0.113.7"
            stack.enter_context(watching(narrow, forged, source="127.0.0.2"))
        assert not may_watch(narrow, "X-Forwarded-For: 203.0.113.7", source="127.0.0.2")
        assert may_watch(narrow, "X-Forwarded-For: 203.0.113.8", source="127.0.0.2")


@contextmanager
def watching(service: ServiceProcess, *headers: str, source: str = "127.0.0.1") -> Iterator[RawResponse]:
    """The head of the answer to a watch, open until the end of the block."""
    address = ("127.0.0.1", service.port)
    with socket.create_connection(address, 30, (source, 0)) as connection, connection.makefile("rb") as stream:
        connection.sendall(request("/blocklist/watch", *headers))
        status = int(stream.readline().split()[1])
        while stream.readline() != b"\r\n":
            pass
        if status == 200:
            assert stream.readline()  # the first chunk: it is under way
        yield RawResponse(status=status, headers=(), body=b"")


def may_watch(service: ServiceProcess, *headers: str, source: str = "127.0.0.1") -> bool:
    with watching(service, *headers, source=source) as answer:
        return answer.status == 200
