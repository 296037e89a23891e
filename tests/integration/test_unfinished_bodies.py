"""Bodies that are not finished: one client's do not fill the memory, and others send theirs meanwhile."""

from __future__ import annotations

import json
import re
import select
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import httpx
import pytest

from app.http.connection import MAX_UNFINISHED_BYTES
from blocklist.model.claims import Role
from tests.integration.bodies import block
from tests.integration.listeners import heartbeat, post_heartbeat, register
from tests.integration.process import ROOT, ServiceProcess, wait_until
from tests.integration.raw_http import connection_to, read_response, request
from tests.integration.secured import SecuredInProcess
from tests.integration.test_overload import resident_bytes

LENGTH: Final = 2_000_000
"""Of a heartbeat, in bytes; the last byte is not sent."""
SENT: Final = 50
LARGE: Final = [f"n{number:0200}" for number in range(1000)]
"""Nodes whose report is larger than 64 KiB."""


@pytest.fixture
def unfinished(secured: SecuredInProcess) -> Iterator[list[socket.socket]]:
    """Connections of one listener's token, each with a heartbeat that is not finished."""
    headers = (f"Authorization: Bearer {secured.tokens[Role.LISTENER]}", f"Content-Length: {LENGTH}")
    payload = request("/listeners/x/heartbeat", *headers, method="POST") + b" " * (LENGTH - 1)
    with ExitStack() as stack:
        connections = [stack.enter_context(connection_to(secured.service.port)) for _ in range(SENT)]
        for connection in connections:
            connection.sendall(payload)
        yield connections


@pytest.fixture
def same(secured: SecuredInProcess) -> Iterator[httpx.Client]:
    """A client with the same token."""
    with secured.client(secured.tokens[Role.LISTENER]) as client:
        yield client


def answered(connections: list[socket.socket]) -> list[socket.socket]:
    return select.select(connections, [], [], 0)[0]


def bytes_kept(connections: list[socket.socket]) -> int:
    return (len(connections) - len(answered(connections))) * LENGTH


def test_they_are_refused_beyond_a_limit(unfinished: list[socket.socket]) -> None:
    wait_until(lambda: bytes_kept(unfinished) <= MAX_UNFINISHED_BYTES)
    with answered(unfinished)[0].makefile("rb") as stream:
        answer = read_response(stream)
    assert (answer.status, answer.header("retry-after")) == (503, "1")
    assert "64 MiB" in answer.json()["detail"]


@pytest.mark.usefixtures("unfinished")
def test_other_clients_are_not_refused_meanwhile(secured: SecuredInProcess) -> None:
    with secured.client(secured.make_token(Role.LISTENER, "other")["token"]) as other:
        register(other, "other")
        heartbeat(other, "other", nodes=LARGE)
    with secured.client(secured.tokens[Role.OPERATOR]) as operator:
        assert operator.put("/blocklist/nodes/n1", json=block()).status_code == 201


@pytest.mark.usefixtures("unfinished")
def test_small_bodies_of_the_same_client_are_not_refused(same: httpx.Client) -> None:
    register(same, "same")
    heartbeat(same, "same", taskManagers={"same:1": "n1"})


def test_bodies_that_ended_do_not_count(unfinished: list[socket.socket], same: httpx.Client) -> None:
    wait_until(lambda: bytes_kept(unfinished) <= MAX_UNFINISHED_BYTES)
    register(same, "same")
    for connection in unfinished:
        connection.close()
    wait_until(lambda: post_heartbeat(same, "same", nodes=LARGE).status_code == 200)


def changing_requests() -> list[tuple[str, str]]:
    """Every operation that changes something, from the description of the API: method and path."""
    paths = json.loads((ROOT / "openapi/blocklist.json").read_text())["paths"]
    methods = [(method.upper(), path) for path, operations in paths.items() for method in operations]
    return [(method, re.sub(r"{\w+}", "x", path)) for method, path in methods if method in ("PUT", "POST", "DELETE")]


@pytest.mark.parametrize(("method", "path"), changing_requests())
def test_nobody_sends_a_body_without_credentials(secured: SecuredInProcess, method: str, path: str) -> None:
    """The response comes before the body, of which nothing is kept."""
    with connection_to(secured.service.port) as connection, connection.makefile("rb") as stream:
        connection.sendall(request(path, f"Content-Length: {LENGTH}", "Content-Type: application/json", method=method))
        assert read_response(stream).status == 401


@pytest.mark.parametrize(("method", "path"), changing_requests())
def test_every_body_is_read_for_a_known_principal(
    secured: SecuredInProcess, client: httpx.Client, method: str, path: str
) -> None:
    with secured.client(secured.admin) as admin:
        assert admin.request(method, path, json={"x": []}).status_code in (400, 404)
    assert client.request(method, path, json={"x": []}).status_code in (400, 403, 404)


LIMIT: Final = 1024 * 1024


@pytest.fixture(scope="module", params=["true", "false"], ids=["fast", "ordinary"])
def limited(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, migrated: Path
) -> Iterator[ServiceProcess]:
    constants = {"app.http.connection.MAX_UNFINISHED_BYTES": LIMIT}
    process = ServiceProcess(tmp_path_factory.mktemp("limited"), fast_path=request.param, constants=constants)
    shutil.copy(migrated, process.database)
    with process:
        yield process


class TestAllConnections:
    """What connections have sent of requests that are not complete is limited, whatever it is."""

    HEAD: Final = request("/blocklist/nodes/x", "Content-Length: 60000", method="PUT")
    CHUNKED: Final = request("/blocklist/nodes/x", "Transfer-Encoding: chunked", method="PUT")

    @pytest.mark.parametrize(
        "sent",
        [
            pytest.param(b"GET /blocklist HTTP/1.1\r\nX: " + b"x" * 12_000, id="a head"),
            pytest.param(b"GET /blocklist HTTP/1.1\r\nHost: x\r\n" + b"a:\r\n" * 3000, id="many fields"),
            pytest.param(HEAD + b"x" * 12_000, id="a body"),
            pytest.param(CHUNKED + b"1\r\nx\r\n" * 2000, id="tiny chunks"),
            pytest.param(CHUNKED + (b"1;" + b"x" * 1000 + b"\r\nx\r\n") * 12, id="long extensions of chunks"),
            pytest.param(CHUNKED + b"1\r\nx\r\n0\r\n" + b"a: b\r\n" * 2000, id="trailers"),
        ],
    )
    def test_beyond_the_limit_the_oldest_get_503(self, limited: ServiceProcess, sent: bytes) -> None:
        with ExitStack() as stack:
            connections = [stack.enter_context(connection_to(limited.port)) for _ in range(150)]
            for connection in connections:
                connection.sendall(sent)
            wait_until(lambda: (len(connections) - len(answered(connections))) * len(sent) <= LIMIT)
            refused = answered(connections)
            assert connections[0] in refused
            assert connections[-1] not in refused
            with refused[0].makefile("rb") as stream:
                answer = read_response(stream)
            assert (answer.status, answer.header("retry-after")) == (503, "1")
            assert "1 MiB of requests that are not complete" in answer.json()["detail"]
            with limited.client() as client:
                assert client.put("/blocklist/nodes/meanwhile", json=block(allowMerge=True)).is_success

    def test_what_comes_behind_a_request_that_waits_counts_too(self, limited: ServiceProcess) -> None:
        with ExitStack() as stack, limited.client() as client:
            etag = client.get("/blocklist/table").headers["etag"]
            waiting = request("/blocklist/table", f"If-None-Match: {etag}", "Prefer: wait=60")
            connections = [stack.enter_context(connection_to(limited.port)) for _ in range(50)]
            for connection in connections:
                connection.sendall(waiting + request("/blocklist", "X: y") * 3000)
            client.put("/blocklist/nodes/behind", json=block(allowMerge=True))
            for connection in connections[:3]:
                with connection.makefile("rb") as stream:
                    assert read_response(stream).status in (200, 304)


def test_a_connection_that_sends_many_requests_at_once_takes_no_more_memory_than_they(service: ServiceProcess) -> None:
    """One is parsed at a time. As objects, those of 30 connections took 800 MB."""
    pipelined = (b"GET / HTTP/1.1\r\nHost:x\r\n\r\n" * 8000)[: 200 * 1024]
    with ExitStack() as stack:
        before = resident_bytes(service)
        for _ in range(40):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", service.port))
            connection.sendall(pipelined)
        with service.client() as client:
            assert client.get("/healthz").status_code == 200
        assert resident_bytes(service) - before < 60 * 1024 * 1024
