"""From `now >= endTimestamp` on a node is free at every endpoint, even before its `expired` change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.bodies import EVACUATE, all_changes, block, current_list, revision_of
from tests.integration.in_process import ManualClock, running_service
from tests.integration.problems import problem_of
from tests.integration.process import wait_until

START = 1_000_000
END = 1_060_000
NODE = "/blocklist/nodes/a"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def client(database_url: str, clock: ManualClock) -> Iterator[TestClient]:
    with running_service(database_url, clock) as client:
        yield client


def log(client: TestClient) -> list[tuple[int, str, str]]:
    return [(change["revision"], change["type"], change["node"]["id"]) for change in all_changes(client)]


def blocked_nodes(client: TestClient) -> float:
    families = text_string_to_metric_families(client.get("/metrics").text)
    return next(sample.value for family in families for sample in family.samples if sample.name == "numBlockedNodes")


def test_a_node_is_blocked_until_the_millisecond_before_its_end(client: TestClient, clock: ManualClock) -> None:
    made = client.put(NODE, json=block(endTimestamp=END)).json()
    assert made["startTimestamp"] == str(START)
    clock.now = END - 1
    assert client.get(NODE).json() == made
    assert list(current_list(client)[1]) == ["a"]
    problem_of(client.put(NODE, json=block()), 409)
    assert blocked_nodes(client) == 1


ABSENT: dict[str, Callable[[TestClient], object]] = {
    "the list": lambda client: "a" not in client.get("/blocklist").json(),
    "the node": lambda client: client.get(NODE).status_code == 404,
    "the node's alias": lambda client: client.get("/blocklist/node/a").status_code == 404,
    "HEAD": lambda client: client.head(NODE).status_code == 404,
    "DELETE": lambda client: client.delete(NODE).status_code == 404,
    "PUT": lambda client: client.put(NODE, json=block()).status_code == 201,
    "PUT that may merge": lambda client: client.put(NODE, json=block(allowMerge=True)).status_code == 201,
    "PUT of several": lambda client: client.put("/blocklist/nodes", json={"a": block()}).json()["a"]["status"] == 201,
    "the metric": lambda client: blocked_nodes(client) == 0,
}


@pytest.mark.parametrize("is_absent", [pytest.param(is_absent, id=name) for name, is_absent in ABSENT.items()])
def test_at_its_end_a_node_is_absent_from_every_endpoint(
    client: TestClient, clock: ManualClock, is_absent: Callable[[TestClient], object]
) -> None:
    client.put(NODE, json=block(endTimestamp=END))
    clock.now = END
    assert is_absent(client)


def test_the_list_has_a_new_etag_from_the_end_on(client: TestClient, clock: ManualClock) -> None:
    client.put(NODE, json=block(endTimestamp=END))
    before = client.get("/blocklist")
    same = {"if-none-match": before.headers["etag"]}
    clock.now = END - 1
    assert client.get("/blocklist", headers=same).status_code == 304
    clock.now = END
    after = client.get("/blocklist", headers=same)
    assert (after.status_code, after.json()) == (200, {})


def test_the_revision_may_lag_behind_the_body_but_never_runs_ahead(client: TestClient, clock: ManualClock) -> None:
    client.put("/blocklist/nodes", json={f"n{n}": block(endTimestamp=END + n) for n in range(20)})
    for now in range(END - 1, END + 21):
        clock.now = now
        revision, listed = current_list(client)
        assert set(listed) == {f"n{n}" for n in range(20) if END + n > now}
        assert revision <= 20 + 20 - len(listed)


def test_the_expired_change_is_committed_without_a_request(client: TestClient, clock: ManualClock) -> None:
    made = client.put(NODE, json=block(endTimestamp=END, action=EVACUATE)).json()
    del made["taskManagers"]
    clock.now = END
    wait_until(lambda: len(all_changes(client)) == 2)
    change: dict[str, Any] = all_changes(client)[1]
    assert change == {"revision": 2, "type": "expired", "at": str(END), "createdBy": None, "node": made}
    assert current_list(client) == (2, {})


def test_a_block_expires_once(client: TestClient, clock: ManualClock) -> None:
    client.put(NODE, json=block(endTimestamp=END))
    clock.now = END
    wait_until(lambda: len(all_changes(client)) == 2)
    clock.now = END + 1_000_000
    client.put("/blocklist/nodes/b", json=block(endTimestamp=END + 1_000_001))
    clock.now = END + 1_000_001
    wait_until(lambda: len(all_changes(client)) == 4)
    assert log(client) == [(1, "blocked", "a"), (2, "expired", "a"), (3, "blocked", "b"), (4, "expired", "b")]


def test_an_ended_node_among_several_expires_before_it_is_blocked_again(client: TestClient, clock: ManualClock) -> None:
    client.put(NODE, json=block(endTimestamp=END))
    clock.now = END
    answer = client.put("/blocklist/nodes", json={"b": block(), "a": block(), "c": block()})
    assert [entry["status"] for entry in answer.json().values()] == [201, 201, 201]
    changes = log(client)
    assert revision_of(answer) == len(changes) == 5
    assert [node_id for _, kind, node_id in changes if kind == "blocked"] == ["a", "b", "a", "c"]
    assert [kind for _, kind, node_id in changes if node_id == "a"] == ["blocked", "expired", "blocked"]


def test_a_permanent_block_never_ends(client: TestClient, clock: ManualClock) -> None:
    client.put(NODE, json=block())
    client.put("/blocklist/nodes/b", json=block(endTimestamp=END))
    clock.now = 2**62
    wait_until(lambda: len(all_changes(client)) == 3)
    assert client.get(NODE).status_code == 200


def test_expired_changes_are_in_the_order_of_the_ends(client: TestClient, clock: ManualClock) -> None:
    client.put("/blocklist/nodes", json={f"n{n}": block(endTimestamp=END - n) for n in range(50)})
    clock.now = END
    wait_until(lambda: len(all_changes(client)) == 100)
    assert log(client)[50:] == [(51 + n, "expired", f"n{49 - n}") for n in range(50)]


def test_a_node_that_ended_while_the_service_was_down_is_absent_from_the_start(
    database_url: str, clock: ManualClock
) -> None:
    with running_service(database_url, clock) as client:
        client.put("/blocklist/nodes", json={"a": block(endTimestamp=END), "b": block()})
    clock.now = END
    with running_service(database_url, clock) as client:
        assert list(current_list(client)[1]) == ["b"]
        assert client.delete(NODE).status_code == 404
        wait_until(lambda: len(all_changes(client)) == 3)
        assert log(client)[2] == (3, "expired", "a")
