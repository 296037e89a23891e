"""History: details of blocks, the list at a past time, filters of the change log, and its export."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from app.store.database import make_engine
from app.store.queries import ChangeFilter, changes_matching
from tests.integration.bodies import EVACUATE, all_changes, block, later, now_ms, revision_of
from tests.integration.databases import ON_BOTH, ON_SQLITE, Databases
from tests.integration.in_process import ManualClock, in_process, running_service
from tests.integration.problems import problem_of
from tests.integration.process import http_client, url_of, wait_until

pytestmark = ON_BOTH

LINES = {"accept": "application/x-ndjson"}
MONDAY = 1_700_000_000_000
"""The beginning of the synthetic log below."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(MONDAY)


@pytest.fixture
def past(database_url: str, clock: ManualClock) -> Iterator[TestClient]:
    """A service on a manual clock."""
    with running_service(database_url, clock) as client:
        yield client


def listed(client: TestClient, **params: Any) -> dict[str, Any]:
    answer = client.get("/blocklist", params=params)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


class TestDetails:
    @ON_SQLITE
    def test_each_node_has_author_and_revision(self, past: TestClient) -> None:
        past.put("/blocklist/nodes/a", json=block())
        past.put("/blocklist/nodes/b", json=block())
        past.put("/blocklist/nodes/a", json=block(action=EVACUATE, allowMerge=True))
        past.put("/blocklist/nodes/c", json=block())
        past.delete("/blocklist/nodes/c")
        plain, detailed = past.get("/blocklist"), past.get("/blocklist?details=true")
        assert detailed.json() == {
            "a": plain.json()["a"] | {"createdBy": None, "revision": 3, "owners": ["anonymous"]},
            "b": plain.json()["b"] | {"createdBy": None, "revision": 2, "owners": ["anonymous"]},
        }
        assert past.get("/blocklist?details=false").content == plain.content

    @ON_SQLITE
    def test_it_has_a_separate_etag(self, past: TestClient) -> None:
        past.put("/blocklist/nodes/a", json=block())
        plain, detailed = past.get("/blocklist"), past.get("/blocklist?details=true")
        assert plain.headers["etag"] != detailed.headers["etag"]
        known = {"if-none-match": detailed.headers["etag"]}
        assert past.get("/blocklist?details=true", headers=known).status_code == 304
        assert past.get("/blocklist", headers=known).status_code == 200
        past.put("/blocklist/nodes/b", json=block())
        # It waits for a change, too; here for one that has been.
        assert past.get("/blocklist?details=true", headers=known | {"prefer": "wait=60"}).status_code == 200

    def test_it_survives_a_restart(self, database_url: str, clock: ManualClock) -> None:
        with running_service(database_url, clock) as client:
            client.put("/blocklist/nodes", json={"a": block(), "b": block()})
            before = client.get("/blocklist?details=true").json()
        with running_service(database_url, clock) as client:
            assert client.get("/blocklist?details=true").json() == before

    @ON_SQLITE
    @pytest.mark.parametrize("query", ["details=1", "details=", "details=yes", "at=x", "at=-1", "at=", "at=1.5"])
    def test_an_invalid_parameter_is_400(self, client: httpx.Client, query: str) -> None:
        problem_of(client.get(f"/blocklist?{query}"), 400)


class TestListAt:
    def test_the_list_at_each_past_time(self, past: TestClient, clock: ManualClock) -> None:
        then: list[tuple[int, bytes, str]] = []

        def remember() -> None:
            answer = past.get("/blocklist")
            then.append((clock.now, answer.content, answer.headers["blocklist-revision"]))
            clock.now += 1000

        remember()
        past.put("/blocklist/nodes/a", json=block(cause="disk"))
        remember()
        past.put("/blocklist/nodes/b", json=block(cause="fan", endTimestamp=clock.now + 5000))
        remember()
        past.put("/blocklist/nodes/a", json=block(cause="fan", action=EVACUATE, allowMerge=True))
        remember()
        past.delete("/blocklist/nodes/a")
        remember()
        clock.now += 1999
        remember()
        # The end of b's block is a change, too, and might be committed after the next one, at the same moment.
        wait_until(lambda: past.get("/blocklist").headers["blocklist-revision"] == "5")
        past.put("/blocklist/nodes/a", json=block(cause="again"))
        remember()
        for moment, body, revision in then:
            answer = past.get("/blocklist", params={"at": moment})
            assert (answer.content, answer.headers["blocklist-revision"]) == (body, revision), moment
        assert listed(past, at=MONDAY - 1) == {}

    def test_a_block_is_absent_from_its_end_on(self, past: TestClient, clock: ManualClock) -> None:
        past.put("/blocklist/nodes/a", json=block(endTimestamp=clock.now + 100))
        clock.now += 10_000
        assert list(listed(past, at=MONDAY + 99)) == ["a"]
        assert listed(past, at=MONDAY + 100) == {}

    def test_with_details_it_has_author_and_revision(self, past: TestClient, clock: ManualClock) -> None:
        past.put("/blocklist/nodes/a", json=block())
        clock.now += 1
        past.put("/blocklist/nodes/a", json=block(cause="more", allowMerge=True))
        assert listed(past, at=MONDAY, details=True)["a"] | {"cause": ""} == {
            "action": "MARK_BLOCKED",
            "startTimestamp": str(MONDAY),
            "endTimestamp": "9223372036854775807",
            "cause": "",
            "taskManagers": [],
            "createdBy": None,
            "revision": 1,
            "owners": ["anonymous"],
        }

    def test_the_claims_at_each_past_time(self, past: TestClient, clock: ManualClock) -> None:
        then: list[tuple[int, list[Any], dict[str, Any]]] = []
        steps: list[Callable[[], Any]] = [
            lambda: past.put("/blocklist/nodes/a", json=block()),
            lambda: past.put("/blocklist/nodes/a/claims/kernel", json=block(endTimestamp=clock.now + 1500)),
            lambda: past.put("/claims/alertmanager/1", json={"a": block(cause="hot"), "b": block()}),
            lambda: past.delete("/blocklist/nodes/a/claims/anonymous"),
            lambda: past.delete("/blocklist/nodes/b"),
            lambda: past.put("/blocklist/nodes/b", json=block()),
        ]
        for step in steps:
            step().raise_for_status()
            owners = {name: node["owners"] for name, node in listed(past, details=True).items()}
            then.append((clock.now, past.get("/claims").json()["claims"], owners))
            clock.now += 1000
        for moment, claims, owners in then:
            assert past.get("/claims", params={"at": moment}).json() == {"claims": claims, "next": None}
            found = listed(past, at=moment, details=True)
            assert {name: node["owners"] for name, node in found.items()} == owners
        assert past.get("/claims", params={"at": MONDAY + 2000, "owner": "alert*", "limit": 1}).json()["next"] == "a"
        assert past.get("/claims", params={"at": clock.now + 1}).status_code == 400

    @ON_SQLITE
    def test_the_future_is_400(self, past: TestClient, clock: ManualClock) -> None:
        assert listed(past, at=clock.now) == {}
        answer = past.get("/blocklist", params={"at": clock.now + 1})
        assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")

    def test_a_clock_set_back_hides_no_block(self, past: TestClient, clock: ManualClock) -> None:
        clock.now += 60_000
        past.put("/blocklist/nodes/a", json=block())
        clock.now -= 30_000
        past.put("/blocklist/nodes/b", json=block())
        assert sorted(listed(past, at=clock.now)) == ["a", "b"]


@pytest.fixture(scope="module")
def compacted(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("compacted")
    with in_process(**databases.settings(folder), log_max_changes="1000") as service, service.client() as client:
        client.put("/blocklist/nodes/old/claims/kernel", json=block(cause="long ago", canary=True))
        client.put("/blocklist/nodes/gone", json=block(cause="long ago"))
        client.delete("/blocklist/nodes/gone")
        for cause in "ab":
            body = {f"n{n}": block(cause=cause, allowMerge=True) for n in range(1000)}
            client.put("/blocklist/nodes", json=body).raise_for_status()
        service.until(lambda: client.get("/blocklist/changes").json().get("oldest") == 1004, step=1)
        yield client


def changes_after(client: httpx.Client, since: int) -> list[dict[str, Any]]:
    answer = client.get("/blocklist/changes", params={"since": since, "limit": 1000})
    found: list[dict[str, Any]] = answer.json()["changes"]
    return found


@pytest.mark.xdist_group("compacted")
class TestCompacted:
    """A log of a thousand changes, after a permanent block and two thousand changes of others."""

    def test_nodes_blocked_before_the_log_begins_are_on_the_list(self, compacted: httpx.Client) -> None:
        now = int(changes_after(compacted, 1003)[-1]["at"])
        assert compacted.get(f"/blocklist?at={now}").content == compacted.get("/blocklist").content
        detailed = compacted.get(f"/blocklist?details=true&at={now}").json()
        present = compacted.get("/blocklist?details=true").json()
        assert detailed == present
        assert (detailed["old"]["owners"], detailed["old"]["canary"]) == (["kernel"], True)
        claims = compacted.get(f"/claims?at={now}&limit=1000").json()["claims"]
        assert claims == compacted.get("/claims?limit=1000").json()["claims"]
        assert (detailed["old"]["revision"], detailed["n7"]["revision"]) == (1, 1011)

    def test_a_time_before_it_is_410(self, compacted: httpx.Client) -> None:
        first = changes_after(compacted, 1003)[0]
        problem = problem_of(compacted.get(f"/blocklist?at={int(first['at']) - 1}"), 410)
        assert problem["oldest"] == first["revision"] == 1004
        assert first["at"] in problem["detail"]

    def test_an_export_from_before_it_is_410(self, compacted: httpx.Client) -> None:
        problem_of(compacted.get("/blocklist/changes", headers=LINES), 410)
        lines = compacted.get("/blocklist/changes?since=1003", headers=LINES).text.splitlines()
        assert len(lines) == 1000


class TestFilters:
    def test_each_filter(self, past: TestClient, clock: ManualClock) -> None:
        """Blocked at 0, 1 and 2 s, merged at 3 s, freed at 4 s."""
        for node_id in "abc":
            past.put(f"/blocklist/nodes/{node_id}", json=block())
            clock.now += 1000
        past.put("/blocklist/nodes/a", json=block(cause="more", allowMerge=True))
        clock.now += 1000
        past.delete("/blocklist/nodes/a")
        filters: list[tuple[dict[str, Any], list[int]]] = [
            ({"type": "blocked"}, [1, 2, 3]),
            ({"type": ["merged", "unblocked"]}, [4, 5]),
            ({"type": "expired"}, []),
            ({"type": "blocked", "since": 1}, [2, 3]),
            ({"from": MONDAY + 1000}, [2, 3, 4, 5]),
            ({"until": MONDAY + 1000}, [1]),
            ({"from": MONDAY + 1000, "until": MONDAY + 3000}, [2, 3]),
            ({"from": MONDAY + 1000, "until": MONDAY + 1000}, []),
            ({"from": MONDAY + 1, "node": "a"}, [4, 5]),
            ({"createdBy": "nobody"}, []),
        ]
        for params, revisions in filters:
            found = past.get("/blocklist/changes", params=params).json()
            assert ([change["revision"] for change in found["changes"]], found["next"]) == (revisions, None), params
        assert [change["revision"] for change in all_changes(past, type="blocked", limit=1)] == [1, 2, 3]

    def test_by_author(self, tmp_path: Path, migrated: Path, clock: ManualClock) -> None:
        database = tmp_path / "authors.db"
        shutil.copy(migrated, database)
        with running_service(url_of(database), clock) as client:
            client.put("/blocklist/nodes", json={f"n{n}": block() for n in range(10)})
        _write(database, "UPDATE changes SET created_by = CASE revision % 3 WHEN 0 THEN 'ann' ELSE NULL END")
        with running_service(url_of(database), clock) as client:
            first = client.get("/blocklist/changes", params={"createdBy": "ann", "limit": 2}).json()
            assert ([change["revision"] for change in first["changes"]], first["next"]) == ([3, 6], "6")
            rest = client.get("/blocklist/changes", params={"createdBy": "ann", "limit": 2, "after": "6"}).json()
            assert ([change["revision"] for change in rest["changes"]], rest["next"]) == ([9], None)

    @ON_SQLITE
    @pytest.mark.parametrize(
        "query",
        [
            *("type=x", "type=", "type=Blocked", "from=x", "until=-1"),
            *("createdBy=", f"createdBy={'x' * 254}", "createdBy=a%00b", "createdBy=a%0Ab"),
        ],
    )
    def test_an_invalid_filter_is_400(self, client: httpx.Client, query: str) -> None:
        problem_of(client.get(f"/blocklist/changes?{query}"), 400)

    @pytest.mark.parametrize(
        ("wanted", "index"),
        [
            (ChangeFilter(created_by="ann"), "ix_changes_created_by_revision (created_by=? AND revision>?)"),
            (ChangeFilter(node_id="a"), "ix_changes_node_id_revision (node_id=? AND revision>?)"),
            (ChangeFilter(begin=0, end=1), "INTEGER PRIMARY KEY (rowid>?)"),
        ],
    )
    def test_an_index_serves_each(self, migrated: Path, wanted: ChangeFilter, index: str) -> None:
        """Nothing is sorted, so a page bounds the rows read, except with times long after `since`."""
        plans: list[str] = []
        engine = make_engine(url_of(migrated), readers=1)
        with engine.connect() as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            statements: list[str] = []
            driver.set_trace_callback(statements.append)
            changes_matching(connection, wanted, 0, 100)
            driver.set_trace_callback(None)
            query = next(statement for statement in statements if "ORDER BY" in statement)
            plans = [str(row[3]) for row in driver.execute(f"EXPLAIN QUERY PLAN {query}")]
        engine.dispose()
        assert len(plans) == 1
        assert plans[0].endswith(index)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[httpx.Client]:
    """A log of more than three pages, on a port."""
    folder = tmp_path_factory.mktemp("long")
    with in_process(**databases.settings(folder)) as service, http_client(service.url) as client:
        for cause in "ab":
            body = {f"n{n}": block(cause=cause, allowMerge=True) for n in range(800)}
            client.put("/blocklist/nodes", json=body).raise_for_status()
        yield client


@pytest.mark.xdist_group("compacted")
class TestExport:
    def test_it_is_the_whole_log_line_by_line(self, long: httpx.Client) -> None:
        answer = long.get("/blocklist/changes?limit=1", headers=LINES)
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert revision_of(answer) == 1600
        assert answer.headers["vary"] == "Accept"
        assert [json.loads(line) for line in answer.text.splitlines()] == all_changes(long, limit=1000)
        assert answer.text.endswith("\n")

    def test_it_follows_filters(self, long: httpx.Client) -> None:
        answer = long.get("/blocklist/changes?type=merged&since=900&node=n100", headers=LINES)
        assert [json.loads(line)["revision"] for line in answer.text.splitlines()] == [901]
        assert long.get("/blocklist/changes?node=never-seen", headers=LINES).content == b""
        assert len(long.get("/blocklist/changes?type=merged", headers=LINES).text.splitlines()) == 800

    @ON_SQLITE
    @pytest.mark.parametrize(
        ("accept", "lines"),
        [
            ("application/x-ndjson", True),
            ("application/json;q=0.5, Application/X-NDJSON;q=0.9", True),
            ("application/x-ndjson;q=0", False),
            ("*/*", False),
            ("application/json", False),
        ],
    )
    def test_it_is_chosen_by_the_accept_header(self, client: httpx.Client, node: str, accept: str, lines: bool) -> None:
        client.put(node, json=block())
        answer = client.get("/blocklist/changes", headers={"accept": accept})
        expected = "application/x-ndjson" if lines else "application/json"
        assert answer.headers["content-type"] == expected

    def test_a_disconnecting_client_ends_it(self, long: httpx.Client) -> None:
        with long.stream("GET", "/blocklist/changes", headers=LINES) as answer:
            next(answer.iter_lines())
        assert long.get("/healthz").status_code == 200


def test_the_list_at_the_current_time_is_the_current_list(client: httpx.Client, node: str) -> None:
    client.put(node, json=block(endTimestamp=later(3600)))
    assert node.rpartition("/")[2] in client.get(f"/blocklist?at={now_ms() - 1 + 1}").json()


def _write(database: Path, *statements: str) -> None:
    with sqlite3.connect(database) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
