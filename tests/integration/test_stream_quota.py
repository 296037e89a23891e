"""The limit on the watches and waiting requests of one client."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.integration.conftest import StartInProcess
from tests.integration.in_process import InProcessService
from tests.integration.process import wait_until
from tests.integration.raw_http import RawResponse, request, send_request

NODE = b'{"action": "MARK_BLOCKED", "cause": "Hot machine"}'
MAX_WAITS = 3


@pytest.fixture(params=["true", "false"], ids=["fast", "ordinary"])
def limited_service(request: pytest.FixtureRequest, start_in_process: StartInProcess) -> InProcessService:
    return start_in_process(
        max_waits_per_client=str(MAX_WAITS), trusted_proxies="127.0.0.2/32", fast_path=request.param
    )


def test_beyond_the_limit_waits_are_503_and_other_requests_succeed(limited_service: InProcessService) -> None:
    etag = send_request(limited_service.port, request("/blocklist")).header("etag")
    with ExitStack() as stack:
        for _ in range(MAX_WAITS):
            assert stack.enter_context(watching(limited_service)).status == 200
        for payload in (
            request("/blocklist/watch"),
            request("/blocklist", "Prefer: wait=1", f"If-None-Match: {etag}"),
            request("/blocklist/nodes/a", "Prefer: wait=1", method="PUT", body=NODE),
        ):
            answer = send_request(limited_service.port, payload)
            assert (answer.status, answer.header("retry-after")) == (503, "5")
            assert answer.json()["detail"] == "This client has 3 watches and waiting requests open; the limit is 3."
        assert send_request(limited_service.port, request("/blocklist/nodes/a")).status == 404
        assert send_request(limited_service.port, request("/blocklist", "Prefer: wait=1")).status == 200
        assert send_request(limited_service.port, request("/blocklist/nodes/a", method="PUT", body=NODE)).status == 201
    wait_until(lambda: may_watch(limited_service))


def test_every_way_to_end_frees_a_slot(limited_service: InProcessService) -> None:
    """Responses, clients that disconnect, and requests whose wait times out."""
    etag = send_request(limited_service.port, request("/blocklist")).header("etag")
    poll = request("/blocklist", "Prefer: wait=1", f"If-None-Match: {etag}")
    for _ in range(MAX_WAITS + 1):
        assert limited_service.in_time(lambda: send_request(limited_service.port, poll)).status == 304
    for _ in range(MAX_WAITS + 1):
        with socket.create_connection(("127.0.0.1", limited_service.port), 30) as leaving:
            leaving.sendall(poll.replace(b"wait=1", b"wait=60"))
        wait_until(lambda: may_watch(limited_service))
    with ExitStack() as stack:
        for number in range(MAX_WAITS):
            wait = request(f"/blocklist/nodes/n{number}", "Prefer: wait=1", method="PUT", body=NODE)
            waiting = stack.enter_context(socket.create_connection(("127.0.0.1", limited_service.port), 30))
            waiting.sendall(wait)
    wait_until(lambda: may_watch(limited_service))


def test_each_address_is_a_separate_client(limited_service: InProcessService) -> None:
    with ExitStack() as stack:
        for _ in range(MAX_WAITS):
            stack.enter_context(watching(limited_service, source="127.0.0.9"))
        assert not may_watch(limited_service, source="127.0.0.9")
        assert may_watch(limited_service)
        # The header of a client that is no trusted proxy is ignored.
        assert not may_watch(limited_service, "X-Forwarded-For: 203.0.113.7", source="127.0.0.9")


def test_behind_a_trusted_proxy_the_last_forwarded_address_counts(limited_service: InProcessService) -> None:
    with ExitStack() as stack:
        for number in range(MAX_WAITS):
            forged = f"X-Forwarded-For: 198.51.100.{number}, 203.0.113.7"
            stack.enter_context(watching(limited_service, forged, source="127.0.0.2"))
        assert not may_watch(limited_service, "X-Forwarded-For: 203.0.113.7", source="127.0.0.2")
        assert may_watch(limited_service, "X-Forwarded-For: 203.0.113.8", source="127.0.0.2")


@contextmanager
def watching(service: InProcessService, *headers: str, source: str = "127.0.0.1") -> Iterator[RawResponse]:
    """The head of the response to a watch, open until the end of the block."""
    address = ("127.0.0.1", service.port)
    with socket.create_connection(address, 30, (source, 0)) as connection, connection.makefile("rb") as stream:
        connection.sendall(request("/blocklist/watch", *headers))
        status = int(stream.readline().split()[1])
        while stream.readline() != b"\r\n":
            pass
        if status == 200:
            assert stream.readline()  # the first chunk: the stream has started
        yield RawResponse(status=status, headers=(), body=b"")


def may_watch(service: InProcessService, *headers: str, source: str = "127.0.0.1") -> bool:
    with watching(service, *headers, source=source) as answer:
        return answer.status == 200
