"""A dry run returns what the change would do, and changes nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.integration.bodies import EVACUATE, all_changes, block, current_list, later, revision_of
from tests.integration.conftest import StartInProcess
from tests.integration.event_stream import next_events, watching
from tests.integration.listeners import get_listener, heartbeat, put, register
from tests.integration.problems import problem_of
from tests.integration.process import ServiceProcess

Body = dict[str, Any]
DRY: Final = {"dryRun": "true"}
FIELDS: Final = {"dryRun", "nodes", "belowMinimum", "refused"}


def dry_run_body(answer: httpx.Response) -> Body:
    """The body of the response to a dry run."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    body: Body = answer.json()
    assert (set(body), body["dryRun"]) == (FIELDS, True)
    return body


def single_node(answer: httpx.Response) -> Body:
    """Its only node."""
    (node,) = dry_run_body(answer)["nodes"]
    assert set(node) == {"status", "node", "taskManagers", "known", "didYouMean", "ambiguous"}
    found: Body = node
    return found


def dry_put(client: httpx.Client, node_id: str, **fields: object) -> httpx.Response:
    return client.put(f"/blocklist/nodes/{node_id}", json=block(**fields), params=DRY)


def send(client: httpx.Client, method: str, path: str, body: Body | None = None) -> httpx.Response:
    return client.request(method, path, json=body)


def without_times(node: Body) -> Body:
    return {name: value for name, value in node.items() if name not in {"startTimestamp", "status"}}


class TestResult:
    """It equals the response to the real request."""

    CASES: Final[dict[str, Body]] = {
        "free": block(),
        "free, evacuated until then": block(action=EVACUATE, endTimestamp="4102444800000", cause="hot,disk"),
        "blocked, merged": block(action=EVACUATE, cause="hot", allowMerge=True),
        "blocked, nothing new": block(cause="there", endTimestamp="4000000000000", allowMerge=True),
    }

    @pytest.mark.parametrize("name", CASES)
    def test_of_one_node(self, client: httpx.Client, node_id: str, name: str) -> None:
        path = f"/blocklist/nodes/{node_id}"
        if name.startswith("blocked"):
            put(client, node_id, cause="there", endTimestamp="4000000000000")
        would = single_node(client.put(path, json=self.CASES[name], params=DRY))
        answer = send(client, "PUT", path, self.CASES[name])
        assert (would["status"], without_times(would["node"])) == (answer.status_code, without_times(answer.json()))
        assert would["taskManagers"] == []

    def test_of_several(self, client: httpx.Client, node_id: str) -> None:
        put(client, f"{node_id}-a", cause="there")
        nodes = {f"{node_id}-{suffix}": block(allowMerge=True, cause=suffix) for suffix in "cab"}
        would = dry_run_body(client.put("/blocklist/nodes", json=nodes, params=DRY))
        answer = send(client, "PUT", "/blocklist/nodes", nodes).json()
        assert [entry["node"]["id"] for entry in would["nodes"]] == list(nodes)
        assert {entry["node"]["id"]: entry["status"] for entry in would["nodes"]} == {
            node_id: node["status"] for node_id, node in answer.items()
        }
        assert [without_times(entry["node"]) for entry in would["nodes"]] == [
            without_times(node) for node in answer.values()
        ]

    def test_of_unblocking(self, client: httpx.Client, node_id: str) -> None:
        path = f"/blocklist/nodes/{node_id}"
        put(client, node_id)
        before = client.get(path).json()
        would = single_node(client.delete(path, params=DRY))
        assert (would["status"], would["node"]) == (200, before)
        assert client.get(path).json() == before
        assert client.delete(path).status_code == 200

    def test_of_the_alias(self, client: httpx.Client, node_id: str) -> None:
        assert single_node(client.put(f"/blocklist/node/{node_id}", json=block(), params=DRY))["status"] == 201
        problem_of(client.delete(f"/blocklist/node/{node_id}", params=DRY), 404)


class TestErrors:
    """The same as without dryRun."""

    def test_a_conflict(self, client: httpx.Client, node_id: str) -> None:
        put(client, node_id)
        without = problem_of(client.put(f"/blocklist/nodes/{node_id}", json=block()), 409)
        assert problem_of(dry_put(client, node_id), 409) == without
        nodes = {node_id: block(), f"{node_id}-b": block()}
        without = problem_of(client.put("/blocklist/nodes", json=nodes), 409)
        assert problem_of(client.put("/blocklist/nodes", json=nodes, params=DRY), 409) == without

    def test_invalid_requests_and_missing_nodes(self, client: httpx.Client, node: str) -> None:
        problem_of(client.put(node, json={}, params=DRY), 400)
        problem_of(client.put(node, json=block(endTimestamp="5"), params=DRY), 400)
        problem_of(client.put("/blocklist/nodes", json={}, params=DRY), 400)
        problem_of(client.delete(node, params=DRY), 404)

    @pytest.mark.parametrize("value", ["", "1", "0", "yes", "True", "TRUE", "true ", "tru", "null"])
    def test_any_value_but_true_and_false(self, client: httpx.Client, node: str, value: str) -> None:
        problem_of(client.put(node, json=block(), params={"dryRun": value}), 400)
        problem_of(client.put("/blocklist/nodes", json={"a": block()}, params={"dryRun": value}), 400)
        problem_of(client.delete(node, params={"dryRun": value}), 400)
        assert client.get(node).status_code == 404

    def test_false_is_no_dry_run(self, client: httpx.Client, node: str) -> None:
        assert client.put(node, json=block(), params={"dryRun": "false"}).status_code == 201
        assert client.delete(node, params={"dryRun": "false"}).status_code == 200


@pytest.mark.parametrize("query", ["dryrun=true", "dryRun=true&dryRun=false", "dry_run=true&force=fire"])
@pytest.mark.parametrize(
    ("method", "path"), [("PUT", "nodes/a"), ("PUT", "nodes"), ("DELETE", "nodes/there"), ("DELETE", "node/there")]
)
def test_a_misspelt_parameter_makes_no_real_change(client: httpx.Client, method: str, path: str, query: str) -> None:
    send(client, "PUT", "/blocklist/nodes/there", block())
    send(client, "DELETE", "/blocklist/nodes/a")
    body = {"PUT nodes/a": block(), "PUT nodes": {"a": block()}}.get(f"{method} {path}")
    answer = send(client, method, f"/blocklist/{path}?{query}", body)
    detail = problem_of(answer, 400)["detail"]
    assert detail.startswith(("Unknown query parameter ", "Repeated query parameter "))
    assert detail.endswith(" Nothing was changed.")
    assert "dryRun" in detail
    assert [client.get(f"/blocklist/nodes/{node_id}").status_code for node_id in ("a", "there")] == [404, 200]


class TestNoEffect:
    """No revision, no other ETag, nothing on the watch, nothing in the database."""

    def try_all(self, client: httpx.Client) -> None:
        dry_run_body(dry_put(client, "new"))
        dry_run_body(dry_put(client, "there", allowMerge=True, cause="more"))
        dry_run_body(
            client.put(
                "/blocklist/nodes", json={node_id: block(allowMerge=True) for node_id in ("x", "there")}, params=DRY
            )
        )
        dry_run_body(client.delete("/blocklist/nodes/there", params=DRY))

    def test_readers_and_watchers_see_no_change(self, fresh: ServiceProcess, fresh_client: httpx.Client) -> None:
        client = fresh_client
        put(client, "there")
        before, tag = current_list(client), client.get("/blocklist").headers["etag"]
        files = self.files(fresh.database)
        with fresh.client() as other, watching(other, since=1) as events:
            self.try_all(client)
            assert (current_list(client), client.get("/blocklist").headers["etag"]) == (before, tag)
            assert len(all_changes(client)) == 1
            assert self.files(fresh.database) == files
            put(client, "next")
            (event,) = next_events(events, 1)
            assert (event.event, event.id.partition("-")[0]) == ("blocked", "2")

    def files(self, database: Path) -> dict[str, int]:
        """Modification times of the database and its log."""
        return {path.name: path.stat().st_mtime_ns for path in database.parent.glob(f"{database.name}*")}

    def test_the_response_has_the_current_revision(self, fresh_client: httpx.Client) -> None:
        put(fresh_client, "there")
        for _ in range(3):
            assert revision_of(dry_put(fresh_client, "new")) == 1

    def test_prefer_is_ignored(self, listener_client: httpx.Client) -> None:
        register(listener_client, "jm")
        answer = listener_client.put("/blocklist/nodes/a", json=block(), params=DRY, headers={"Prefer": "wait=60"})
        assert single_node(answer)["status"] == 201
        assert "preference-applied" not in answer.headers

    def test_concurrent_dry_runs_see_consistent_lists(self, fresh_client: httpx.Client) -> None:
        """Each dry run is evaluated in its turn and changes nothing."""

        def turn(number: int) -> None:
            if number % 2:
                assert put(fresh_client, f"n-{number}") > 0
            else:
                answer = dry_put(fresh_client, f"n-{number + 1}")
                assert (answer.status_code == 409) or single_node(answer)["status"] == 201

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(turn, range(200)))
        assert sorted(current_list(fresh_client)[1]) == sorted(f"n-{number}" for number in range(1, 200, 2))
        assert [change["revision"] for change in all_changes(fresh_client)] == list(range(1, 101))


class TestAffectedListeners:
    """TaskManagers and their tasks, and listeners below their minimum."""

    @pytest.fixture
    def listener_client(self, listener_client: httpx.Client) -> httpx.Client:
        register(listener_client, "jm", minNodes=2)
        there = {"t-1": "a", "t-2": "a", "t-3": "b", "t-4": "c"}
        heartbeat(listener_client, "jm", taskManagers=there, runningTasks={"t-1": 3, "t-3": 0})
        register(listener_client, "other")
        heartbeat(listener_client, "other", taskManagers={"o-1": "a"})
        return listener_client

    def test_task_managers_on_the_node(self, listener_client: httpx.Client) -> None:
        would = single_node(dry_put(listener_client, "a"))
        assert would["taskManagers"] == [
            {"id": "o-1", "listener": "other", "runningTasks": None},
            {"id": "t-1", "listener": "jm", "runningTasks": 3},
            {"id": "t-2", "listener": "jm", "runningTasks": None},
        ]
        assert would["node"]["taskManagers"] == ["o-1", "t-1", "t-2"]
        assert single_node(dry_put(listener_client, "b"))["taskManagers"] == [
            {"id": "t-3", "listener": "jm", "runningTasks": 0}
        ]

    def test_listeners_below_their_minimum_and_the_error_of_the_real_request(
        self, listener_client: httpx.Client
    ) -> None:
        assert (
            dry_run_body(dry_put(listener_client, "a"))["belowMinimum"],
            dry_run_body(dry_put(listener_client, "a"))["refused"],
        ) == ([], None)
        nodes = {node_id: block() for node_id in ("a", "b", "x")}
        would = dry_run_body(listener_client.put("/blocklist/nodes", json=nodes, params=DRY))
        assert would["belowMinimum"] == [{"listener": "jm", "usable": 1, "minimum": 2}]
        problem = problem_of(listener_client.put("/blocklist/nodes", json=nodes), 409)
        assert problem["detail"] == would["refused"]
        assert get_listener(listener_client, "jm")["usableNodes"] == 3

    def test_listeners_still_below_their_minimum_after_an_unblock(self, listener_client: httpx.Client) -> None:
        for node_id in "abc":
            answer = listener_client.put(f"/blocklist/nodes/{node_id}", json=block(), params={"force": "a fire"})
            assert answer.status_code == 201
        would = dry_run_body(listener_client.delete("/blocklist/nodes/a", params=DRY))
        assert (would["belowMinimum"], would["refused"]) == ([{"listener": "jm", "usable": 1, "minimum": 2}], None)
        assert listener_client.delete("/blocklist/nodes/a").status_code == 200
        assert dry_run_body(listener_client.delete("/blocklist/nodes/b", params=DRY))["belowMinimum"] == []


def test_a_limit_is_reported_in_the_same_words(start_in_process: StartInProcess) -> None:
    with start_in_process(max_blocked="1", longest_block_admin="1h").client() as client:
        put(client, "a", endTimestamp=later())
        would = dry_run_body(dry_put(client, "b"))
        assert [entry["status"] for entry in would["nodes"]] == [201]
        parts = problem_of(client.put("/blocklist/nodes/b", json=block()), 409)["errors"]
        assert len(parts) == 2
        assert all(part.partition(": end it by")[0] in would["refused"] for part in parts)
        metrics = client.get("/metrics").text
        assert 'blocklist_refused_by_limit_total{source="request"} 1.0' in metrics
