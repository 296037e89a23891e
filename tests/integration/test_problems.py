"""Errors of all endpoints: unknown paths, wrong methods, internal errors, an unavailable database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from tests.integration.ages import READS_FROM_MEMORY, assert_ages
from tests.integration.bodies import all_changes, block, current_list
from tests.integration.conftest import StartInProcess
from tests.integration.in_process import InProcessService
from tests.integration.listeners import heartbeat, register
from tests.integration.problems import check_problem, problem_of
from tests.integration.process import url_of


@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE", "PATCH"])
@pytest.mark.parametrize(
    "path",
    ["/nothing", "/blocklist/nothing", "/blocklists", "/healthz/x", "/blocklist/nodes/a/b", "/v1/blocklist"],
)
def test_an_unknown_path_is_a_404_problem(client: httpx.Client, method: str, path: str) -> None:
    problem = problem_of(client.request(method, path), 404)
    assert problem["instance"].endswith(path)


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/blocklist", {"GET", "HEAD"}),
        ("/blocklist/nodes", {"PUT", "DELETE"}),
        ("/blocklist/nodes/a", {"GET", "HEAD", "PUT", "DELETE"}),
        ("/blocklist/node/a", {"GET", "HEAD", "PUT", "DELETE"}),
        ("/blocklist/watch", {"GET"}),
        ("/blocklist/changes", {"GET", "HEAD"}),
        ("/healthz", {"GET", "HEAD"}),
        ("/readyz", {"GET", "HEAD"}),
        ("/metrics", {"GET", "HEAD"}),
        ("/integrations/alertmanager", {"POST"}),
        ("/listeners/jm", {"GET", "HEAD", "PUT", "DELETE"}),
        ("/listeners/jm/heartbeat", {"POST"}),
        ("/listeners/jm/secret", {"POST"}),
    ],
)
def test_a_wrong_method_is_a_405_problem_with_all_allowed_methods(
    client: httpx.Client, path: str, allowed: set[str]
) -> None:
    for method in {"GET", "PUT", "POST", "DELETE", "PATCH", "TRACE"} - allowed:
        answer = client.request(method, path)
        problem_of(answer, 405)
        named = {name.strip() for name in answer.headers["allow"].split(",")}
        assert named - {"OPTIONS"} == allowed, method


def test_head_of_the_watch_is_405(client: httpx.Client) -> None:
    answer = client.head("/blocklist/watch")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")


def test_a_head_of_an_error_has_no_body(client: httpx.Client) -> None:
    answer = client.head("/blocklist/nodes/free")
    assert (answer.status_code, answer.content) == (404, b"")
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_500_reveals_no_details(tmp_path: Path, migrated: Path) -> None:
    database = tmp_path / "blocklist.db"
    database.write_bytes(migrated.read_bytes())
    app = create_app(Settings(database_url=url_of(database)))
    assert isinstance(app, FastAPI)

    @app.get("/fault")
    def fault() -> None:
        raise RuntimeError("password=hunter2 in /etc/secret.py")

    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        answer = client.get("/fault")
    problem = problem_of(answer, 500)
    check_problem(problem, 500)
    assert "hunter2" not in answer.text
    assert "RuntimeError" not in answer.text
    assert "secret" not in answer.text


@pytest.fixture
def fresh(start_in_process: StartInProcess) -> InProcessService:
    return start_in_process()


@pytest.fixture
def fresh_client(fresh: InProcessService) -> httpx.Client:
    return fresh.client()


@contextmanager
def database_locked(database: Path) -> Iterator[None]:
    """The database is locked by another program: no write gets through."""
    with closing(sqlite3.connect(database, isolation_level=None, timeout=30)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def test_while_the_database_is_unavailable_writes_are_503_and_every_read_from_memory_has_an_age(
    fresh: InProcessService, fresh_client: httpx.Client
) -> None:
    """A refusal too: the node that it calls free may have been blocked at another place meanwhile."""
    fresh_client.put("/blocklist/nodes", json={"a": block(), "m.a": block(), "m.b": block()}).raise_for_status()
    register(fresh_client, "jm")
    heartbeat(fresh_client, "jm", taskManagers={"tm": "a"})
    before = current_list(fresh_client)
    reads = {**READS_FROM_MEMORY, "/listeners/none": 404, "/blocklist/nodes/m": 409}
    assert_ages(fresh_client, reads, stale=False)
    with database_locked(fresh.database):
        for method, path, body in [("PUT", "/blocklist/nodes/b", block()), ("DELETE", "/blocklist/nodes/a", None)]:
            answer = fresh_client.request(method, path, json=body, timeout=60)
            problem_of(answer, 503)
            assert int(answer.headers["retry-after"]) >= 0
        assert current_list(fresh_client) == before
        assert_ages(fresh_client, reads, stale=True)
        # These are read from the database, which another program has locked for writes only.
        from_database = {"/blocklist/changes": 200, "/blocklist/nodes/a/status": 200, "/blocklist/nodes/b/status": 404}
        assert_ages(fresh_client, from_database, stale=False)
        assert "age" not in fresh_client.delete("/blocklist/nodes/b", timeout=60).headers
        assert fresh_client.get("/healthz").status_code == 200
        assert "The database is locked by another program" in problem_of(fresh_client.get("/readyz"), 503)["detail"]
    fresh.until(lambda: fresh_client.put("/blocklist/nodes/b", json=block(allowMerge=True)).is_success)
    fresh.until(lambda: "age" not in fresh_client.get("/blocklist").headers)
    assert fresh_client.get("/readyz").status_code == 200
    assert [change["node"]["id"] for change in all_changes(fresh_client)] == ["a", "m.a", "m.b", "b"]
