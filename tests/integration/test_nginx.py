"""The nginx file that is deployed, with a real nginx before two real replicas."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event

import httpx
import pytest

from app.listeners.operations import CATCH_UP_SECONDS
from app.watch import KEEPALIVE_SECONDS
from tests.integration.bodies import all_changes, block, current_list, revision_of
from tests.integration.event_stream import following, next_events, watching
from tests.integration.listeners import heartbeat, register
from tests.integration.nginx import CONFIG, nginx_before
from tests.integration.problems import problem_of
from tests.integration.process import NO_TLS, wait_until
from tests.integration.replicas import Replicas, wait_until_equal

pytestmark = [pytest.mark.databases("postgresql"), pytest.mark.xdist_group("replicas")]


@pytest.fixture
def client(nginx_url: str) -> Iterator[httpx.Client]:
    """A client that knows nginx alone."""
    with httpx.Client(base_url=nginx_url, timeout=30, trust_env=False, verify=NO_TLS) as client:
        yield client


class HangingUp:
    """Keeps what it is asked, and never answers."""

    def __init__(self, listening: socket.socket) -> None:
        self.requests: list[bytes] = []
        self._listening = listening

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    def run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                with connection:
                    self.requests.append(connection.recv(65536))


@contextmanager
def hanging_up() -> Iterator[HangingUp]:
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:
        upstream = HangingUp(listening)
        running = pool.submit(upstream.run)
        try:
            yield upstream
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            running.result(30)


def location(name: str) -> str:
    """What the file says of a location."""
    found = re.search(rf"location {re.escape(name)} {{\n(.*?)\n    }}", CONFIG.read_text(), re.DOTALL)
    assert found is not None, name
    return found[1]


def read_timeout(name: str) -> float:
    """Seconds."""
    found = re.search(r"proxy_read_timeout (\d+)s;", location(name))
    assert found is not None, name
    return float(found[1])


class TestTheFile:
    """Rules that would take too long to try."""

    def test_a_watch_outlives_its_silence(self) -> None:
        assert read_timeout("= /blocklist/watch") > 2 * KEEPALIVE_SECONDS

    def test_who_waits_is_not_cut_off(self) -> None:
        assert read_timeout("@waiting") > 60
        assert read_timeout("/") > 2 * CATCH_UP_SECONDS

    def test_a_change_is_not_repeated_while_the_first_replica_may_still_make_it(self) -> None:
        for name in ("@changing", "@waiting"):
            assert "proxy_next_upstream error;" in location(name)


class TestRequests:
    def test_all_of_them_come_through(self, client: httpx.Client, node: str, node_id: str) -> None:
        assert client.put(node, json=block(), params={"dryRun": "true"}).json()["dryRun"] is True
        blocked = client.put(node, json=block())
        assert blocked.status_code == 201
        assert client.put(node, content='{"action": "MARK_BLOCKED", "cause": "x"}').status_code == 409
        assert client.get(node, params={"minRevision": revision_of(blocked)}).json()["id"] == node_id
        assert client.head("/blocklist").headers["etag"]
        assert client.delete(node).status_code == 200
        several = {f"{node_id}-{number}": block(cause="x" * 900) for number in range(900)}
        last = revision_of(client.put("/blocklist/nodes", json=several).raise_for_status())
        seen = {"minRevision": last}
        zipped = client.get("/blocklist", params=seen, headers={"Accept-Encoding": "gzip"})
        assert (zipped.headers["content-encoding"], zipped.json().keys() >= several.keys()) == ("gzip", True)
        known = {"If-None-Match": zipped.headers["etag"]}
        assert client.get("/blocklist", params=seen, headers=known).status_code == 304
        lines = client.get("/blocklist/changes", params=seen, headers={"Accept": "application/x-ndjson"})
        assert lines.text.count("\n") == last
        problem_of(client.put(node, content=b"x" * 70_000), 413)

    def test_who_waits_is_answered_by_the_change(self, client: httpx.Client, node: str) -> None:
        headers = {"Accept-Encoding": "identity", "Prefer": "wait=30"}
        headers["If-None-Match"] = client.get("/blocklist", headers={"Accept-Encoding": "identity"}).headers["etag"]
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.get, "/blocklist", headers=headers)
            client.put(node, json=block())
            assert waiting.result(30).status_code == 200

    @pytest.mark.long
    def test_who_waits_for_longer_than_others_may_take_is_answered_in_the_end(
        self, client: httpx.Client, restartable_replicas: Replicas
    ) -> None:
        _, headers, _ = wait_until_equal(restartable_replicas.clients)
        seconds = int(read_timeout("/")) + 1
        asked = {"Accept-Encoding": "identity", "Prefer": f"wait={seconds}", "If-None-Match": headers["etag"]}
        answer = client.get("/blocklist", headers=asked)
        assert (answer.status_code, answer.headers["preference-applied"]) == (304, f"wait={seconds}")

    def test_a_change_may_wait_for_its_listeners(self, client: httpx.Client, node: str) -> None:
        # The replicas serve other tests as well, whose listeners would be waited for.
        for other in client.get("/listeners").json()["listeners"]:
            client.delete(f"/listeners/{other['id']}").raise_for_status()
        register(client, "jm")
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(client.put, node, json=block(), headers={"Prefer": "wait=30"})
            wait_until(lambda: client.get(node).status_code == 200)
            heartbeat(client, "jm", ackedRevision=revision_of(client.get(node)))
            assert asked.result(30).headers["blocklist-applied"] == "1/1"
        client.delete("/listeners/jm")

    def test_nobody_is_who_he_says_he_is(self, client: httpx.Client, node: str, node_id: str) -> None:
        blocked = client.put(node, json=block(), headers={"X-Forwarded-User": "mallory"}).raise_for_status()
        asked = {"details": "true", "minRevision": str(revision_of(blocked))}
        assert client.get("/blocklist", params=asked).json()[node_id]["createdBy"] is None

    def test_the_replicas_know_the_clients_by_their_addresses(self, nginx_url: str) -> None:
        """Each may have so many watches open, whoever else comes by the same proxy."""
        addresses = ("127.0.0.1", "127.0.0.2")
        with ExitStack() as stack:
            one, another = (
                stack.enter_context(
                    httpx.Client(base_url=nginx_url, transport=httpx.HTTPTransport(local_address=own), timeout=30)
                )
                for own in addresses
            )

            def refused() -> bool:
                answer = stack.enter_context(one.stream("GET", "/blocklist/watch"))
                return answer.status_code == 503

            wait_until(refused)
            with watching(another) as events:
                assert next_events(events, 1)[0].event == "snapshot"


class TestAReplicaThatHangsUp:
    """It takes a request and closes the connection, as one may at its end."""

    def test_heartbeats_are_sent_to_the_other_one(self, tmp_path: Path, restartable_replicas: Replicas) -> None:
        one = restartable_replicas.clients[0]
        register(one, "jm")
        with (
            hanging_up() as dying,
            nginx_before(tmp_path, [dying, restartable_replicas.processes[0]]) as url,
            httpx.Client(base_url=url, timeout=30, trust_env=False, verify=NO_TLS) as client,
        ):
            for _ in range(4):
                heartbeat(client, "jm")
        one.delete("/listeners/jm").raise_for_status()
        assert any(request.startswith(b"POST /listeners/jm/heartbeat") for request in dying.requests)


class TestWatches:
    def test_what_comes_comes_at_once(self, client: httpx.Client, node: str) -> None:
        """Each event before the next change: a buffer would hold it back."""
        with watching(client) as events:
            assert next_events(events, 1)[0].event == "snapshot"
            for _ in range(3):
                client.put(node, json=block()).raise_for_status()
                assert next_events(events, 1)[0].event == "blocked"
                client.delete(node).raise_for_status()
                assert next_events(events, 1)[0].event == "unblocked"

    def test_a_replica_that_stops_says_bye_and_the_other_goes_on(
        self, nginx_url: str, client: httpx.Client, restartable_replicas: Replicas, node: str
    ) -> None:
        since, _ = current_list(client)
        with following([nginx_url], since) as follower:
            for process in restartable_replicas.processes:
                _toggle(client, node)
                process.stop()
                last = _toggle(client, node)
                wait_until(lambda last=last: follower.revision >= last)  # type: ignore[misc]
                process.start()
            log = [change for change in all_changes(client) if change["revision"] > since]
            assert follower.changes == log
            assert "bye" in follower.ends


class TestWithoutAReplica:
    def test_one_that_is_killed_fails_no_request(
        self, client: httpx.Client, restartable_replicas: Replicas, node_id: str
    ) -> None:
        over = Event()

        def ask(number: int) -> set[int]:
            statuses: set[int] = set()
            with httpx.Client(base_url=client.base_url, timeout=30, trust_env=False, verify=NO_TLS) as own:
                path = f"/blocklist/nodes/{node_id}-{number}"
                while not over.is_set():
                    statuses |= {own.get("/blocklist").status_code}
                    # The second may be told of the first's own block, and its own unblocking.
                    statuses |= {own.put(path, json=block()).status_code} - {409}
                    statuses |= {own.delete(path).status_code} - {404}
            return statuses

        with ThreadPoolExecutor(4) as pool:
            asking = [pool.submit(ask, number) for number in range(4)]
            try:
                for process in restartable_replicas.processes:
                    process.kill()
                    process.start()
            finally:
                over.set()
            assert set().union(*(asked.result(60) for asked in asking)) == {200, 201}

    def test_where_there_is_none_nginx_says_so_as_a_replica_would(
        self, client: httpx.Client, restartable_replicas: Replicas, node: str
    ) -> None:
        for process in restartable_replicas.processes:
            process.kill()
        try:
            for answer in (client.get("/blocklist"), client.put(node, json=block()), client.get("/blocklist/watch")):
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
                assert answer.headers["content-type"] == "application/problem+json"
                assert answer.json()["errors"] == [answer.json()["detail"]]
        finally:
            for process in restartable_replicas.processes:
                process.start()
        wait_until(lambda: client.get("/blocklist").status_code == 200)


def _toggle(client: httpx.Client, node: str) -> int:
    """Block and free a node; the revision after that."""
    client.put(node, json=block()).raise_for_status()
    return revision_of(client.delete(node).raise_for_status())
