"""PostgreSQL stops, dies or stands still, or its wire is cut or silent, and it comes back: nobody has to help."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import pytest

from tests.integration.bodies import all_changes, block, held, later
from tests.integration.databases import PostgresDatabases
from tests.integration.event_stream import changes, take, watching
from tests.integration.listeners import register, watcher
from tests.integration.problems import problem_of
from tests.integration.process import ServiceProcess, wait_until
from tests.integration.raw_http import ask, connected, read_answer, request
from tests.integration.writer import writing
from tests.postgres import PostgresServer
from tests.proxy import Proxy

TIMEOUT: Final = 3
"""Seconds that PostgreSQL may say nothing."""


@dataclass(frozen=True)
class Place:
    """A service, its server, and the wire between them."""

    server: PostgresServer
    wire: Proxy
    service: ServiceProcess
    client: httpx.Client


Step = Callable[[Place], None]
OUTAGES: Final[dict[str, tuple[Step, Step]]] = {
    "stopped": (lambda place: place.server.stop(), lambda place: place.server.start()),
    "killed": (lambda place: place.server.kill(), lambda place: place.server.start()),
    "frozen": (lambda place: place.server.freeze(), lambda place: place.server.thaw()),
    "wire cut": (lambda place: place.wire.refuse(), lambda place: place.wire.restore()),
    "wire silent": (lambda place: place.wire.silence(), lambda place: place.wire.restore()),
}


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server that these tests torment."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="module")
def on_server(server: PostgresServer) -> PostgresDatabases:
    return PostgresDatabases(server, patience=TIMEOUT)


@pytest.fixture
def place(tmp_path: Path, server: PostgresServer, on_server: PostgresDatabases) -> Iterator[Place]:
    with Proxy(server.port) as wire:
        url = on_server.of(tmp_path).replace(f":{server.port}/", f":{wire.port}/")
        with (
            ServiceProcess(tmp_path, database_url=url, database_timeout=f"{TIMEOUT}s") as service,
            service.client() as client,
        ):
            yield Place(server, wire, service, client)


@pytest.fixture(params=OUTAGES)
def outage(request: pytest.FixtureRequest) -> tuple[Step, Step]:
    return OUTAGES[request.param]


def is_back(client: httpx.Client) -> bool:
    return "age" not in client.get("/blocklist").headers and client.get("/readyz").status_code == 200


def taken(answer: httpx.Response) -> None:
    assert answer.is_success, answer.text


def refused(answer: httpx.Response) -> None:
    problem_of(answer, 503)
    assert int(answer.headers["retry-after"]) >= 0


class TestAway:
    """While it is away, whatever has happened to it."""

    def test_reads_go_on_changes_are_refused_at_once_and_it_comes_back_by_itself(
        self, place: Place, outage: tuple[Step, Step]
    ) -> None:
        client = place.client
        taken(client.put("/blocklist/nodes", json={"a": block(), "b": block()}))
        before = held(client)
        with place.service.client() as other, watching(other, since=0) as events:
            assert [event.event for event in take(events, 2)] == ["blocked", "blocked"]
            outage[0](place)
            refused(client.put("/blocklist/nodes/c", json=block()))
            self._changes_are_refused_at_once(client)
            self._reads_go_on(client, before)
            outage[1](place)
            wait_until(lambda: is_back(client))
            taken(client.put("/blocklist/nodes/c", json=block(allowMerge=True)))
            taken(client.delete("/blocklist/nodes/b"))
            log = all_changes(client)
            # Whether the first change to be refused has happened is not known.
            assert [change["node"]["id"] for change in log if change["node"]["id"] != "c"] == ["a", "b", "b"]
            assert changes(take(events, len(log) - 2)) == log[2:]

    def _changes_are_refused_at_once(self, client: httpx.Client) -> None:
        """By far sooner than if each of them waited for the database."""
        asked: list[tuple[str, str, Any]] = [
            ("PUT", "/blocklist/nodes/d", block()),
            ("PUT", "/blocklist/nodes", {"d": block(), "e": block()}),
            ("DELETE", "/blocklist/nodes/a", None),
            ("PUT", "/listeners/j", watcher()),
        ]
        begin, rounds = time.monotonic(), 5
        for method, path, body in asked * rounds:
            refused(client.request(method, path, json=body))
        assert time.monotonic() - begin < TIMEOUT * rounds * len(asked) / 2

    def _reads_go_on(self, client: httpx.Client, before: tuple[int, dict[str, Any]]) -> None:
        assert held(client) == before
        for path in ("/blocklist", "/blocklist/nodes/a"):
            read = client.get(path)
            assert (read.status_code, int(read.headers["age"]) >= 0) == (200, True), path
        with watching(client, since=1) as events:
            assert [event.json()["node"]["id"] for event in take(events, 1)] == ["b"]
        assert client.get("/healthz").status_code == 200
        problem_of(client.get("/readyz"), 503)

    def test_an_age_is_there_though_nobody_writes(self, place: Place, outage: tuple[Step, Step]) -> None:
        outage[0](place)
        wait_until(lambda: "age" in place.client.get("/blocklist").headers)
        outage[1](place)
        wait_until(lambda: is_back(place.client))

    def test_nothing_acknowledged_is_lost_and_a_watch_has_each_change_once(
        self, place: Place, outage: tuple[Step, Step]
    ) -> None:
        with writing(place.service) as writers, place.service.client() as other, watching(other, since=0) as events:
            writers.go_on()
            outage[0](place)
            wait_until(lambda: "age" in place.client.get("/blocklist").headers)
            outage[1](place)
            writers.go_on()
            seen = changes(take(events, held(place.client)[0]))
        log = all_changes(place.client)
        writers.check(log)
        assert seen == log[: len(seen)]

    def test_a_node_ends_in_time_and_its_change_comes_afterwards_once(
        self, place: Place, outage: tuple[Step, Step]
    ) -> None:
        client = place.client
        end = later(1)
        taken(client.put("/blocklist/nodes/short", json=block(endTimestamp=end)))
        outage[0](place)
        wait_until(lambda: held(client)[1] == {})
        assert client.get("/blocklist/nodes/short").status_code == 404
        outage[1](place)
        wait_until(lambda: is_back(client))
        wait_until(lambda: len(all_changes(client)) == 2)
        taken(client.put("/blocklist/nodes/short", json=block()))
        assert [change["type"] for change in all_changes(client)] == ["blocked", "expired", "blocked"]


def test_when_it_is_back_it_stays(place: Place) -> None:
    """No connection from before is used again: nobody is refused once the service has said that it is well."""
    client = place.client
    for turn in range(3):
        place.server.kill()
        wait_until(lambda: "age" in client.get("/blocklist").headers)
        place.server.start()
        wait_until(lambda: is_back(client))
        for number in range(20):
            taken(client.put(f"/blocklist/nodes/n{turn}-{number}", json=block()))
            taken(client.get("/blocklist/changes"))
            register(client, f"l{number}")


def test_a_wire_that_is_cut_for_a_moment_costs_a_moment(place: Place) -> None:
    client = place.client
    for _ in range(5):
        place.wire.cut()
        wait_until(lambda: client.put("/blocklist/nodes/a", json=block(allowMerge=True)).is_success)
        wait_until(lambda: is_back(client))
    assert [change["node"]["id"] for change in all_changes(client)] == ["a"]


def test_a_server_that_has_too_many_connections_is_one_that_is_away(place: Place) -> None:
    """The service says so, and comes back when there is room."""
    client = place.client
    taken(client.put("/blocklist/nodes/a", json=block()))
    database = urlsplit(place.service.environment()["BLOCKLIST_DATABASE_URL"]).path[1:]
    place.server.execute(f'ALTER DATABASE "{database}" CONNECTION LIMIT 0')
    place.wire.cut()
    wait_until(lambda: "age" in client.get("/blocklist").headers)
    refused(client.put("/blocklist/nodes/b", json=block()))
    place.server.execute(f'ALTER DATABASE "{database}" CONNECTION LIMIT -1')
    wait_until(lambda: is_back(client))
    taken(client.put("/blocklist/nodes/b", json=block()))


def test_a_change_that_waits_when_the_service_stops_is_answered(place: Place) -> None:
    taken(place.client.put("/blocklist/nodes/a", json=block()))
    body = json.dumps(block()).encode()
    asked = {
        "DELETE": request("/blocklist/nodes/a", method="DELETE"),
        "PUT": request("/blocklist/nodes/b", method="PUT", body=body),
    }
    with ExitStack() as stack:
        place.wire.silence()
        streams = {}
        for method, payload in asked.items():
            connection = stack.enter_context(connected(place.service.port))
            streams[method] = stack.enter_context(connection.makefile("rb"))
            connection.sendall(payload)
        # Answered on another connection, so these have been read by now.
        assert ask(place.service.port, request("/healthz")).status == 200
        place.service.terminate()
        statuses = {method: read_answer(stream, method).status for method, stream in streams.items()}
    assert statuses == {"DELETE": 503, "PUT": 503}
