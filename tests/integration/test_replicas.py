"""Replicas on one database: each answers every request, with the same answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle, islice
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.integration.bodies import EVACUATE, all_changes, block, current_list, later, revision_of
from tests.integration.conftest import StartReplicas
from tests.integration.event_stream import changes, next_events, revisions, watching
from tests.integration.listeners import get_listener, heartbeat, put, register, unblock, wait_until_pushed
from tests.integration.problems import problem_of
from tests.integration.process import environment, run_app, wait_until
from tests.integration.receiver import Receiver
from tests.integration.replicas import Replicas, comparable_response, wait_until_equal
from tests.integration.test_claims import claim
from tests.postgres import PostgresServer

pytestmark = [
    # In session mode a pool differs from the server in the number of sessions: the writers below use the most.
    pytest.mark.databases(
        "postgresql", "pgbouncer-transaction", pytest.param("pgbouncer-session", marks=pytest.mark.long)
    ),
    pytest.mark.xdist_group("replicas"),
]

WRITERS: Final = 6
TURNS: Final = 40


class TestReading:
    def test_a_change_is_visible_at_once_to_its_replica_and_soon_to_others(
        self, client_a: httpx.Client, client_b: httpx.Client, node: str
    ) -> None:
        assert client_a.put(node, json=block()).status_code == 201
        assert client_a.get(node).status_code == 200
        wait_until(lambda: client_b.get(node).status_code == 200)
        assert client_b.delete(node).status_code == 200
        assert client_b.get(node).status_code == 404
        wait_until(lambda: client_a.get(node).status_code == 404)

    @pytest.mark.parametrize("path", ["{node}", "/blocklist", "/blocklist/changes?node={node_id}&limit=1000"])
    def test_min_revision_reads_your_writes_at_any_replica(
        self, client_a: httpx.Client, client_b: httpx.Client, node: str, node_id: str, path: str
    ) -> None:
        """Repeated: without minRevision some reads would be too early."""
        for turn, (writer, reader) in enumerate(islice(cycle([(client_a, client_b), (client_b, client_a)]), 20)):
            revision = put(writer, node_id, cause=f"turn {turn}", allowMerge=True)
            answer = reader.get(path.format(node=node, node_id=node_id), params={"minRevision": revision})
            assert answer.status_code == 200, answer.text
            assert f"turn {turn}" in answer.text
            assert revision_of(answer) >= revision

    def test_all_replicas_give_the_same_answers(
        self, client_a: httpx.Client, client_b: httpx.Client, node: str, node_id: str
    ) -> None:
        for number in range(20):
            put((client_a, client_b)[number % 2], f"{node_id}-{number}", cause="x" * 100, endTimestamp=later())
        put(client_a, f"{node_id}-0", cause="y", action=EVACUATE)
        unblock(client_b, f"{node_id}-1")
        clients = [client_a, client_b]
        _, headers, _ = wait_until_equal(clients)
        assert {"etag", "blocklist-revision", "blocklist-history"} <= headers.keys()
        for path in (f"{node}-0", f"{node}-1", "/blocklist/changes", "/blocklist?details=true", "/evidence"):
            assert comparable_response(client_a, path) == comparable_response(client_b, path), path
        zipped = [client.get("/blocklist", headers={"Accept-Encoding": "gzip"}).headers["etag"] for client in clients]
        assert zipped[0] == zipped[1] != headers["etag"]
        assert client_b.get("/blocklist", headers={"If-None-Match": headers["etag"]}).status_code == 304

    def test_a_long_poll_returns_on_a_change_at_another_replica(
        self, client_a: httpx.Client, client_b: httpx.Client, node: str
    ) -> None:
        _, headers, _ = wait_until_equal([client_a, client_b])
        known = {"If-None-Match": headers["etag"], "Prefer": "wait=30", "Accept-Encoding": "identity"}
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client_b.get, "/blocklist", headers=known)
            client_a.put(node, json=block())
            assert waiting.result(30).status_code == 200


class TestWriting:
    def test_a_block_of_another_replica_is_a_conflict_at_once(
        self, client_a: httpx.Client, client_b: httpx.Client, node: str
    ) -> None:
        for writer, second in islice(cycle([(client_a, client_b), (client_b, client_a)]), 20):
            assert writer.put(node, json=block(cause="first")).status_code == 201
            problem = problem_of(second.put(node, json=block(cause="second")), 409)
            assert problem["blockedNode"]["cause"] == "first"
            merged = second.put(node, json=block(cause="third", allowMerge=True))
            assert (merged.status_code, merged.json()["cause"]) == (202, "first,third")
            assert writer.delete(node).status_code == 200
            assert second.delete(node).status_code == 404

    def test_of_concurrent_claims_with_one_etag_one_is_made(
        self, client_a: httpx.Client, client_b: httpx.Client, node: str
    ) -> None:
        client_a.put(node, json=block()).raise_for_status()
        etag = client_a.get(node).headers["ETag"]

        def send(number: int) -> int:
            client = (client_a, client_b)[number % 2]
            path = f"{node}/claims/owner-{number}"
            return client.put(path, json=claim(), headers={"If-Match": etag}).status_code

        with ThreadPoolExecutor(8) as pool:
            assert sorted(pool.map(send, range(8))) == [201] + [412] * 7

    def test_a_batch_conflicts_with_a_block_of_another_replica(
        self, client_a: httpx.Client, client_b: httpx.Client, node_id: str
    ) -> None:
        put(client_a, f"{node_id}-2")
        both = {f"{node_id}-{number}": block() for number in (1, 2)}
        assert list(problem_of(client_b.put("/blocklist/nodes", json=both), 409)["blockedNodes"]) == [f"{node_id}-2"]
        assert client_a.get(f"/blocklist/nodes/{node_id}-1").status_code == 404

    @pytest.mark.databases("postgresql", "pgbouncer-transaction", "pgbouncer-session")
    def test_concurrent_writers_at_all_replicas_produce_one_log(self, start_replicas: StartReplicas) -> None:
        """Each answer of three replicas has its own revision, and the log has exactly these changes."""
        clients = start_replicas(3).clients
        with ThreadPoolExecutor(WRITERS) as pool:
            done = list(pool.map(lambda number: _write(clients, number), range(WRITERS)))
        made = Counter(one for answers in done for one in answers)
        last = max(revision for revision, _, _ in made)
        logs = [wait_until_equal([client], f"/blocklist/changes?limit=1000&minRevision={last}") for client in clients]
        assert logs[0] == logs[1] == logs[2]
        log = all_changes(clients[0])
        assert [change["revision"] for change in log] == list(range(1, last + 1))
        assert made == Counter((change["revision"], change["type"], change["node"]["id"]) for change in log)

    def test_a_block_expires_once(self, client_a: httpx.Client, client_b: httpx.Client, node_id: str) -> None:
        ids = [f"{node_id}-{number}" for number in range(30)]
        for number, expiring_id in enumerate(ids):
            put((client_a, client_b)[number % 2], expiring_id, endTimestamp=later(0.3 + 0.02 * number))
        wait_until(lambda: all(_kinds(client_a, expiring_id)[-1:] == ["expired"] for expiring_id in ids))
        last = put(client_b, node_id)
        for client in (client_a, client_b):
            client.get("/blocklist", params={"minRevision": last})
            assert [_kinds(client, expiring_id) for expiring_id in ids] == [["blocked", "expired"]] * len(ids)


class TestWatching:
    def test_a_watch_resumed_at_another_replica_has_no_gap_and_no_duplicate(
        self, client_a: httpx.Client, client_b: httpx.Client, node: str, node_id: str
    ) -> None:
        """It moves to a replica that may be behind its cursor."""
        since, _ = current_list(client_a)
        history = client_a.get("/blocklist").headers["blocklist-history"]
        cursor = f"{since}-{history}"
        seen = []
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(_toggle, client_a, node, TURNS)
            for client in islice(cycle([client_a, client_b]), TURNS // 5):
                with watching(client, last_event_id=cursor) as events:
                    seen += next_events(events, 5)
                cursor = seen[-1].id
            writing.result(60)
        assert revisions(seen) == list(range(since + 1, since + 1 + TURNS))
        # Blocks of other tests may expire meanwhile.
        assert changes(seen) == [it for it in all_changes(client_a) if since < it["revision"] <= since + TURNS]

    def test_a_change_that_waits_is_not_reported_as_applied_in_a_new_history(
        self, restartable_replicas: Replicas, node_id: str
    ) -> None:
        one, other = restartable_replicas.clients
        register(one, "etl")
        history = one.get("/blocklist").headers["blocklist-history"]
        url = f"/blocklist/nodes/{node_id}"
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(one.put, url, json=block(), headers={"Prefer": "wait=60"})
            wait_until(lambda: other.get(url).status_code == 200)
            begin_new_history(restartable_replicas)
            wait_until(lambda: one.get("/blocklist").headers["blocklist-history"] != history)
            revision = revision_of(one.get("/blocklist"))
            old = heartbeat(one, "etl", ackedRevision=revision, history=history)
            assert old["revision"] == revision
            assert get_listener(one, "etl")["ackedRevision"] == 0, "it acknowledged the old history"
            new = one.get("/blocklist").headers["blocklist-history"]
            heartbeat(one, "etl", ackedRevision=revision, history=new)
            assert get_listener(one, "etl")["ackedRevision"] == revision
            assert "new history" in problem_of(waiting.result(90), 503)["detail"]
        assert one.delete("/listeners/etl").status_code == 204

    def test_a_new_history_ends_every_watch_and_starts_with_snapshots(
        self, restartable_replicas: Replicas, receiver: Receiver, node_id: str
    ) -> None:
        one, other = restartable_replicas.clients
        receiver.register(one, "jm")
        last = put(one, node_id)
        wait_until_pushed(one, receiver, last)
        other.get("/blocklist", params={"minRevision": last}).raise_for_status()
        with ExitStack() as stack:
            streams = [stack.enter_context(watching(client)) for client in restartable_replicas.clients]
            firsts = [next_events(events, 1)[0] for events in streams]
            begin_new_history(restartable_replicas)
            for events in streams:
                assert list(events)[-1].event == "bye"
        wait_until_equal(restartable_replicas.clients)
        for client, first in zip(restartable_replicas.clients, firsts, strict=True):
            with watching(client, last_event_id=first.id) as events:
                (again,) = next_events(events, 1)
            assert (again.event, again.json()["nodes"]) == ("snapshot", first.json()["nodes"])
            assert again.json()["history"] != first.json()["history"]
        receiver.wait(lambda it: it.applied[-1].body["snapshot"] and it.applied[-1].revisions == (0, last))
        assert put(other, f"{node_id}-2") == last + 1
        wait_until_pushed(other, receiver, last + 1)
        assert other.delete("/listeners/jm").status_code == 204

    def test_a_replica_that_reads_the_list_anew_knows_dismissals_that_it_never_saw(
        self, restartable_replicas: Replicas, node_id: str
    ) -> None:
        one, other = restartable_replicas.clients
        url = f"/blocklist/nodes/{node_id}"
        one.put(f"{url}/claims/alertmanager/1", json=claim()).raise_for_status()
        wait_until(lambda: other.get(url).status_code == 200)
        with restartable_replicas.processes[0].paused():
            other.delete(url).raise_for_status()
            expected = other.get(f"{url}/claims").json()["dismissed"]
            begin_new_history(restartable_replicas)
        wait_until_equal(restartable_replicas.clients)
        assert one.get(f"{url}/claims").json()["dismissed"] == expected != []

    def test_a_replica_that_reads_the_list_anew_ignores_evidence_that_was_dismissed_meanwhile(
        self, restartable_replicas: Replicas, node_id: str
    ) -> None:
        one, other = restartable_replicas.clients
        names = {f"{node_id}-{application}" for application in "xy"}
        evidence = {node_id: {"kind": "excluded", "reason": "disk"}}
        for name in names:
            register(one, name)
            heartbeat(one, name, evidence=evidence)
        url = f"/blocklist/nodes/{node_id}"
        wait_until(lambda: all(client.get(url).status_code == 200 for client in (one, other)))
        with restartable_replicas.processes[0].paused():
            for name in names:  # Evidence counts for a minute after the last report.
                heartbeat(other, name, evidence=evidence)
            unblock(other, node_id)
            begin_new_history(restartable_replicas)
        wait_until_equal(restartable_replicas.clients)
        for client in (one, other):
            found = [it for it in client.get("/evidence").json()["evidence"] if it["node"] == node_id]
            assert {it["application"]: it["believed"] for it in found} == dict.fromkeys(names, False)


def test_concurrent_migrations_create_the_tables_once(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.create("together")
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda _: run_app("migrate", env=environment(database_url=url)), range(3)))
    assert [one.returncode for one in done] == [0, 0, 0], done
    postgres.drop("together")


def begin_new_history(replicas: Replicas) -> None:
    assert run_app("new-history", env=replicas.processes[0].environment()).returncode == 0


def _write(clients: Sequence[httpx.Client], number: int) -> list[tuple[int, str, str]]:
    """Block, merge and unblock a few nodes at all replicas in turn; return the changes according to the answers."""
    kinds = {201: "blocked", 202: "merged", 200: "unblocked"}
    done = []
    for turn in range(TURNS):
        target, client = f"n-{(number + turn) % 4}", clients[turn % len(clients)]
        path = f"/blocklist/nodes/{target}"
        if turn % 3 == 2:
            answer = client.delete(path)
        else:
            body = block(cause=f"{number}.{turn}", allowMerge=turn % 3 == 1)
            answer = client.put(path, json=body)
        assert answer.status_code in {200, 201, 202, 404, 409}, answer.text
        if answer.status_code in kinds:
            done.append((revision_of(answer), kinds[answer.status_code], target))
    return done


def _toggle(client: httpx.Client, node: str, times: int) -> None:
    for turn in range(times):
        answer = client.delete(node) if turn % 2 else client.put(node, json=block())
        assert answer.is_success, answer.text


def _kinds(client: httpx.Client, node_id: str) -> list[str]:
    return [change["type"] for change in all_changes(client, node=node_id)]
