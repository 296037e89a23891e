"""What is stated of a block after the service was away: a listener that has not spoken since may have ended."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import httpx
import pytest

from app.store.database import migrate
from tests.integration.conftest import Start
from tests.integration.databases import ON_BOTH, Databases
from tests.integration.listeners import get_listener, heartbeat, put, register
from tests.integration.process import ServiceProcess, wait_until
from tests.integration.replicas import QUICK_LEASE, running_replicas
from tests.integration.test_node_status import status
from tests.postgres import PostgresServer

pytestmark = ON_BOTH
LEASE_SECONDS = 60
REPLICA_LEASE: Final = float(QUICK_LEASE["app.listeners.replication.LEASE_SECONDS"])


def acknowledged_block(client: httpx.Client, *, lease_seconds: int = LEASE_SECONDS) -> None:
    """Block `n` as `jm` has applied."""
    register(client, "jm", leaseSeconds=lease_seconds)
    heartbeat(client, "jm", ackedRevision=put(client, "n"), taskManagers={"tm": "n"})
    assert known(client) == (1, 1)


def known(client: httpx.Client) -> tuple[int, int]:
    """How many listeners have applied the block of `n`, and of how many."""
    found = status(client, "n")
    return found["applied"], found["of"]


def is_unknown(client: httpx.Client) -> bool:
    """False also during an outage: PostgreSQL ends a transaction that a pause has interrupted."""
    answer = client.get("/blocklist/nodes/n/status")
    return answer.status_code == 200 and (answer.json()["applied"], answer.json()["of"]) == (0, 1)


def test_a_kill_makes_states_unknown_until_each_listener_speaks(start: Start) -> None:
    """Whether it acknowledges the revision again or not."""
    service = start(constants=QUICK_LEASE)
    with service.client() as client:
        acknowledged_block(client)
        register(client, "other", leaseSeconds=LEASE_SECONDS)
        revision = get_listener(client, "jm")["ackedRevision"]
        heartbeat(client, "other", ackedRevision=revision, taskManagers={"tm-2": "n"})
        assert known(client) == (2, 2)
    time.sleep(2)  # Cursors are saved up to half a second later.
    service.kill()
    time.sleep(REPLICA_LEASE + 0.5)
    service.start()
    with service.client() as client:
        assert known(client) == (0, 2)
        for name in ("jm", "other"):
            register(client, name, leaseSeconds=LEASE_SECONDS)
        assert known(client) == (0, 2)
        heartbeat(client, "jm", ackedRevision=get_listener(client, "jm")["ackedRevision"])
        assert known(client) == (1, 2)
        heartbeat(client, "other")
        assert known(client) == (2, 2)


@pytest.mark.databases("postgresql")
class TestReplicas:
    def test_no_replica_states_more_than_another_after_a_kill_of_all(
        self, tmp_path: Path, databases: Databases
    ) -> None:
        with running_replicas(tmp_path, 2, constants=QUICK_LEASE, **databases.settings(tmp_path)) as replicas:
            acknowledged_block(replicas.clients[0])
            wait_until(lambda: known(replicas.clients[1]) == (1, 1))  # It is stored.
            for process in replicas.processes:
                process.kill()
            time.sleep(REPLICA_LEASE + 0.5)
            clients = [process.start().client() for process in replicas.processes]
            assert [known(client) for client in clients] == [(0, 1)] * 2
            heartbeat(clients[1], "jm")
            wait_until(lambda: [known(client) for client in clients] == [(1, 1)] * 2)
            self.a_restart_of_one_changes_nothing(replicas.processes[0], clients[1])
            for client in clients:
                client.close()
        databases.drop(tmp_path)

    def a_restart_of_one_changes_nothing(self, process: ServiceProcess, other: httpx.Client) -> None:
        process.kill()
        with process.start().client() as client:
            assert known(client) == known(other) == (1, 1)

    def test_a_pause_longer_than_the_lease_makes_states_unknown(self, start: Start) -> None:
        service = start()
        with service.client() as client:
            acknowledged_block(client, lease_seconds=3)
            with service.paused():
                time.sleep(5)
            wait_until(lambda: is_unknown(client), seconds=15)
            heartbeat(client, "jm")
            assert known(client) == (1, 1)


def test_an_outage_longer_than_the_lease_makes_states_unknown_at_all_replicas(
    tmp_path: Path,
) -> None:
    """The first replica that is back gives the listener a whole lease: the other must not take that for a heartbeat."""
    with PostgresServer() as server:
        url = server.create("outage")
        migrate(url)
        with running_replicas(tmp_path, 2, database_url=url) as replicas:
            acknowledged_block(replicas.clients[0], lease_seconds=4)
            wait_until(lambda: known(replicas.clients[1]) == (1, 1))
            server.kill()
            time.sleep(6)
            server.start()
            seen: list[set[tuple[int, int]]] = [set(), set()]

            def look() -> bool:
                """Whether each replica has said that the state is unknown."""
                for found, client in zip(seen, replicas.clients, strict=True):
                    answer = client.get("/blocklist/nodes/n/status")
                    if answer.status_code == 200:
                        found.add((answer.json()["applied"], answer.json()["of"]))
                return all((0, 1) in found for found in seen)

            wait_until(look)
            for _ in range(10):  # Meanwhile each reads what the other has stored.
                time.sleep(0.1)
                look()
            assert not any((1, 1) in found for found in seen)
