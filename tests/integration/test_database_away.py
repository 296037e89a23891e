"""Outages of PostgreSQL: it stops, is killed or frozen, or the network fails. The service recovers without help."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import pytest

from tests.faulty_proxy import FaultyProxy
from tests.integration.ages import READS_FROM_MEMORY, assert_ages
from tests.integration.background_writers import writing
from tests.integration.bodies import all_changes, block, current_list, later
from tests.integration.databases import PostgresDatabases
from tests.integration.event_stream import changes, next_events, watching
from tests.integration.listeners import heartbeat, register, registration_body
from tests.integration.problems import problem_of
from tests.integration.process import ServiceProcess, wait_until
from tests.integration.raw_http import connection_to, read_response, request, send_request
from tests.postgres import PostgresServer

TIMEOUT: Final = 2
"""The database timeout of the service in seconds."""


@dataclass(frozen=True)
class Deployment:
    """A service, its database server, and the proxy between them."""

    server: PostgresServer
    proxy: FaultyProxy
    service: ServiceProcess
    client: httpx.Client


Action = Callable[[Deployment], None]
OUTAGES: Final[dict[str, tuple[Action, Action]]] = {
    "stopped": (lambda deployment: deployment.server.stop(), lambda deployment: deployment.server.start()),
    "killed": (lambda deployment: deployment.server.kill(), lambda deployment: deployment.server.start()),
    "frozen": (lambda deployment: deployment.server.freeze(), lambda deployment: deployment.server.thaw()),
    "wire cut": (
        lambda deployment: deployment.proxy.refuse_connections(),
        lambda deployment: deployment.proxy.restore(),
    ),
    "wire silent": (lambda deployment: deployment.proxy.blackhole(), lambda deployment: deployment.proxy.restore()),
}


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server of its own, as these tests stop it."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="module")
def on_server(server: PostgresServer) -> PostgresDatabases:
    return PostgresDatabases(server, timeout_seconds=TIMEOUT)


@pytest.fixture
def deployment(tmp_path: Path, server: PostgresServer, on_server: PostgresDatabases) -> Iterator[Deployment]:
    with FaultyProxy(server.port) as wire:
        url = on_server.url_for(tmp_path).replace(f":{server.port}/", f":{wire.port}/")
        with (
            ServiceProcess(tmp_path, database_url=url, database_timeout=f"{TIMEOUT}s") as service,
            service.client() as client,
        ):
            yield Deployment(server, wire, service, client)


def with_outages(*names: str) -> pytest.MarkDecorator:
    """Parametrizes a test with these outages, and with all others in the long form."""
    marks = {name: () if name in names else pytest.mark.long for name in OUTAGES}
    return pytest.mark.parametrize("outage", [pytest.param(OUTAGES[it], id=it, marks=marks[it]) for it in OUTAGES])


def is_available(client: httpx.Client) -> bool:
    return "age" not in client.get("/blocklist").headers and client.get("/readyz").status_code == 200


def assert_success(answer: httpx.Response) -> None:
    assert answer.is_success, answer.text


def assert_unavailable(answer: httpx.Response) -> None:
    problem_of(answer, 503)
    assert int(answer.headers["retry-after"]) >= 0


def test_what_is_acknowledged_during_an_outage_does_not_count_as_applied(deployment: Deployment) -> None:
    """Another session may have taken over at another replica, where the database is available."""
    client = deployment.client
    register(client, "jm", leaseSeconds=600)
    with ThreadPoolExecutor(1) as pool, deployment.service.client() as other:
        waiting = pool.submit(other.put, "/blocklist/nodes/a", json=block(), headers={"Prefer": "wait=60"})
        wait_until(lambda: current_list(client)[0] == 1)
        deployment.proxy.refuse_connections()
        wait_until(lambda: not is_available(client))
        heartbeat(client, "jm", ackedRevision=1)
        answer = waiting.result()
    deployment.proxy.restore()
    assert answer.status_code == 201
    assert (answer.headers["blocklist-applied"], answer.headers["blocklist-not-applied"]) == ("0/1", "jm")


def test_the_pages_of_a_node_and_a_listener_say_what_is_unknown_meanwhile(deployment: Deployment) -> None:
    client = deployment.client
    assert_success(client.put("/blocklist/nodes/a", json=block(cause="Hot machine")))
    register(client, "jm")
    heartbeat(client, "jm", ackedRevision=1, taskManagers={"tm": "a"})
    deployment.proxy.refuse_connections()
    wait_until(lambda: not is_available(client))
    node, listener = client.get("/page/nodes/a"), client.get("/page/listeners/jm")
    unknown = client.get("/page/nodes/b")
    deployment.proxy.restore()
    assert (node.status_code, listener.status_code, unknown.status_code) == (200, 200, 200)
    for page in (node.text, listener.text):
        assert "The database has been unavailable for" in page
        assert "Hot machine" in page
    assert "The change log cannot be read while the database is unavailable." in node.text
    assert "Unknown while the database is unavailable." in node.text
    assert "never blocked" not in unknown.text, "that is not known"
    assert ">live</span>" in listener.text


class TestOutage:
    @with_outages(*OUTAGES)
    def test_reads_continue_and_changes_fail_fast_until_the_database_recovers(
        self, deployment: Deployment, outage: tuple[Action, Action]
    ) -> None:
        client = deployment.client
        assert_success(client.put("/blocklist/nodes", json={"a": block(), "b": block()}))
        register(client, "jm")
        heartbeat(client, "jm", taskManagers={"tm": "a"})
        before = current_list(client)
        assert_ages(client, READS_FROM_MEMORY, stale=False)
        with deployment.service.client() as other, watching(other, since=0) as events:
            assert [event.event for event in next_events(events, 2)] == ["blocked", "blocked"]
            outage[0](deployment)
            assert_unavailable(client.put("/blocklist/nodes/c", json=block()))
            self._assert_changes_fail_fast(client)
            self._assert_reads_continue(client, before)
            outage[1](deployment)
            wait_until(lambda: is_available(client))
            assert_success(client.put("/blocklist/nodes/c", json=block(allowMerge=True)))
            assert_success(client.delete("/blocklist/nodes/b"))
            log = all_changes(client)
            # It is unknown whether the first refused change was committed.
            assert [change["node"]["id"] for change in log if change["node"]["id"] != "c"] == ["a", "b", "b"]
            assert changes(next_events(events, len(log) - 2)) == log[2:]

    def _assert_changes_fail_fast(self, client: httpx.Client) -> None:
        """Much faster than if each one waited for the database."""
        asked: list[tuple[str, str, Any]] = [
            ("PUT", "/blocklist/nodes/d", block()),
            ("PUT", "/blocklist/nodes", {"d": block(), "e": block()}),
            ("DELETE", "/blocklist/nodes/a", None),
            ("PUT", "/listeners/j", registration_body()),
        ]
        begin, rounds = time.monotonic(), 5
        for method, path, body in asked * rounds:
            assert_unavailable(client.request(method, path, json=body))
        assert time.monotonic() - begin < TIMEOUT * rounds * len(asked) / 2

    def _assert_reads_continue(self, client: httpx.Client, before: tuple[int, dict[str, Any]]) -> None:
        assert current_list(client) == before
        assert_ages(client, READS_FROM_MEMORY, stale=True)
        heartbeat(client, "jm")
        with watching(client, since=1) as events:
            assert [event.json()["node"]["id"] for event in next_events(events, 1)] == ["b"]
        assert client.get("/healthz").status_code == 200
        problem_of(client.get("/readyz"), 503)

    @with_outages("frozen", "wire cut")
    def test_an_outage_is_detected_without_writes(self, deployment: Deployment, outage: tuple[Action, Action]) -> None:
        outage[0](deployment)
        wait_until(lambda: "age" in deployment.client.get("/blocklist").headers)
        outage[1](deployment)
        wait_until(lambda: is_available(deployment.client))

    @with_outages("killed", "wire silent")
    def test_nothing_acknowledged_is_lost_and_a_watch_has_each_change_once(
        self, deployment: Deployment, outage: tuple[Action, Action]
    ) -> None:
        with (
            writing(deployment.service) as writers,
            deployment.service.client() as other,
            watching(other, since=0) as events,
        ):
            writers.wait_for_more()
            outage[0](deployment)
            wait_until(lambda: "age" in deployment.client.get("/blocklist").headers)
            outage[1](deployment)
            writers.wait_for_more()
            seen = changes(next_events(events, current_list(deployment.client)[0]))
        log = all_changes(deployment.client)
        writers.assert_all_in_log(log)
        assert seen == log[: len(seen)]

    @with_outages("stopped")
    def test_a_block_ends_on_time_and_its_change_is_committed_after_the_outage(
        self, deployment: Deployment, outage: tuple[Action, Action]
    ) -> None:
        client = deployment.client
        end = later(1)
        assert_success(client.put("/blocklist/nodes/short", json=block(endTimestamp=end)))
        outage[0](deployment)
        wait_until(lambda: current_list(client)[1] == {})
        assert client.get("/blocklist/nodes/short").status_code == 404
        outage[1](deployment)
        wait_until(lambda: is_available(client))
        wait_until(lambda: len(all_changes(client)) == 2)
        assert_success(client.put("/blocklist/nodes/short", json=block()))
        assert [change["type"] for change in all_changes(client)] == ["blocked", "expired", "blocked"]


def test_no_request_fails_after_recovery(deployment: Deployment) -> None:
    """No old connection is used again: after the service reports ready, no request fails."""
    client = deployment.client
    for turn in range(3):
        deployment.server.kill()
        wait_until(lambda: "age" in client.get("/blocklist").headers)
        deployment.server.start()
        wait_until(lambda: is_available(client))
        for number in range(20):
            assert_success(client.put(f"/blocklist/nodes/n{turn}-{number}", json=block()))
            assert_success(client.get("/blocklist/changes"))
            register(client, f"l{number}")


def test_dropped_connections_are_reopened(deployment: Deployment) -> None:
    client = deployment.client
    for _ in range(5):
        deployment.proxy.drop_connections()
        wait_until(lambda: client.put("/blocklist/nodes/a", json=block(allowMerge=True)).is_success)
        wait_until(lambda: is_available(client))
    assert [change["node"]["id"] for change in all_changes(client)] == ["a"]


def test_a_server_without_free_connections_is_an_outage(deployment: Deployment) -> None:
    """The service recovers when connections are free."""
    client = deployment.client
    assert_success(client.put("/blocklist/nodes/a", json=block()))
    database = urlsplit(deployment.service.environment()["BLOCKLIST_DATABASE_URL"]).path[1:]
    deployment.server.execute(f'ALTER DATABASE "{database}" CONNECTION LIMIT 0')
    deployment.proxy.drop_connections()
    wait_until(lambda: "age" in client.get("/blocklist").headers)
    assert_unavailable(client.put("/blocklist/nodes/b", json=block()))
    deployment.server.execute(f'ALTER DATABASE "{database}" CONNECTION LIMIT -1')
    wait_until(lambda: is_available(client))
    assert_success(client.put("/blocklist/nodes/b", json=block()))


def test_changes_in_progress_are_answered_when_the_service_stops(deployment: Deployment) -> None:
    assert_success(deployment.client.put("/blocklist/nodes/a", json=block()))
    body = json.dumps(block()).encode()
    asked = {
        "DELETE": request("/blocklist/nodes/a", method="DELETE"),
        "PUT": request("/blocklist/nodes/b", method="PUT", body=body),
    }
    with ExitStack() as stack:
        deployment.proxy.blackhole()
        streams = {}
        for method, payload in asked.items():
            connection = stack.enter_context(connection_to(deployment.service.port))
            streams[method] = stack.enter_context(connection.makefile("rb"))
            connection.sendall(payload)
        # An answer on another connection shows that these requests have been read.
        assert send_request(deployment.service.port, request("/healthz")).status == 200
        deployment.service.terminate()
        statuses = {method: read_response(stream, method).status for method, stream in streams.items()}
    assert statuses == {"DELETE": 503, "PUT": 503}
