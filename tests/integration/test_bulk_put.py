"""PUT /blocklist/nodes: several nodes at once, all or none."""

from __future__ import annotations

import httpx
import pytest

from tests.integration.bodies import EVACUATE, all_changes, block, current_list, later, revision_of
from tests.integration.problems import problem_of


def test_each_node_has_its_own_status_and_one_revision_in_the_order_of_the_body(
    client: httpx.Client, node_id: str
) -> None:
    z, m, same, a = (f"{node_id}-{name}" for name in ("z", "m", "same", "a"))
    for known in (m, same):
        client.put(f"/blocklist/nodes/{known}", json=block())
    start = current_list(client)[0]
    response = client.put(
        "/blocklist/nodes",
        json={
            z: block(endTimestamp=later()),
            m: block(cause="more", allowMerge=True),
            same: block(allowMerge="true"),
            a: block(action=EVACUATE, allowMerge=True),
        },
    )
    assert response.status_code == 200
    body = response.json()
    assert {name: entry["status"] for name, entry in body.items()} == {z: 201, m: 202, same: 202, a: 201}
    for name, entry in body.items():
        now = client.get(f"/blocklist/nodes/{name}").json()
        assert {**now, **entry, "status": 0} == {**now, "status": 0}, "the node as it is now, beside the status"
    made = [(change["revision"], change["type"], change["node"]["id"]) for change in all_changes(client)]
    assert made[-3:] == [(start + 1, "blocked", z), (start + 2, "merged", m), (start + 3, "blocked", a)]
    assert revision_of(response) == current_list(client)[0] == start + 3


def test_a_request_that_changes_nothing_returns_the_current_revision(client: httpx.Client, node_id: str) -> None:
    body = {f"{node_id}-{n}": block(allowMerge=True) for n in range(3)}
    first = client.put("/blocklist/nodes", json=body)
    again = client.put("/blocklist/nodes", json=body)
    assert {entry["status"] for entry in again.json().values()} == {202}
    assert revision_of(again) == revision_of(first) == current_list(client)[0]


def test_one_conflict_refuses_all_and_the_problem_names_every_conflict(client: httpx.Client, node_id: str) -> None:
    blocked = [f"{node_id}-{name}" for name in ("b", "a")]
    present = {name: client.put(f"/blocklist/nodes/{name}", json=block(cause="old")).json() for name in blocked}
    client.put(f"/blocklist/nodes/{node_id}-m", json=block())
    before = current_list(client)
    response = client.put(
        "/blocklist/nodes",
        json={
            f"{node_id}-new": block(),
            **{name: block() for name in blocked},
            f"{node_id}-m": block(cause="more", allowMerge=True),
        },
    )
    problem = problem_of(response, 409)
    assert problem["blockedNodes"] == present
    assert len(problem["errors"]) == 2
    assert all(any(name in line for line in problem["errors"]) for name in blocked)
    assert current_list(client) == before


def test_a_thousand_nodes_are_accepted_and_1001_get_400(
    fresh_client: httpx.Client,
) -> None:
    many = {f"n{n}": block() for n in range(1001)}
    problem_of(fresh_client.put("/blocklist/nodes", json=many), 400)
    assert current_list(fresh_client) == (0, {})
    del many["n1000"]
    response = fresh_client.put("/blocklist/nodes", json=many)
    assert (response.status_code, len(response.json()), revision_of(response)) == (200, 1000, 1000)
    revisions = [(change["revision"], change["node"]["id"]) for change in all_changes(fresh_client)]
    assert revisions == [(n + 1, f"n{n}") for n in range(1000)]
    conflicts = fresh_client.put("/blocklist/nodes", json=many).json()
    assert (len(conflicts["blockedNodes"]), len(conflicts["errors"])) == (1000, 1000)


def test_an_empty_object_gets_400(client: httpx.Client) -> None:
    problem_of(client.put("/blocklist/nodes", json={}), 400)


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", None])
def test_the_body_is_json_whatever_its_content_type(client: httpx.Client, node_id: str, kind: str | None) -> None:
    body = b'{"%b": {"action": "MARK_BLOCKED", "cause": "disk"}}' % node_id.encode()
    response = client.put("/blocklist/nodes", content=body, headers={"content-type": kind} if kind else {})
    assert (response.status_code, response.json()[node_id]["status"]) == (200, 201)
