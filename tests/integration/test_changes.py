"""GET /blocklist/changes: the change log, page by page, until it is compacted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.integration.bodies import EVACUATE, all_changes, block, current_list, now_ms, revision_of
from tests.integration.databases import ON_BOTH, ON_SQLITE
from tests.integration.event_stream import next_events, revisions, watching
from tests.integration.in_process import in_process
from tests.integration.problems import problem_of

pytestmark = ON_BOTH


def page(client: httpx.Client, **params: str | int) -> dict[str, Any]:
    answer = client.get("/blocklist/changes", params=params)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert set(found) == {"changes", "revision", "next"}
    return found


def test_a_change_has_type_node_and_time(client: httpx.Client, node: str, node_id: str) -> None:
    before = now_ms()
    made = client.put(node, json=block())
    merged = client.put(node, json=block(action=EVACUATE, cause="fan", allowMerge=True))
    freed = client.delete(node)
    after = now_ms()
    found = page(client, node=node_id)["changes"]
    first, second = ({k: v for k, v in a.json().items() if k != "taskManagers"} for a in (made, merged))
    ats = [change.pop("at") for change in found]
    assert found == [
        {"revision": revision_of(made), "type": "blocked", "createdBy": None, "node": first},
        {"revision": revision_of(merged), "type": "merged", "createdBy": None, "node": second},
        {"revision": revision_of(freed), "type": "unblocked", "createdBy": None, "node": second},
    ]
    assert all(isinstance(at, str) for at in ats)
    timestamps = [before, *map(int, ats), after]
    assert timestamps == sorted(timestamps)


class TestPages:
    @pytest.fixture(autouse=True)
    def _log(self, client: httpx.Client) -> None:
        """At least 250 changes, the last 250 in one transaction."""
        body = {f"paged-{n}": block(cause=f"c{current_list(client)[0]}", allowMerge=True) for n in range(250)}
        client.put("/blocklist/nodes", json=body).raise_for_status()

    def test_a_page_has_a_hundred_changes_and_names_the_next(self, client: httpx.Client) -> None:
        start = current_list(client)[0] - 250
        first = page(client, since=start)
        assert [change["revision"] for change in first["changes"]] == list(range(start + 1, start + 101))
        assert (first["revision"], first["next"]) == (start + 250, str(start + 100))
        last = page(client, since=start + 200)
        assert (len(last["changes"]), last["next"]) == (50, None)

    def test_a_page_that_ends_with_the_last_change_is_the_last(self, client: httpx.Client) -> None:
        start = current_list(client)[0] - 100
        assert (len(page(client, since=start)["changes"]), page(client, since=start)["next"]) == (100, None)

    @pytest.mark.parametrize("limit", [1, 7, 1000])
    def test_the_newest_changes_come_first_in_pages_without_gaps(self, client: httpx.Client, limit: int) -> None:
        now = current_list(client)[0]
        found = all_changes(client, newest="true", since=now - 30, limit=limit)
        assert [change["revision"] for change in found] == list(range(now, now - 30, -1))

    def test_the_newest_changes_are_always_a_page_of_json(self, client: httpx.Client) -> None:
        newest = client.get("/blocklist/changes?newest=true&limit=3", headers={"Accept": "application/x-ndjson"}).json()
        assert (len(newest["changes"]), newest["next"]) == (3, str(newest["changes"][-1]["revision"]))
        assert page(client, newest="true", createdBy="nobody") | {"revision": 0} == {
            "changes": [],
            "revision": 0,
            "next": None,
        }

    def test_at_the_current_revision_the_page_is_empty(self, client: httpx.Client) -> None:
        revision = current_list(client)[0]
        assert page(client, since=revision) == {"changes": [], "revision": revision, "next": None}

    @pytest.mark.parametrize("limit", [1, 7, 1000])
    def test_pages_of_any_size_make_one_log_without_gaps(self, client: httpx.Client, limit: int) -> None:
        start = current_list(client)[0] - 30
        found = [change["revision"] for change in all_changes(client, since=start, limit=limit)]
        assert found == list(range(start + 1, start + 31))
        assert len(page(client, since=start, limit=limit)["changes"]) == min(limit, 30)

    def test_the_log_of_one_node_is_paged_too(self, client: httpx.Client, node: str, node_id: str) -> None:
        for n in range(5):
            client.put(node, json=block(cause=f"c{n}", allowMerge=True))
            client.put(f"{node}-other", json=block(cause=f"c{n}", allowMerge=True))
        whole = page(client, node=node_id)
        assert [change["node"]["id"] for change in whole["changes"]] == [node_id] * 5
        assert whole["next"] is None
        assert all_changes(client, node=node_id, limit=2) == whole["changes"]

    def test_the_log_of_an_unknown_node_is_empty(self, client: httpx.Client) -> None:
        empty = page(client, node="never-seen")
        assert (empty["changes"], empty["next"]) == ([], None)


@ON_SQLITE
@pytest.mark.parametrize(
    "query",
    [
        "since=x", "since=-1", "since=", "since=1.5", "since=%2B1", "since=1e3", "since=%D9%A3",
        "since=1_0", "since=true", "after=x", "after=-1", "after=", "after=1.5", f"after={2**53 + 1}", "last=true",
        f"since={'9' * 5_000}", "limit=x", "limit=0", "limit=-1", "limit=", "limit=1.5", "limit=1001",
        f"limit={'9' * 5_000}",
        "node=", "node=a%20b", "node=..", "node=a%2Fb", f"node={'x' * 254}", "node=%00",
    ],
)  # fmt: skip
def test_a_malformed_parameter_is_400(client: httpx.Client, query: str) -> None:
    problem_of(client.get(f"/blocklist/changes?{query}"), 400)


class TestCompaction:
    """A log limited to a thousand changes, after three thousand."""

    @pytest.fixture
    def client(self, database_url: str) -> Iterator[httpx.Client]:
        """After a restart: until then, compacted changes may be in memory."""
        settings = {"database_url": database_url, "log_max_changes": "1000"}
        with in_process(**settings) as service, service.client() as client:
            for cause in "abc":
                body = {f"n{n}": block(cause=cause, allowMerge=True) for n in range(1000)}
                client.put("/blocklist/nodes", json=body).raise_for_status()
            service.until(lambda: client.get("/blocklist/changes").json().get("oldest", 0) > 2000, step=1)
        with (
            in_process(**settings) as service,
            httpx.Client(base_url=service.url, trust_env=False, timeout=30) as client,
        ):
            yield client

    def test_a_compacted_since_is_410_and_a_watch_starts_from_a_snapshot(self, client: httpx.Client) -> None:
        problem = problem_of(client.get("/blocklist/changes"), 410)
        oldest = problem["oldest"]
        assert oldest == 2001, "the last thousand are always kept"
        found = page(client, since=oldest - 1, limit=1000)
        assert found["changes"][0]["revision"] == oldest
        assert problem_of(client.get("/blocklist/changes", params={"since": oldest - 2}), 410)["oldest"] == oldest
        assert client.get("/blocklist/changes", params={"since": 0, "node": "n1"}).status_code == 410

        for since in (0, oldest - 2, f"{oldest - 2}-{self._history(client)}"):
            with watching(client, since=since) as events:
                (snapshot,) = next_events(events, 1)
            assert (snapshot.event, snapshot.json()["revision"]) == ("snapshot", 3000)
        with watching(client, since=oldest - 1) as events:
            assert revisions(next_events(events, 3001 - oldest)) == list(range(oldest, 3001))
        assert current_list(client)[0] == 3000
        assert {node["cause"] for node in current_list(client)[1].values()} == {"a,b,c"}

    @staticmethod
    def _history(client: httpx.Client) -> str:
        return str(client.get("/blocklist").headers["blocklist-history"])
