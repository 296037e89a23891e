"""Overload: queues are bounded, and beyond the bound requests get 503; memory does not grow."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.integration.bodies import block, current_list, now_ms
from tests.integration.listeners import register
from tests.integration.process import ServiceProcess, wait_until
from tests.integration.raw_http import exchange, read_response, request
from tests.postgres import PostgresServer, database_name

pytestmark = pytest.mark.databases("postgresql")

MAX_QUEUED: Final = 1000
FLOOD: Final = 1500
IN_FLIGHT: Final = 20
"""Changes that may have left the queue for the database when it is frozen."""
BYTES_PER_QUEUED_CHANGE: Final = 32 * 1024
"""Maximum memory of a queued change, with its connection."""
MEGABYTE: Final = 1024 * 1024
COMMIT: Final = "WITH head AS"


@pytest.fixture
def service(database_url: str, tmp_path: Path) -> Iterator[ServiceProcess]:
    """A service whose database timeout is longer than the test."""
    fewer = {"app.engine.handler.MAX_QUEUED": MAX_QUEUED}
    with ServiceProcess(tmp_path, constants=fewer, database_timeout="10m", database_url=database_url) as service:
        yield service


@contextmanager
def frozen_backend(client: httpx.Client, server: PostgresServer, url: str) -> Iterator[None]:
    """Freeze the PostgreSQL backend that commits changes. The others go on, so the circuit breaker stays closed."""
    query = f"SELECT pid FROM pg_stat_activity WHERE datname = '{database_name(url)}' AND query LIKE '{COMMIT}%'"
    found: list[Any] = []

    def is_committing() -> bool:
        client.put("/blocklist/nodes/one", json=block(cause=str(now_ms()), allowMerge=True))
        found[:] = server.execute(query)
        return len(found) == 1

    wait_until(is_committing)
    [(backend,)] = found
    os.kill(backend, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(backend, signal.SIGCONT)


def resident_bytes(service: ServiceProcess) -> int:
    """Resident memory of the process."""
    pages = int(Path(f"/proc/{service.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def queued_changes(client: httpx.Client) -> int:
    """The number of queued changes, from the metrics."""
    lines = client.get("/metrics").text.splitlines()
    return next(int(float(line.split()[1])) for line in lines if line.startswith("blocklist_queued_changes "))


class Flood:
    """Many connections with one PUT each, and the responses so far."""

    def __init__(self, port: int, stack: ExitStack) -> None:
        self.open_connections: list[socket.socket] = []
        self.responses: list[Any] = []
        self._port = port
        self._stack = stack

    def add(self, number: int) -> None:
        """Open more connections and send their PUTs."""
        body = json.dumps(block(cause="x" * 1000)).encode()
        for place in range(
            len(self.open_connections) + len(self.responses), len(self.open_connections) + len(self.responses) + number
        ):
            connection = self._stack.enter_context(socket.create_connection(("127.0.0.1", self._port), timeout=60))
            connection.sendall(request(f"/blocklist/nodes/flood-{place}", method="PUT", body=body))
            self.open_connections.append(connection)

    def wait_until_open(self, left: int) -> None:
        """Wait until at most `left` connections have no response."""

        def settled() -> bool:
            for connection in list(self.open_connections):
                if _readable(connection):
                    self.open_connections.remove(connection)
                    with connection.makefile("rb") as stream:
                        self.responses.append(read_response(stream, "PUT"))
            return len(self.open_connections) <= left

        wait_until(settled)


def _readable(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    finally:
        connection.settimeout(60)
    return True


def test_beyond_the_queue_changes_get_503_while_the_database_is_frozen(
    service: ServiceProcess, postgres: PostgresServer, database_url: str
) -> None:
    with ExitStack() as stack:
        client = stack.enter_context(service.client())
        register(client, "jm")
        before = resident_bytes(service)
        with frozen_backend(client, postgres, database_url):
            flood = Flood(service.port, stack)
            while queued_changes(client) == 0:
                flood.add(1)
            # Some have left the queue; of the others MAX_QUEUED may be queued.
            flood.add(FLOOD)
            flood.wait_until_open(MAX_QUEUED + IN_FLIGHT)
            risen = resident_bytes(service)
            assert queued_changes(client) == MAX_QUEUED
            assert risen - before < FLOOD * BYTES_PER_QUEUED_CHANGE
            flood.add(200)
            flood.wait_until_open(MAX_QUEUED + IN_FLIGHT)
            assert {response.status for response in flood.responses} == {503}
            assert all(response.header("retry-after") == "1" for response in flood.responses)
            for number in range(0, 2000, 100):
                send_heartbeats(service.port, range(number, number + 100))
            assert client.get("/blocklist").status_code == 200
            assert resident_bytes(service) - risen < 200 * BYTES_PER_QUEUED_CHANGE + 4 * MEGABYTE
            refused = len(flood.responses)
        flood.wait_until_open(0)
        statuses = Counter(response.status for response in flood.responses[refused:])
        assert statuses.keys() <= {201, 503}
        assert len(current_list(client)[1].keys() - {"one"}) == statuses[201] >= MAX_QUEUED


def send_heartbeats(port: int, numbers: range) -> None:
    """One behind the other on one connection: each reports another TaskManager."""
    bodies = [{"sessionId": "s1", "taskManagers": {f"tm-{number}": "a"}} for number in numbers]
    payloads = [request("/listeners/jm/heartbeat", method="POST", body=json.dumps(body).encode()) for body in bodies]
    answers = exchange(port, b"".join(payloads), methods=["POST"] * len(numbers))
    assert {answer.status for answer in answers} == {200}


def test_watches_that_are_not_read_use_no_memory(service: ServiceProcess) -> None:
    """Five thousand changes for each of a hundred watches: unsent events are not stored."""
    watches, rounds = 100, 5
    with ExitStack() as stack:
        client = stack.enter_context(service.client())
        streams = []
        for _ in range(watches):
            stream = stack.enter_context(socket.socket())
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stream.connect(("127.0.0.1", service.port))
            stream.sendall(request("/blocklist/watch?since=0"))
            streams.append(stream)
        before = resident_bytes(service)
        sent = 0
        for turn in range(rounds):
            several = {f"n-{turn}-{number}": block(cause="x" * 800, allowMerge=True) for number in range(1000)}
            wait_until(lambda several=several: client.put("/blocklist/nodes", json=several).status_code == 200)  # type: ignore[misc]
            sent += len(json.dumps(several))
        assert resident_bytes(service) - before < 40 * MEGABYTE < watches * sent / 10
