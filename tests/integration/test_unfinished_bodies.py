"""Bodies that are not finished: one client's do not fill the memory, and others send theirs meanwhile."""

from __future__ import annotations

import json
import re
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

import httpx
import pytest

from app.net.body_quota import MAX_UNFINISHED_BYTES
from blocklist.model.roles import Role
from tests.integration.bodies import block
from tests.integration.listeners import heartbeat, post_heartbeat, register
from tests.integration.process import ROOT, wait_until
from tests.integration.raw_http import connection_to, read_response, request
from tests.integration.secured import SecuredService

LENGTH: Final = 2_000_000
"""Of a heartbeat, in bytes; the last byte is not sent."""
SENT: Final = 50
LARGE: Final = [f"n{number:0200}" for number in range(1000)]
"""Nodes whose report is larger than 64 KiB."""


@pytest.fixture
def unfinished(secured: SecuredService) -> Iterator[list[socket.socket]]:
    """Connections of one listener's token, each with a heartbeat that is not finished."""
    headers = (f"Authorization: Bearer {secured.tokens[Role.LISTENER]}", f"Content-Length: {LENGTH}")
    payload = request("/listeners/x/heartbeat", *headers, method="POST") + b" " * (LENGTH - 1)
    with ExitStack() as stack:
        connections = [stack.enter_context(connection_to(secured.process.port)) for _ in range(SENT)]
        for connection in connections:
            connection.sendall(payload)
        yield connections


@pytest.fixture
def same(secured: SecuredService) -> Iterator[httpx.Client]:
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
def test_other_clients_are_not_refused_meanwhile(secured: SecuredService) -> None:
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
def test_nobody_sends_a_body_without_credentials(secured: SecuredService, method: str, path: str) -> None:
    """The response comes before the body, of which nothing is kept."""
    with connection_to(secured.process.port) as connection, connection.makefile("rb") as stream:
        connection.sendall(request(path, f"Content-Length: {LENGTH}", "Content-Type: application/json", method=method))
        assert read_response(stream).status == 401


@pytest.mark.parametrize(("method", "path"), changing_requests())
def test_every_body_is_read_for_a_known_principal(
    secured: SecuredService, client: httpx.Client, method: str, path: str
) -> None:
    with secured.client(secured.admin) as admin:
        assert admin.request(method, path, json={"x": []}).status_code in (400, 404)
    assert client.request(method, path, json={"x": []}).status_code in (400, 403, 404)
