"""Tokens and sessions created or ended at one replica are so at all replicas."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from typing import Any

import httpx
import pytest

from tests.integration.databases import Databases
from tests.integration.event_stream import next_events, watching
from tests.integration.problems import problem_of
from tests.integration.process import wait_until
from tests.integration.replicas import Replicas, running_replicas
from tests.integration.test_sessions import COOKIE, csrf_of, log_in

pytestmark = [pytest.mark.databases("postgresql", "pgbouncer-transaction"), pytest.mark.xdist_group("replicas")]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[Replicas]:
    """Two replicas with the same admin token."""
    folder = tmp_path_factory.mktemp("secured")
    admin = folder / "admin.token"
    settings = {"auth": "tokens", "admin_token_file": str(admin), "database_url": databases.url_for(folder)}
    with running_replicas(folder, 2, **settings) as replicas:
        for client in replicas.clients:
            client.headers["Authorization"] = f"Bearer {admin.read_text().strip()}"
        yield replicas


@pytest.fixture
def admins(secured: Replicas) -> Sequence[httpx.Client]:
    """A client of each replica with the admin token."""
    return secured.clients


@pytest.fixture
def visitors(secured: Replicas) -> Iterator[Sequence[httpx.Client]]:
    """A client of each replica without credentials."""
    clients = [process.client() for process in secured.processes]
    yield clients
    for client in clients:
        client.close()


def create_token(client: httpx.Client, role: str = "reader", **fields: Any) -> dict[str, Any]:
    made: dict[str, Any] = (
        client.post("/tokens", json={"name": "anna", "role": role, **fields}).raise_for_status().json()
    )
    return made


def bearer(made: dict[str, Any]) -> dict[str, str]:
    return {"Authorization": f"Bearer {made['token']}"}


def test_a_token_created_at_one_replica_is_valid_at_the_other_at_once(
    admins: Sequence[httpx.Client], visitors: Sequence[httpx.Client]
) -> None:
    for here, there in islice(cycle([(0, 1), (1, 0)]), 10):
        made = create_token(admins[here], "operator")
        assert visitors[there].get("/blocklist", headers=bearer(made)).status_code == 200
        assert visitors[there].get("/whoami", headers=bearer(made)).json()["name"] == "anna"
        assert any(token["id"] == made["id"] for token in admins[there].get("/tokens").json()["tokens"])


def test_a_token_revoked_at_one_replica_ends_at_the_other_with_its_watch(
    admins: Sequence[httpx.Client], visitors: Sequence[httpx.Client]
) -> None:
    made = create_token(admins[0])
    there = visitors[1]
    there.headers.update(bearer(made))
    with watching(there) as events, ThreadPoolExecutor(1) as pool:
        assert next_events(events, 1)[0].event == "snapshot"
        rest = pool.submit(list, events)
        assert admins[0].delete(f"/tokens/{made['id']}").status_code == 204
        assert rest.result(30)[-1].event == "bye"
    wait_until(lambda: there.get("/blocklist").status_code == 401)
    problem_of(visitors[0].get("/blocklist", headers=bearer(made)), 401)


def test_a_session_is_valid_at_both_replicas_until_logout_at_one(
    admins: Sequence[httpx.Client], visitors: Sequence[httpx.Client], secured: Replicas
) -> None:
    made = create_token(admins[0], "operator")
    here, there = visitors
    assert there.get("/blocklist", headers=bearer(made)).status_code == 200
    assert log_in(here, made["token"]).status_code == 303
    there.cookies = here.cookies
    assert csrf_of(there) == csrf_of(here)
    form = {"csrf_token": csrf_of(there)}
    assert here.post("/logout", data=form, headers={"Origin": secured.processes[0].url}).status_code == 303
    assert here.get("/page/block").status_code == 303
    wait_until(lambda: there.get("/page/block").status_code == 303)


def test_a_session_ends_with_its_token_at_every_replica(
    admins: Sequence[httpx.Client], visitors: Sequence[httpx.Client]
) -> None:
    made = create_token(admins[0])
    here, there = visitors
    log_in(here, made["token"])
    there.cookies = here.cookies
    wait_until(lambda: there.get("/blocklist").status_code == 200)
    assert admins[0].delete(f"/tokens/{made['id']}").status_code == 204
    assert here.get("/blocklist").status_code == 401
    wait_until(lambda: there.get("/blocklist").status_code == 401)


def test_a_session_has_the_restriction_of_its_token_at_a_replica_that_does_not_know_the_token_yet(
    admins: Sequence[httpx.Client], visitors: Sequence[httpx.Client]
) -> None:
    sessions = []
    for here, there in islice(cycle([(0, 1), (1, 0)]), 6):
        made = create_token(admins[here], "operator", owners=["maintenance"])
        assert log_in(visitors[here], made["token"]).status_code == 303
        sessions.append((visitors[there], {"Cookie": f"{COOKIE}={visitors[here].cookies.get(COOKIE)}"}))
        visitors[here].cookies.clear()
        check_restricted(*sessions[-1])
    time.sleep(1)  # Now the tokens are known.
    for session in sessions:
        check_restricted(*session)


def check_restricted(visitor: httpx.Client, cookie: dict[str, str]) -> None:
    """The session may read, but not change anything by the page."""
    assert visitor.get("/blocklist", headers=cookie).status_code == 200
    assert visitor.get("/page/block", headers=cookie).status_code == 403


def test_the_sessions_of_a_user_are_limited_for_all_replicas_together(
    admins: Sequence[httpx.Client], visitors: Sequence[httpx.Client]
) -> None:
    made = admins[0].post("/tokens", json={"name": "many", "role": "reader"}).raise_for_status().json()
    cookies = []
    for number in range(21):
        visitor = visitors[number % 2]
        visitor.cookies.clear()
        assert log_in(visitor, made["token"]).status_code == 303
        cookies.append({"Cookie": f"{COOKIE}={visitor.cookies[COOKIE]}"})

    def statuses() -> list[list[int]]:
        return [[visitor.get("/blocklist", headers=it).status_code for it in cookies] for visitor in visitors]

    for visitor in visitors:
        visitor.cookies.clear()
    wait_until(lambda: statuses() == [[401] + [200] * 20] * 2)
