"""A replica that could not reach the database, while another one could: what it answers once it can again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import psycopg
import pytest

from tests.faulty_proxy import FaultyProxy
from tests.integration.bodies import block
from tests.integration.databases import Databases
from tests.integration.listeners import get_listener, heartbeat, post_heartbeat, register, registration_body
from tests.integration.process import ServiceProcess, wait_until
from tests.integration.test_replicas_access import bearer, create_token
from tests.integration.test_sessions import log_in
from tests.length import longer
from tests.postgres import PostgresServer, database_name

pytestmark = [pytest.mark.databases("postgresql"), pytest.mark.xdist_group("replicas")]

ROUNDS: Final = longer(2)
"""What a replica answers before it has read the database again lasts milliseconds: one round may miss it."""


@dataclass(frozen=True)
class Pair:
    """Clients of a replica that reaches the database and of one that may not, with an admin's token."""

    one: httpx.Client
    cut: httpx.Client
    cut_process: ServiceProcess
    wire: FaultyProxy
    server: PostgresServer
    database: str
    visitor: Callable[[], httpx.Client]
    other_visitor: Callable[[], httpx.Client]

    @contextmanager
    def locked(self, *tables: str) -> Iterator[None]:
        """An administrator holds a lock on these tables; everything else works."""
        with psycopg.connect(self.server.url(self.database, user="postgres")) as session:
            session.execute(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE".encode())
            yield
            session.rollback()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The second replica does not run, for longer than two of its polls take."""
        self.cut_process.pause()
        begin = time.monotonic()
        try:
            yield
            time.sleep(max(0.0, begin + 2 - time.monotonic()))
        finally:
            self.cut_process.resume()

    @contextmanager
    def outage(self) -> Iterator[None]:
        """The second replica is cut off, and knows it."""
        self.wire.refuse_connections()
        try:
            wait_until(lambda: "age" in self.cut.get("/blocklist").headers)
            yield
        finally:
            self.wire.restore()


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, databases: Databases, postgres: PostgresServer) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("recovery")
    admin = folder / "admin.token"
    settings = databases.settings(folder) | {"auth": "tokens", "admin_token_file": str(admin), "database_timeout": "2s"}
    folders = [folder / "one", folder / "cut"]
    for own in folders:
        Path.mkdir(own)
    with FaultyProxy(postgres.port) as wire:
        cut_url = settings["database_url"].replace(f":{postgres.port}/", f":{wire.port}/")
        with (
            ServiceProcess(folders[0], **settings) as first,
            ServiceProcess(folders[1], **(settings | {"database_url": cut_url})) as second,
            first.client() as one,
            second.client() as cut,
        ):
            for client in (one, cut):
                client.headers["Authorization"] = f"Bearer {admin.read_text().strip()}"
            yield Pair(one, cut, second, wire, postgres, database_name(cut_url), first.client, second.client)
    databases.drop(folder)


@pytest.fixture
def pair(started: Pair) -> Pair:
    """Both, when they reach the database."""
    wait_until(lambda: all(client.get("/readyz").status_code == 200 for client in (started.one, started.cut)))
    first_without_age(started.cut, "/blocklist")
    return started


def first_without_age(client: httpx.Client, path: str, **headers: str) -> httpx.Response:
    """The first response that claims to be up to date."""
    answers: list[httpx.Response] = []

    def is_current() -> bool:
        answers[:] = [client.get(path, headers=headers)]
        return "age" not in answers[0].headers

    wait_until(is_current)
    return answers[0]


def test_what_a_replica_answers_without_age_after_an_outage_has_what_others_committed(pair: Pair, node_id: str) -> None:
    """Each is asked on a connection of its own until its answer claims to be up to date."""
    for number in range(ROUNDS):
        check_after_an_outage(pair, f"{node_id}-{number}")


def check_after_an_outage(pair: Pair, node: str) -> None:
    token, of_session = create_token(pair.one), create_token(pair.one)
    with pair.visitor() as here, pair.other_visitor() as there:
        log_in(here, of_session["token"])
        there.cookies = here.cookies
        wait_until(lambda: there.get("/blocklist").status_code == 200)
        assert first_without_age(pair.cut, "/blocklist", **bearer(token)).status_code == 200
        with pair.outage():
            etag = pair.cut.get("/blocklist").headers["etag"]
            pair.one.put(f"/blocklist/nodes/{node}", json=block()).raise_for_status()
            register(pair.one, node)
            for revoked in (token, of_session):
                pair.one.delete(f"/tokens/{revoked['id']}").raise_for_status()
        asked = ("/blocklist", f"/blocklist/nodes/{node}", "/listeners")
        with ThreadPoolExecutor(6) as pool:
            reads = [pool.submit(first_without_age, pair.cut, path) for path in asked]
            confirmed = pool.submit(first_without_age, pair.cut, "/blocklist", **{"If-None-Match": etag})
            with_token = pool.submit(when_current, pair, lambda: pair.cut.get("/blocklist", headers=bearer(token)))
            in_session = pool.submit(when_current, pair, lambda: there.get("/blocklist"))
        for read in reads:
            assert (read.result().status_code, node in read.result().text) == (200, True), read.result().url
        assert confirmed.result().status_code == 200, "not 304"
        assert (with_token.result().status_code, in_session.result().status_code) == (401, 401)


def when_current(pair: Pair, ask: Callable[[], httpx.Response]) -> httpx.Response:
    """What the second replica answers as soon as its reads claim to be up to date."""
    first_without_age(pair.cut, "/blocklist")
    return ask()


def test_the_first_read_after_a_pause_of_the_replica_has_an_age(pair: Pair, node_id: str) -> None:
    """It knows of the pause before it hears from the database again."""
    for number in range(ROUNDS):
        node = f"{node_id}-{number}"
        with pair.paused():
            pair.one.put(f"/blocklist/nodes/{node}", json=block()).raise_for_status()
        answers = [pair.cut.get("/blocklist") for _ in range(50)]
        assert all(node in answer.text or "age" in answer.headers for answer in answers)
        assert "age" in answers[0].headers
        assert node in first_without_age(pair.cut, "/blocklist").text


def renew_until_the_first_lease_ends(client: httpx.Client, listener: str) -> int:
    """Send heartbeats until the lease has ended that the listener had at first; the end of its renewed lease."""
    first = renewed = int(get_listener(client, listener)["leaseEnd"])
    while time.time() * 1000 <= first + 100:
        renewed = int(heartbeat(client, listener)["leaseEnd"])
    return renewed


def test_a_lease_renewed_elsewhere_does_not_lapse_at_a_replica_without_the_database(pair: Pair, node_id: str) -> None:
    register(pair.one, node_id, leaseSeconds=2)
    assert get_listener(pair.cut, node_id)["state"] == "live"
    with pair.outage():
        renew_until_the_first_lease_ends(pair.one, node_id)
        assert get_listener(pair.cut, node_id)["state"] == "live"
        assert post_heartbeat(pair.cut, node_id).status_code == 200


def test_a_lease_renewed_while_an_administrator_locks_the_listeners_does_not_lapse(pair: Pair, node_id: str) -> None:
    register(pair.one, node_id, leaseSeconds=4)
    assert get_listener(pair.cut, node_id)["state"] == "live"
    with pair.locked("listeners"):
        renewed = renew_until_the_first_lease_ends(pair.one, node_id)
        assert get_listener(pair.cut, node_id)["state"] == "live"
    while int(get_listener(pair.cut, node_id)["leaseEnd"]) < renewed:
        assert post_heartbeat(pair.one, node_id).status_code == 200
    assert get_listener(pair.cut, node_id)["state"] == get_listener(pair.one, node_id)["state"] == "live"


def test_locks_on_other_tables_stop_no_change_of_the_list(pair: Pair, node_id: str) -> None:
    register(pair.one, node_id)
    with pair.locked("listeners", "reports", "tokens"), ThreadPoolExecutor(2) as pool:
        # Longer than the service waits for a lock, or for an answer (2 s).
        end = time.monotonic() + 5
        others = [pool.submit(use_other_tables, client, node_id, end) for client in (pair.one, pair.cut)]
        while time.monotonic() < end:
            for client in (pair.one, pair.cut):
                client.put(f"/blocklist/nodes/{node_id}", json=block(allowMerge=True)).raise_for_status()
        for future in others:
            future.result()


def use_other_tables(client: httpx.Client, listener: str, end: float) -> None:
    """Write listeners and tokens until `end` (monotonic clock)."""
    while time.monotonic() < end:
        post_heartbeat(client, listener, taskManagers={"tm": f"host-{time.monotonic()}"})
        client.post("/tokens", json={"name": "anna", "role": "reader"})
        client.put(f"/listeners/{listener}-other", json=registration_body())


def test_a_report_that_one_replica_alone_knows_is_to_be_sent_again(pair: Pair, node_id: str) -> None:
    """If that replica is killed, the others have an older report, by which nothing runs there."""
    register(pair.one, node_id)
    heartbeat(pair.one, node_id, taskManagers={"tm": node_id}, runningTasks={"tm": 1})
    wait_until(lambda: heartbeat(pair.one, node_id)["reported"] == ["runningTasks", "taskManagers"])
    with pair.locked("reports"):
        assert heartbeat(pair.one, node_id, refused={node_id: "Last."})["reported"] == ["runningTasks", "taskManagers"]
        assert heartbeat(pair.one, node_id)["reported"] == ["runningTasks", "taskManagers"]
    wait_until(lambda: "refused" in heartbeat(pair.one, node_id)["reported"])
