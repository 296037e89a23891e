"""Pushes by several replicas: each listener is owned by one replica; another takes over if that one fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from tests.integration.listeners import RM, current_nodes, get_listener, put, unblock, wait_until_pushed, without_lag
from tests.integration.process import ServiceProcess, wait_until
from tests.integration.receiver import Receiver, delays, receiving
from tests.integration.replicas import Replicas, wait_until_equal
from tests.integration.test_push_faults import changing, check, wait_for_pushes
from tests.postgres import PostgresServer, database_name

pytestmark = [pytest.mark.databases("postgresql"), pytest.mark.xdist_group("replicas")]


@pytest.fixture
def owner_replica(restartable_replicas: Replicas) -> Iterator[httpx.Client]:
    """The replica where listeners register, which owns them. Removes all listeners afterwards."""
    client = restartable_replicas.clients[0]
    yield client
    for listener in client.get("/listeners").json()["listeners"]:
        client.delete(f"/listeners/{listener['id']}")


@pytest.fixture
def other_replica(restartable_replicas: Replicas) -> httpx.Client:
    """The other replica."""
    return restartable_replicas.clients[1]


def message_ids(receivers: list[Receiver]) -> list[str]:
    return [push.headers["webhook-id"] for receiver in receivers for push in receiver.requests if not push.heartbeat]


def push_owners(postgres: PostgresServer, process: ServiceProcess) -> set[str | None]:
    """The owners of listeners in the database."""
    database = database_name(process.environment()["BLOCKLIST_DATABASE_URL"])
    return {owner for (owner,) in postgres.execute("SELECT owner FROM listeners", database)}


class TestOwnership:
    def test_each_change_is_pushed_once_by_one_replica(self, client_a: httpx.Client, client_b: httpx.Client) -> None:
        with ExitStack() as stack:
            receivers = [stack.enter_context(receiving()) for _ in range(4)]
            clients = (client_a, client_b)
            for number, receiver in enumerate(receivers):
                receiver.register(clients[number % 2], f"l-{number}")
            for number in range(20):
                revision = put(clients[number // 2 % 2], f"pushed-{number}")
                for receiver in receivers:
                    receiver.wait(lambda it: it.has(revision))  # noqa: B023 - it waits here
            ids = message_ids(receivers)
            assert len(ids) == len(set(ids))
            assert [(receiver.repeated, receiver.wrong_session) for receiver in receivers] == [(0, 0)] * 4
            for number, receiver in enumerate(receivers):
                assert receiver.nodes == current_nodes(client_a) == current_nodes(client_b)
                wait_until(lambda name=f"l-{number}": without_lag(client_a, name) == without_lag(client_b, name))  # type: ignore[misc]

    def test_a_listener_is_pushed_to_by_the_replica_it_registered_at(
        self, client_a: httpx.Client, client_b: httpx.Client
    ) -> None:
        """Each replica owns the listeners that register at it."""
        with receiving() as first, receiving() as second:
            first.register(client_a, "first")
            second.register(client_b, "second")
            before = [_pushes_sent(client_a), _pushes_sent(client_b)]
            for receiver in (first, second):
                receiver.wait(lambda it: len(it.heartbeats()) >= 2)
            assert [_pushes_sent(client_a) > before[0], _pushes_sent(client_b) > before[1]] == [True, True]

    def test_a_new_session_keeps_the_owner_of_the_old_one(
        self, client_a: httpx.Client, client_b: httpx.Client, receiver: Receiver
    ) -> None:
        receiver.register(client_a, "jm")
        revision = put(client_a, "session-1")
        wait_until_pushed(client_a, receiver, revision)
        with receiving(session="s2") as later:
            later.secrets += receiver.secrets
            later.register(client_b, "jm")
            wait_until_pushed(client_b, later, put(client_b, "session-2"))
            assert later.applied[0].body["snapshot"]
            assert later.nodes == current_nodes(client_a)
            wait_until(lambda: get_listener(client_a, "jm")["sessionId"] == "s2")
            before = len(receiver.requests)
            later.wait(lambda it: len(it.heartbeats()) >= 2)
            assert len(receiver.requests) == before

    def test_a_secret_rotated_at_another_replica_signs_pushes(
        self, client_a: httpx.Client, client_b: httpx.Client, receiver: Receiver
    ) -> None:
        receiver.register(client_a, "jm")
        answer = client_b.post("/listeners/jm/secret", json={"sessionId": "s1"})
        receiver.secrets.append(answer.json()["secret"])
        receiver.wait(lambda it: bool(it.requests) and it.requests[-1].signatures == (True, True))

    def test_a_listener_removed_at_another_replica_gets_no_more_pushes(
        self, client_a: httpx.Client, client_b: httpx.Client, receiver: Receiver
    ) -> None:
        with receiving() as stays:
            receiver.register(client_a, "jm")
            stays.register(client_a, "stays")
            wait_until_pushed(client_a, receiver, put(client_a, "left-1"))
            assert client_b.delete("/listeners/jm").status_code == 204
            wait_until(lambda: client_a.get("/listeners/jm").status_code == 404)
            before = len(receiver.requests)
            wait_until_pushed(client_a, stays, put(client_b, "left-2"), "stays")
            stays.wait(lambda it: len(it.heartbeats()) >= 2)
            assert len(receiver.requests) == before

    def test_reports_in_push_responses_are_known_to_all_replicas(
        self, client_a: httpx.Client, client_b: httpx.Client, receiver: Receiver, node_id: str
    ) -> None:
        receiver.report = {"taskManagers": {"pushed-tm": node_id}}
        receiver.register(client_a, "jm")
        put(client_b, node_id)
        wait_until(lambda: client_b.get(f"/blocklist/nodes/{node_id}").json()["taskManagers"] == ["pushed-tm"])
        wait_until_equal([client_a, client_b])


class TestResourceManagerBarrier:
    def test_job_masters_wait_for_resource_managers_of_other_replicas(
        self, owner_replica: httpx.Client, other_replica: httpx.Client
    ) -> None:
        with receiving(delays) as rm, receiving() as jm:
            rm.register(owner_replica, "rm", role=RM)
            jm.register(other_replica, "jm")
            assert get_listener(other_replica, "rm")["role"] == RM
            revision = put(other_replica, "managers-first")
            rm.wait(lambda it: bool(it.requests))
            assert get_listener(other_replica, "jm")["ackedRevision"] < revision
            assert [push for push in jm.requests if not push.heartbeat and push.revisions[1] >= revision] == []
            rm.release.set()
            wait_until_pushed(other_replica, jm, revision)
            assert rm.has(revision)
            took = [next(push for push in it.applied if push.revisions[1] >= revision) for it in (rm, jm)]
            assert took[0].at < took[1].at


class TestTakeover:
    """Receivers check that no change is skipped; `check` compares their state after each push with the list."""

    def test_listeners_of_a_killed_replica_are_taken_over(
        self, restartable_replicas: Replicas, owner_replica: httpx.Client, other_replica: httpx.Client
    ) -> None:
        with ExitStack() as stack:
            receivers = [stack.enter_context(receiving()) for _ in range(6)]
            for number, receiver in enumerate(receivers):
                receiver.register(owner_replica, f"l-{number}")
            with changing(restartable_replicas.processes[1]):
                wait_for_pushes(receivers, 3)
                # What a listener has acknowledged only to the replica that is killed, it gets again, as a whole list.
                wait_until(lambda: all(get_listener(other_replica, f"l-{n}")["ackedRevision"] for n in range(6)))
                restartable_replicas.processes[0].kill()
                wait_for_pushes(receivers, 3)
                restartable_replicas.processes[0].start()
                wait_for_pushes(receivers, 3)
            check(other_replica, receivers)
            assert not [push for receiver in receivers for push in receiver.applied[1:] if push.body["snapshot"]]

    def test_a_stopping_replica_releases_its_listeners_at_once(
        self,
        restartable_replicas: Replicas,
        owner_replica: httpx.Client,
        other_replica: httpx.Client,
        postgres: PostgresServer,
    ) -> None:
        """No listener waits for the end of the replica's lease."""
        with receiving() as receiver:
            receiver.register(owner_replica, "jm")
            (before,) = push_owners(postgres, restartable_replicas.processes[0])
            with changing(restartable_replicas.processes[1]):
                wait_for_pushes([receiver], 3)
                restartable_replicas.processes[0].stop()
                assert before not in push_owners(postgres, restartable_replicas.processes[0])
                wait_for_pushes([receiver], 3)
            check(other_replica, [receiver])
            restartable_replicas.processes[0].start()

    def test_a_resumed_replica_pushes_nothing_stale(
        self, restartable_replicas: Replicas, owner_replica: httpx.Client, other_replica: httpx.Client
    ) -> None:
        with ExitStack() as stack:
            receivers = [stack.enter_context(receiving()) for _ in range(3)]
            for number, receiver in enumerate(receivers):
                receiver.register(owner_replica, f"l-{number}")
            first = put(owner_replica, "still-1")
            for number, receiver in enumerate(receivers):
                wait_until_pushed(owner_replica, receiver, first, f"l-{number}")
            with restartable_replicas.processes[0].paused():
                last = max(put(other_replica, f"still-{number}") for number in range(2, 6))
                for number, receiver in enumerate(receivers):
                    wait_until_pushed(other_replica, receiver, last, f"l-{number}")
                told_before = [len(receiver.requests) for receiver in receivers]
            owner_replica.get("/blocklist", params={"minRevision": last}).raise_for_status()
            for receiver in receivers:
                seen = len(receiver.heartbeats())
                receiver.wait(lambda it, seen=seen: len(it.heartbeats()) >= seen + 3)  # type: ignore[misc]
            later = unblock(owner_replica, "still-1")
            for number, receiver in enumerate(receivers):
                wait_until_pushed(other_replica, receiver, later, f"l-{number}")
                after = receiver.requests[told_before[number] :]
                assert [push.revisions for push in after if push.revisions[0] < last] == []
                assert receiver.repeated == 0
            ids = message_ids(receivers)
            assert len(ids) == len(set(ids))

    def test_after_a_full_restart_live_listeners_get_a_full_lease(
        self,
        restartable_replicas: Replicas,
        owner_replica: httpx.Client,
        other_replica: httpx.Client,
        receiver: Receiver,
        postgres: PostgresServer,
    ) -> None:
        receiver.report = {"taskManagers": {"tm": "all-stopped"}}
        receiver.register(owner_replica, "jm")
        wait_until_pushed(owner_replica, receiver, put(owner_replica, "all-stopped"))
        for process in restartable_replicas.processes:
            process.stop()
        database = database_name(restartable_replicas.processes[0].environment()["BLOCKLIST_DATABASE_URL"])
        postgres.execute("UPDATE listeners SET lease_end_ms = lease_end_ms - 3600000", database)
        for process in restartable_replicas.processes:
            process.launch()
        for process in restartable_replicas.processes:
            process.wait_ready()
        for client in (other_replica, owner_replica):
            assert get_listener(client, "jm")["state"] == "live"
            assert client.get("/blocklist").json()["all-stopped"]["taskManagers"] == ["tm"]
        wait_until_pushed(other_replica, receiver, put(other_replica, "all-started"))
        assert not any(push.body["snapshot"] for push in receiver.applied[1:])


def _pushes_sent(client: httpx.Client) -> float:
    """Number of successful pushes of a replica."""
    line = 'blocklist_pushes_total{outcome="delivered"} '
    return next(
        float(found.removeprefix(line)) for found in client.get("/metrics").text.splitlines() if found.startswith(line)
    )
