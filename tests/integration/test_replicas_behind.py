"""A replica that gets no notifications: its connection for them hangs, while the database answers on all others."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.integration.databases import Databases
from tests.integration.listeners import (
    get_listener,
    heartbeat,
    post_heartbeat,
    put,
    register,
    wait_until_pushed,
)
from tests.integration.problems import problem_of
from tests.integration.process import ServiceProcess, wait_until
from tests.integration.receiver import Receiver, receiving
from tests.postgres import PostgresServer

pytestmark = [pytest.mark.databases("postgresql"), pytest.mark.xdist_group("replicas")]

BEHIND: Final = "behind"
"""The name of the second replica's connections at the server."""
_LISTENS: Final = f"SELECT pid FROM pg_stat_activity WHERE application_name = '{BEHIND}' AND query LIKE '%tokens%'"


@dataclass(frozen=True)
class Pair:
    """A client of a replica that works, and one of a replica whose notifications can be held back."""

    one: httpx.Client
    behind: httpx.Client
    server: PostgresServer

    @contextmanager
    def without_notifications(self) -> Iterator[None]:
        """The server's process for that connection is paused; the others go on."""
        # A replica is ready before it listens.
        wait_until(lambda: bool(self.server.execute(_LISTENS)))
        ((pid,),) = self.server.execute(_LISTENS)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, databases: Databases, postgres: PostgresServer) -> Iterator[Pair]:
    """Replicas that take no delay for an outage."""
    folder = tmp_path_factory.mktemp("behind")
    settings = databases.settings(folder) | {"database_timeout": "10m", "heartbeat": "1s"}
    named = settings | {"database_url": f"{settings['database_url']}&application_name={BEHIND}"}
    folders = [folder / "one", folder / BEHIND]
    for own in folders:
        Path.mkdir(own)
    with (
        ServiceProcess(folders[0], **settings) as first,
        ServiceProcess(folders[1], **named) as second,
        first.client() as one,
        second.client() as behind,
    ):
        yield Pair(one, behind, postgres)
    databases.drop(folder)


@pytest.fixture
def pair(started: Pair) -> Iterator[Pair]:
    """Both, without listeners."""
    yield started
    for listener in started.one.get("/listeners").json()["listeners"]:
        started.one.delete(f"/listeners/{listener['id']}")


def assert_rejected_within_a_second(client: httpx.Client, status: int, **fields: object) -> None:
    """Send heartbeats of session `s1` until one is rejected: at the latest the first that is sent a second from now.

    It may take long to answer.
    """
    latest, sent = time.monotonic() + 1, 0.0
    while (answer := post_heartbeat(client, "jm", "s1", **fields)).status_code == 200:
        assert sent < latest
        sent = time.monotonic()
    problem_of(answer, status)


class TestAcknowledgements:
    def test_a_revision_that_another_replica_made_is_a_503_until_this_one_has_read_it_by_itself(
        self, pair: Pair, node_id: str
    ) -> None:
        register(pair.one, "jm")
        heartbeat(pair.behind, "jm")
        with pair.without_notifications():
            revision = put(pair.one, node_id)

            def is_acknowledged() -> bool:
                answer = post_heartbeat(pair.behind, "jm", ackedRevision=revision)
                if answer.status_code != 200:
                    problem_of(answer, 503)
                    assert int(answer.headers["retry-after"]) >= 1
                return answer.status_code == 200

            wait_until(is_acknowledged)
            assert get_listener(pair.behind, "jm")["ackedRevision"] == revision

    def test_a_read_has_an_age_or_the_changes_of_other_replicas(self, pair: Pair, node_id: str) -> None:
        with pair.without_notifications():
            wait_until(lambda: "age" in pair.behind.get("/blocklist").headers)
            put(pair.one, node_id)
            wait_until(lambda: node_id in pair.behind.get("/blocklist").text)

    def test_a_revision_that_no_replica_has_made_is_a_400(self, pair: Pair, node_id: str) -> None:
        register(pair.one, "jm")
        heartbeat(pair.behind, "jm")
        with pair.without_notifications():
            revision = put(pair.one, node_id)
            answers = []

            def is_known() -> bool:
                answers.append(post_heartbeat(pair.behind, "jm", ackedRevision=revision + 1))
                return answers[-1].status_code != 503

            # 503 while the replica does not know that it has the whole list: between two of its own reads.
            wait_until(is_known)
            problem_of(answers[-1], 400)


class TestSupersededSessions:
    """The replica's own timeout is ten minutes: it cannot notice by itself that its notifications do not arrive."""

    def test_heartbeats_of_a_superseded_session_are_rejected(self, pair: Pair, node_id: str) -> None:
        revision = put(pair.one, node_id)
        register(pair.one, "jm", "s1")
        heartbeat(pair.behind, "jm", "s1")
        with pair.without_notifications():
            register(pair.one, "jm", "s2")
            assert_rejected_within_a_second(pair.behind, 409, ackedRevision=revision)
            heartbeat(pair.behind, "jm", "s2")
            for client in (pair.one, pair.behind):
                shown = get_listener(client, "jm")
                assert (shown["sessionId"], shown["ackedRevision"]) == ("s2", 0)

    def test_heartbeats_of_a_removed_listener_are_rejected(self, pair: Pair) -> None:
        register(pair.one, "jm")
        heartbeat(pair.behind, "jm")
        with pair.without_notifications():
            assert pair.one.delete("/listeners/jm").status_code == 204
            assert_rejected_within_a_second(pair.behind, 404)

    def test_pushes_go_to_the_session_that_took_over(self, pair: Pair, receiver: Receiver, node_id: str) -> None:
        """The replica that pushes is the one without notifications."""
        receiver.register(pair.behind, "jm")
        wait_until_pushed(pair.behind, receiver, put(pair.behind, node_id))
        with receiving(session="s2") as later, pair.without_notifications():
            later.secrets += receiver.secrets
            later.register(pair.one, "jm")
            later.wait(lambda it: node_id in it.nodes)
            assert later.applied[0].body["snapshot"]
