"""`?selector=` on the list, and on changes of several nodes at once."""

from __future__ import annotations

import re
from typing import Any, Final

import httpx
import pytest

from blocklist import BlocklistClient
from blocklist.model.errors import InvalidError, NotFoundError, UnknownNodeError
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode
from tests.integration.bodies import all_changes, block, current_list, revision_of
from tests.integration.conftest import StartInProcess, StartReplicas
from tests.integration.in_process import InProcessService
from tests.integration.labels import RACKS, report_labels
from tests.integration.listeners import put
from tests.integration.problems import problem_of
from tests.integration.process import wait_until

MERGE: Final = block(allowMerge=True)


@pytest.fixture
def service(start_in_process: StartInProcess) -> InProcessService:
    """A service that knows nodes with labels."""
    service = start_in_process()
    report_labels(service.client())
    return service


@pytest.fixture
def racks(service: InProcessService) -> httpx.Client:
    return service.client()


def blocked_by(client: httpx.Client, selector: str, **params: str) -> list[str]:
    """The ids of the blocked nodes that are selected."""
    answer = client.get("/blocklist", params={"selector": selector, **params})
    assert answer.status_code == 200, answer.text
    return list(answer.json())


def put_selected(client: httpx.Client, selector: str, body: dict[str, Any] = MERGE, **params: str) -> httpx.Response:
    return client.put("/blocklist/nodes", params={"selector": selector, **params}, json=body)


def delete_selected(client: httpx.Client, selector: str, **params: str) -> httpx.Response:
    return client.delete("/blocklist/nodes", params={"selector": selector, **params})


class TestList:
    def test_only_the_selected_nodes_are_listed(self, racks: httpx.Client) -> None:
        for node in ("N1", "n2", "n3", "n4", "elsewhere"):
            put(racks, node)
        assert blocked_by(racks, "rack=r1") == ["N1", "n2"]
        assert blocked_by(racks, "rack") == ["N1", "n2", "n3"]
        assert blocked_by(racks, "rack!=r1") == ["elsewhere", "n3", "n4"]
        assert blocked_by(racks, "pool in (gpu, cpu),rack notin (r2)") == ["N1"]
        assert blocked_by(racks, "rack=r9") == []
        assert blocked_by(racks, "") == ["N1", "elsewhere", "n2", "n3", "n4"]

    def test_a_node_is_shown_as_in_the_whole_list(self, service: InProcessService, racks: httpx.Client) -> None:
        put(racks, "n2")
        put(racks, "n3")
        for params in ({}, {"details": "true"}, {"at": str(service.clock.now)}):
            whole = racks.get("/blocklist", params=params).json()
            selected = racks.get("/blocklist", params={**params, "selector": "rack=r1"})
            assert selected.json() == {"n2": whole["n2"]}
            assert revision_of(selected) == 2

    def test_the_etag_is_that_of_the_selected_nodes(self, racks: httpx.Client) -> None:
        put(racks, "n2")
        path = "/blocklist?selector=rack=r1"
        etag = racks.get(path).headers["etag"]
        put(racks, "n3")
        assert racks.get(path, headers={"If-None-Match": etag}).status_code == 304
        put(racks, "n1")
        assert racks.get(path, headers={"If-None-Match": etag}).status_code == 200
        assert etag != racks.get("/blocklist").headers["etag"]

    def test_new_labels_count_at_once(self, racks: httpx.Client) -> None:
        put(racks, "n4")
        assert blocked_by(racks, "rack=r1") == []
        report_labels(racks, {**RACKS, "n4": {"rack": "r1"}})
        assert blocked_by(racks, "rack=r1") == ["n4"]


class TestNodes:
    """GET /nodes."""

    def test_only_the_selected_nodes_are_listed_page_by_page(self, racks: httpx.Client) -> None:
        first = racks.get("/nodes", params={"selector": "rack", "limit": "2"}).json()
        assert [node["id"] for node in first["nodes"]] == ["n1.example.com", "n2"]
        assert first["total"] == 3
        second = racks.get("/nodes", params={"selector": "rack", "limit": "2", "after": first["next"]}).json()
        assert ([node["id"] for node in second["nodes"]], second["next"]) == (["n3"], None)
        assert racks.get("/nodes", params={"selector": "rack=r9"}).json()["nodes"] == []

    def test_a_label_that_no_node_has_is_a_warning(self, racks: httpx.Client) -> None:
        answer = racks.get("/nodes", params={"selector": "pol"})
        assert answer.headers["warning"] == '299 - "No node has the label pol; did you mean pool?"'
        assert "character 8" in problem_of(racks.get("/nodes", params={"selector": "rack in"}), 400)["detail"]


class TestBlock:
    def test_all_selected_nodes_are_blocked_and_named(self, racks: httpx.Client) -> None:
        answer = put_selected(racks, "rack=r1")
        assert answer.status_code == 200, answer.text
        assert {name: body["status"] for name, body in answer.json().items()} == {"n1.example.com": 201, "n2": 201}
        assert "warning" not in answer.headers
        assert list(current_list(racks)[1]) == ["n1.example.com", "n2"]
        assert [change["revision"] for change in all_changes(racks)] == [1, 2]

    def test_a_conflict_refuses_all_of_them(self, racks: httpx.Client) -> None:
        put(racks, "n2")
        problem = problem_of(put_selected(racks, "rack", block()), 409)
        assert list(problem["blockedNodes"]) == ["n2"]
        assert list(current_list(racks)[1]) == ["n2"]
        merged = put_selected(racks, "rack").json()
        assert {name: body["status"] for name, body in merged.items()} == {
            "n1.example.com": 201,
            "n2": 202,
            "n3": 201,
        }

    def test_a_dry_run_names_the_nodes_and_changes_nothing(self, racks: httpx.Client) -> None:
        answer = put_selected(racks, "rack=r1", dryRun="true")
        assert [each["node"]["id"] for each in answer.json()["nodes"]] == ["n1.example.com", "n2"]
        assert current_list(racks) == (0, {})

    def test_nothing_selected_is_an_error(self, racks: httpx.Client) -> None:
        problem = problem_of(put_selected(racks, "rack=r9"), 404)
        assert problem["detail"] == "The selector rack=r9 selects no node. Nothing was changed."
        problem = problem_of(put_selected(racks, "rak=r1"), 404)
        assert problem["detail"].endswith("No node has the label rak; did you mean rack?")

    @pytest.mark.parametrize(
        ("selector", "error"),
        [
            ("", "it is empty"),
            (" ", "it is empty"),
            ("rack in r1", "selector, character 9: expected '(', found 'r1'"),
            ("rack=" + "r" * 64, "has more than 63 characters"),
            ("r" * 5000, "selector"),
        ],
    )
    def test_an_invalid_selector_changes_nothing(self, racks: httpx.Client, selector: str, error: str) -> None:
        for answer in (put_selected(racks, selector), delete_selected(racks, selector)):
            assert error in problem_of(answer, 400)["detail"]
        assert current_list(racks) == (0, {})

    def test_a_selector_is_given_once_and_with_the_body_of_one_node(self, racks: httpx.Client) -> None:
        twice = "/blocklist/nodes?selector=rack%3Dr1&selector=rack%3Dr2"
        problem_of(racks.put(twice, json=MERGE), 400)
        problem_of(racks.get("/blocklist?selector=rack&selector=pool"), 400)
        problem_of(put_selected(racks, "rack=r1", {"n1": MERGE}), 400)
        problem_of(put_selected(racks, "rack=r1", block(endTimestamp="5")), 400)
        problem_of(racks.put("/blocklist/nodes/n1?selector=rack", json=MERGE), 400)
        assert current_list(racks) == (0, {})

    def test_a_label_that_no_node_has_is_a_warning_and_an_error_if_strict(self, racks: httpx.Client) -> None:
        warning = '299 - "No node has the label pol; did you mean pool?"'
        for answer in (
            racks.get("/blocklist", params={"selector": "pol!=gpu"}),
            put_selected(racks, "pol!=gpu,rack=r2", dryRun="true"),
            put_selected(racks, "pol!=gpu,rack=r2"),
            delete_selected(racks, "pol!=gpu,rack=r2"),
        ):
            assert (answer.status_code, answer.headers["warning"]) == (200, warning)
        problem = problem_of(put_selected(racks, "pol!=gpu", strict="true"), 409)
        assert problem["type"] == "urn:blocklist:problem:unknown-node"
        assert put_selected(racks, "pool!=gpu", strict="true").status_code == 200

    def test_at_most_1000_nodes_are_changed_at_once(self, start_in_process: StartInProcess) -> None:
        fresh_client = start_in_process().client()
        report_labels(fresh_client, {f"n{number}": {"rack": "r1", "odd": str(number % 2)} for number in range(1001)})
        problem = problem_of(put_selected(fresh_client, "rack=r1"), 400)
        assert "selects 1,001 nodes; at most 1,000 can be changed at once" in problem["detail"]
        assert len(put_selected(fresh_client, "odd=0").json()) == 501
        assert len(put_selected(fresh_client, "odd=1").json()) == 500
        problem = problem_of(delete_selected(fresh_client, "rack=r1"), 400)
        assert "1,001 of the nodes that rack=r1 selects are blocked" in problem["detail"]
        assert len(delete_selected(fresh_client, "odd=1").json()) == 500

    def test_limits_apply(self, start_in_process: StartInProcess) -> None:
        client = start_in_process(max_blocked="1").client()
        report_labels(client)
        problem = problem_of(put_selected(client, "rack=r1"), 409)
        assert problem["type"] == "urn:blocklist:problem:limit"
        assert put_selected(client, "rack=r1", dryRun="true").json()["refused"] == problem["detail"]
        assert put_selected(client, "rack=r1", force="agreed").status_code == 200


class TestUnblock:
    def test_the_blocked_ones_among_the_selected_nodes_are_unblocked(self, racks: httpx.Client) -> None:
        for node in ("N1", "n3"):
            put(racks, node)
        answer = delete_selected(racks, "rack=r1")
        assert (answer.status_code, revision_of(answer)) == (200, 3)
        assert answer.json() == {
            "n1.example.com": {"status": 200, "id": "N1"},
            "n2": {"status": 404, "id": None},
        }
        assert list(current_list(racks)[1]) == ["n3"]

    def test_a_dry_run_names_them_and_changes_nothing(self, racks: httpx.Client) -> None:
        put(racks, "n2")
        answer = delete_selected(racks, "rack=r1", dryRun="true")
        assert [(each["status"], each["node"]["id"]) for each in answer.json()["nodes"]] == [(200, "n2")]
        assert list(current_list(racks)[1]) == ["n2"]

    def test_none_selected_or_none_blocked_is_an_error(self, racks: httpx.Client) -> None:
        put(racks, "n3")
        assert "selects no node" in problem_of(delete_selected(racks, "rack=r9"), 404)["detail"]
        problem = problem_of(delete_selected(racks, "rack=r1"), 404)
        assert problem["detail"] == "None of the 2 nodes that rack=r1 selects is blocked."

    def test_a_request_without_a_selector_unblocks_nothing(self, racks: httpx.Client) -> None:
        put(racks, "n2")
        assert "selector" in problem_of(racks.delete("/blocklist/nodes"), 400)["detail"]
        assert "force" in problem_of(delete_selected(racks, "rack", force="x"), 400)["detail"]
        problem_of(racks.request("DELETE", "/blocklist/nodes?selector=rack", json={"n2": {}}), 400)
        assert list(current_list(racks)[1]) == ["n2"]


class TestPage:
    HERE: Final = {"Sec-Fetch-Site": "same-origin"}
    FORM: Final = {"action": "mark", "cause": "switch", "ends": "for", "for": "2h", "until": ""}

    def post(self, client: httpx.Client, nodes: str, **fields: str) -> httpx.Response:
        return client.post("/page/block", data={**self.FORM, "nodes": nodes, **fields}, headers=self.HERE)

    def test_the_preview_shows_the_selected_nodes_and_the_confirmation_blocks_them(self, racks: httpx.Client) -> None:
        preview = self.post(racks, "rack=r1")
        (nodes,) = re.findall(r'name="nodes" value="([^"]*)"', preview.text)
        assert nodes.split() == ["n1.example.com", "n2"]
        report_labels(racks, {**RACKS, "n4": {"rack": "r1"}})
        assert self.post(racks, nodes, confirmed="1").status_code == 303
        assert list(current_list(racks)[1]) == ["n1.example.com", "n2"]

    def test_the_form_names_what_is_wrong_with_a_selector(self, racks: httpx.Client) -> None:
        for selector, error in (
            ("rack=r9", "selects no node"),
            ("pol!=gpu", "did you mean pool?"),
            ("rack=r1,", "character 9: expected the key of a label"),
        ):
            answer = self.post(racks, selector)
            assert answer.status_code == 400
            assert error in answer.text


def test_the_client_passes_a_selector(service: InProcessService) -> None:
    cause = BlockedNode(id="any", action=BlockAction.MARK_BLOCKED, start=0, end=PERMANENT, cause="switch")
    with BlocklistClient(service.url) as client:
        assert len(client.dry_run_block_selected("rack=r1", cause).nodes) == 2
        result = client.block_selected("rack=r1,pol!=x", cause, wait=0)
        assert sorted(result.nodes) == ["n1.example.com", "n2"]
        assert result.warnings == ("No node has the label pol; did you mean pool?",)
        assert result.applied is not None
        listing = client.listing(selector="pool=gpu")
        assert [each.node.cause for each in listing.nodes] == ["switch"]
        assert client.listing(selector="pol").warnings == result.warnings
        with pytest.raises(UnknownNodeError):
            client.block_selected("rack=r1,pol!=x", cause, strict=True)
        with pytest.raises(NotFoundError):
            client.block_selected("rack=r9", cause)
        with pytest.raises(InvalidError):
            client.listing(selector="rack in")
        unblocked = client.unblock_selected("rack")
        assert unblocked.unblocked == {"n1.example.com": "n1.example.com", "n2": "n2"}
        assert unblocked.not_blocked == {"n3"}


@pytest.mark.databases("postgresql")
class TestReplicas:
    def test_labels_that_one_replica_received_select_nodes_at_the_other(self, start_replicas: StartReplicas) -> None:
        one, other = start_replicas().clients
        report_labels(one)
        wait_until(lambda: put_selected(other, "rack=r1").status_code == 200)
        assert blocked_by(other, "rack=r1") == ["n1.example.com", "n2"]
