"""PUT, GET and DELETE of one node."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.integration.bodies import (
    EVACUATE,
    MARK,
    PERMANENT,
    all_changes,
    block,
    current_list,
    later,
    now_ms,
    revision_of,
)
from tests.integration.databases import ON_BOTH
from tests.integration.problems import problem_of

FIELDS = {"id", "action", "startTimestamp", "endTimestamp", "cause", "taskManagers"}


def test_blocking_a_free_node_is_201_with_the_node(client: httpx.Client, node: str, node_id: str) -> None:
    before = now_ms()
    answer = client.put(node, json=block(cause="disk broken"))
    after = now_ms()
    assert answer.status_code == 201
    body = answer.json()
    start = body.pop("startTimestamp")
    assert body == {
        "id": node_id,
        "action": MARK,
        "endTimestamp": PERMANENT,
        "cause": "disk broken",
        "taskManagers": [],
    }
    assert isinstance(start, str)
    assert before <= int(start) <= after


def test_get_returns_the_object_that_put_returned(client: httpx.Client, node: str) -> None:
    made = client.put(node, json=block(action=EVACUATE, endTimestamp=later()))
    read = client.get(node)
    assert (read.status_code, read.json()) == (200, made.json())
    assert set(read.json()) == FIELDS


def test_the_list_contains_the_same_object_without_its_id(client: httpx.Client, node: str, node_id: str) -> None:
    made = client.put(node, json=block()).json()
    del made["id"]
    assert current_list(client)[1][node_id] == made


def test_a_merge_is_202_and_joins_each_field(client: httpx.Client, node: str) -> None:
    made = client.put(node, json=block(cause="a,b", action=EVACUATE, endTimestamp=4102444800000))
    merged = client.put(node, json=block(cause="b,c", endTimestamp="4102444800001", allowMerge=True))
    assert merged.status_code == 202
    joined = {"cause": "a,b,c", "endTimestamp": "4102444800001"}
    assert merged.json() == {**made.json(), **joined}, "the start stays the earlier one"
    assert client.get(node).json() == merged.json()
    assert revision_of(merged) == revision_of(made) + 1


@ON_BOTH
def test_a_merged_cause_may_be_longer_than_one_request_may_send(client: httpx.Client, node: str) -> None:
    client.put(node, json=block(cause="a" * 1024))
    merged = client.put(node, json=block(cause="b" * 1024, allowMerge=True))
    assert merged.json()["cause"] == "a" * 1024 + "," + "b" * 1024


@ON_BOTH
@pytest.mark.parametrize("end", [9223372036854775807, PERMANENT])
def test_the_last_millisecond_is_permanent(client: httpx.Client, node: str, end: int | str) -> None:
    assert client.put(node, json=block(endTimestamp=end)).json()["endTimestamp"] == PERMANENT


@ON_BOTH
@pytest.mark.parametrize(
    "cause", ["x", "é ü 漢字 😀", "a" * 1024, "😀" * 1024, 'quote " backslash \\ slash /', "</script>", "\u2028", "~"]
)
def test_a_cause_comes_back_as_it_was_sent(client: httpx.Client, node: str, node_id: str, cause: str) -> None:
    made = client.put(node, json=block(cause=cause))
    assert made.status_code == 201
    assert made.json()["cause"] == client.get(node).json()["cause"] == cause
    assert current_list(client)[1][node_id]["cause"] == cause
    assert all_changes(client, node=node_id)[0]["node"]["cause"] == cause


def test_a_surrogate_pair_is_one_character(client: httpx.Client, node: str) -> None:
    made = client.put(node, content=b'{"action": "MARK_BLOCKED", "cause": "\\ud83d\\ude00"}')
    assert (made.status_code, made.json()["cause"]) == (201, "😀")


@pytest.mark.parametrize("body", [b'{"cause": "x"}', b"rubbish", b"", b'{"action": "MARK_BLOCKED", "cause": ""}'])
def test_a_malformed_body_for_a_blocked_node_is_400_and_not_409(client: httpx.Client, node: str, body: bytes) -> None:
    client.put(node, json=block())
    before = current_list(client)
    problem_of(client.put(node, content=body), 400)
    assert current_list(client) == before


def test_unblocking_is_200_with_an_empty_body_and_then_404(client: httpx.Client, node: str, node_id: str) -> None:
    made = client.put(node, json=block())
    freed = client.delete(node)
    assert (freed.status_code, freed.content) == (200, b"")
    assert revision_of(freed) == revision_of(made) + 1
    assert node_id in problem_of(client.delete(node), 404)["detail"]
    assert client.get(node).status_code == 404
    assert node_id not in current_list(client)[1]


@pytest.mark.parametrize("headers", [{}, {"content-type": "application/json"}, {"content-type": "text/plain"}])
def test_delete_accepts_an_empty_object(client: httpx.Client, node: str, headers: dict[str, str]) -> None:
    client.put(node, json=block())
    assert client.request("DELETE", node, content=b"{}", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "kind",
    [
        "application/x-www-form-urlencoded",
        "application/json",
        "application/json; charset=utf-8",
        "text/plain",
        "multipart/form-data",
        None,
    ],
)
def test_a_body_is_json_whatever_its_content_type_says(client: httpx.Client, node: str, kind: str | None) -> None:
    headers = {"content-type": kind} if kind else {}
    made = client.put(node, content=b'{"action": "MARK_BLOCKED", "cause": "a=b&c%20d"}', headers=headers)
    assert (made.status_code, made.json()["cause"]) == (201, "a=b&c%20d")


@pytest.mark.parametrize(
    "odd_id", ["fe80::1", "10.0.0.1", "a", "A-Z_0.9:z", "...", "-", "x" * 253, "..a", "UPPER.example", "0"]
)
def test_host_names_and_addresses_are_node_ids(client: httpx.Client, odd_id: str) -> None:
    path = f"/blocklist/nodes/{odd_id}"
    made = client.put(path, json=block())
    assert (made.status_code, made.json()["id"]) == (201, odd_id)
    assert current_list(client)[1][odd_id]["cause"] == "disk"
    assert client.delete(path).status_code == 200


def test_the_singular_path_is_an_alias(client: httpx.Client, node: str, node_id: str) -> None:
    alias = f"/blocklist/node/{node_id}"
    made = client.put(alias, json=block())
    assert made.status_code == 201
    assert client.get(alias).json() == client.get(node).json() == made.json()
    assert client.head(alias).status_code == 200
    assert client.delete(alias).status_code == 200
    assert client.get(node).status_code == 404


@ON_BOTH
def test_every_change_returns_its_revision(client: httpx.Client, node: str) -> None:
    start = current_list(client)[0]
    answers = [
        client.put(node, json=block()),
        client.put(node, json=block(cause="b", allowMerge=True)),
        client.put(node, json=block(cause="b", allowMerge=True)),
        client.delete(node),
    ]
    assert [revision_of(answer) for answer in answers] == [start + 1, start + 2, start + 2, start + 3]
    assert len({answer.headers["blocklist-history"] for answer in answers}) == 1


@ON_BOTH
def test_of_concurrent_blocks_exactly_one_succeeds(client: httpx.Client, node: str, node_id: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: client.put(node, json=block(cause=f"c{n}")), range(24)))
    assert sorted(answer.status_code for answer in answers) == [201] + [409] * 23
    winner = next(answer for answer in answers if answer.status_code == 201)
    assert client.get(node).json() == winner.json()
    assert len(all_changes(client, node=node_id)) == 1


@ON_BOTH
def test_concurrent_merges_lose_no_cause(client: httpx.Client, node: str, node_id: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: client.put(node, json=block(cause=f"c{n}", allowMerge=True)), range(24)))
    assert sorted(answer.status_code for answer in answers) == [201] + [202] * 23
    assert set(client.get(node).json()["cause"].split(",")) == {f"c{n}" for n in range(24)}
    assert len({revision_of(answer) for answer in answers}) == 24
    for answer in answers:
        seen = next(c for c in all_changes(client, node=node_id) if c["revision"] == revision_of(answer))
        assert seen["node"]["cause"] == answer.json()["cause"]
