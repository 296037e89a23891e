"""Claims at the API: each owner changes and removes only what is its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from blocklist import BlockAction, BlocklistClient, InvalidError, NotFoundError
from blocklist.model.changes import Snapshot
from blocklist.model.claims import Role
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
from tests.integration.command import Command
from tests.integration.conftest import StartInProcess
from tests.integration.databases import ON_BOTH, Databases
from tests.integration.event_stream import changes, next_events, watching
from tests.integration.in_process import ManualClock, running_service
from tests.integration.listeners import wait_until_pushed
from tests.integration.problems import problem_of
from tests.integration.process import ServiceProcess, http_client
from tests.integration.receiver import Receiver
from tests.integration.secured import secured_in_process
from tests.integration.test_page_listener import facts
from tests.integration.test_page_tasks import cells

NODE = "/blocklist/nodes/n1"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def service(database_url: str, clock: ManualClock) -> Iterator[httpx2.Client]:
    """A client of a service with an empty list, in this process."""
    with running_service(database_url, clock) as client:
        yield client


def claim(**fields: object) -> dict[str, Any]:
    return {"action": MARK, "cause": "disk", **fields}


def put(client: Any, owner: str, *, node: str = NODE, status: int = 201, **fields: object) -> dict[str, Any]:
    answer = client.put(f"{node}/claims/{owner}", json=claim(**fields))
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    return body


def owners(client: Any, node: str = NODE) -> list[str]:
    return [it["owner"] for it in client.get(f"{node}/claims").json()["claims"]]


def types(client: Any) -> list[str]:
    return [change["type"] for change in all_changes(client)]


class TestPut:
    def test_a_claim_blocks_a_free_node(self, service: httpx2.Client, clock: ManualClock) -> None:
        fields = {"action": MARK, "startTimestamp": str(clock.now), "endTimestamp": PERMANENT, "cause": "disk"}
        assert put(service, "kernel-upgrade") == {
            "claim": {"owner": "kernel-upgrade", **fields, "createdBy": None},
            "node": {"id": "n1", **fields, "taskManagers": []},
        }
        assert service.get(NODE).json()["cause"] == "disk"
        (change,) = all_changes(service)
        assert (change["type"], change["claims"][0]["owner"]) == ("blocked", "kernel-upgrade")

    @pytest.mark.parametrize("path", ["alertmanager/809c736d", "alertmanager%2F809c736d"])
    def test_an_owner_may_have_a_slash(self, service: httpx2.Client, path: str) -> None:
        put(service, path)
        assert owners(service) == ["alertmanager/809c736d"]
        assert service.delete(f"{NODE}/claims/{path}").status_code == 200

    @pytest.mark.parametrize("owner", ["a*", "a%2F%2Fb", "x" * 129, "%00", "%2E%2E", "a%0A", "a%0Ab", ""])
    def test_what_is_not_an_owner_is_refused(self, service: httpx2.Client, owner: str) -> None:
        answer = service.put(f"{NODE}/claims/{owner}", json=claim())
        assert answer.status_code in (400, 404)
        assert current_list(service) == (0, {})

    def test_under_another_name_of_the_machine_it_is_the_same_block(self, service: httpx2.Client) -> None:
        put(service, "a", node="/blocklist/nodes/N1.example.com")
        assert put(service, "b", node="/blocklist/nodes/n1")["node"]["id"] == "N1.example.com"
        assert owners(service) == ["a", "b"]


class TestCanary:
    """A claim may leave one executor of each application on the node; an ordinary claim ends that."""

    def test_the_node_and_the_claim_have_the_field(self, service: httpx2.Client) -> None:
        body = put(service, "detection", canary=True)
        assert body["claim"]["canary"] is True
        assert body["node"]["canary"] is True
        assert list(body["node"]) == [
            "id", "action", "startTimestamp", "endTimestamp", "cause", "canary", "taskManagers"
        ]  # fmt: skip
        assert service.get(NODE).json()["canary"] is True
        for query in ("", "?details=true", "?selector=!x"):
            assert service.get(f"/blocklist{query}").json()["n1"]["canary"] is True, query
        assert service.get(f"{NODE}/claims").json()["claims"][0]["canary"] is True
        assert service.get("/claims").json()["claims"][0]["canary"] is True
        (change,) = all_changes(service)
        assert (change["node"]["canary"], change["claims"][0]["canary"]) == (True, True)

    def test_an_evacuation_cannot_be_one(self, service: httpx2.Client) -> None:
        body = claim(action=EVACUATE, canary=True)
        for path, sent in ((f"{NODE}/claims/a", body), ("/claims/a", {"n1": body})):
            problem = problem_of(service.put(path, json=sent), 400)
            assert "canary: only MARK_BLOCKED can leave an executor on the node" in problem["detail"]
        assert current_list(service) == (0, {})

    def test_several_claims_at_once(self, service: httpx2.Client) -> None:
        body = {"n1": claim(canary=True), "n2": claim()}
        found = service.put("/claims/detection", json=body).json()
        assert [result["claim"].get("canary") for result in found.values()] == [True, None]

    def test_a_dry_run_shows_it(self, service: httpx2.Client) -> None:
        (entry,) = service.put(f"{NODE}/claims/a?dryRun=true", json=claim(canary=True)).json()["nodes"]
        assert entry["node"]["canary"] is True


class TestDelete:
    def test_the_others_keep_the_node_blocked(self, service: httpx2.Client) -> None:
        put(service, "a", cause="x", action=EVACUATE)
        left = put(service, "b", cause="y")["claim"]
        answer = service.delete(f"{NODE}/claims/a")
        assert answer.status_code == 200
        body = answer.json()
        assert (body["blocked"], body["node"]["action"], body["node"]["cause"]) == (True, MARK, "y")
        assert service.get(f"{NODE}/claims").json() == {"id": "n1", "claims": [left], "dismissed": []}
        assert types(service) == ["blocked", "merged", "narrowed"]


class TestWithoutOwner:
    def test_the_owner_is_the_name_of_the_token(self, tmp_path: Path, databases: Databases) -> None:
        with (
            secured_in_process(tmp_path, databases) as secured,
            secured.client(secured.tokens[Role.OPERATOR]) as client,
        ):
            client.put(NODE, json=block()).raise_for_status()
            put(client, "somebody-else")
            claims = client.get(f"{NODE}/claims").json()["claims"]
            assert [(it["owner"], it["createdBy"]) for it in claims] == [
                ("some-operator", "some-operator"),
                ("somebody-else", "some-operator"),
            ]


class TestSeveral:
    def test_claims_on_several_nodes_are_all_or_none(self, service: httpx2.Client) -> None:
        put(service, "a", cause="old")
        answer = service.put("/claims/a", json={"n1": claim(cause="new"), "n2": claim()})
        assert answer.status_code == 200
        assert {node_id: body["status"] for node_id, body in answer.json().items()} == {"n1": 200, "n2": 201}
        assert revision_of(answer) == 3
        problem_of(service.put("/claims/a", json={"n3": claim(), "n4": claim(cause="")}), 400)
        problem_of(service.put("/claims/a", json={"n3": claim(), "N3.example": claim()}), 400)
        assert list(current_list(service)[1]) == ["n1", "n2"]

    def test_removing_them_is_all_or_none(self, service: httpx2.Client) -> None:
        service.put("/claims/a", json={"n1": claim(), "n2": claim()}).raise_for_status()
        put(service, "b", node="/blocklist/nodes/n2")
        problem = problem_of(service.delete("/claims/b", params={"node": ["n1", "n2"]}), 404)
        assert problem["errors"] == ["b has no claim on node n1."]
        answer = service.delete("/claims/a", params={"node": ["n1", "n2", "N2"]})
        assert {node_id: body["blocked"] for node_id, body in answer.json().items()} == {
            "n1": False,
            "n2": True,
            "N2": True,
        }
        assert owners(service, "/blocklist/nodes/n2") == ["b"]

    @pytest.mark.parametrize("query", ["", "?node=", "?node=a/b", "?node=n1&dryrun=true"])
    def test_which_nodes_must_be_said(self, service: httpx2.Client, query: str) -> None:
        put(service, "a")
        problem_of(service.delete(f"/claims/a{query}"), 400)
        assert owners(service) == ["a"]

    def test_a_misspelt_parameter_is_answered_with_all_that_are_allowed(self, service: httpx2.Client) -> None:
        problem = problem_of(service.delete("/claims/a?node=n1&nod=n2"), 400)
        assert problem["detail"] == (
            "Unknown query parameter 'nod': did you mean node? Allowed: dryRun, node. Nothing was changed."
        )


class TestList:
    def test_claims_of_some_owners_page_by_page(self, service: httpx2.Client) -> None:
        for node in ("n3", "n1", "n2"):
            service.put("/claims/alert/1", json={node: claim()}).raise_for_status()
        service.put("/claims/alert/2", json={"n2": claim()}).raise_for_status()
        put(service, "anna")

        def listed(query: str) -> tuple[list[tuple[str, str]], Any]:
            body = service.get(f"/claims?{query}").json()
            return [(it["node"], it["owner"]) for it in body["claims"]], body["next"]

        alerts = [("n1", "alert/1"), ("n2", "alert/1"), ("n2", "alert/2"), ("n3", "alert/1")]
        assert listed("owner=alert/*") == (alerts, None)
        assert listed("owner=alert/*&limit=2") == (alerts[:3], "n2")
        assert listed("owner=alert/*&limit=2&after=n2") == (alerts[3:], None)
        assert listed("owner=anna") == ([("n1", "anna")], None)
        assert len(listed("")[0]) == 5
        assert listed("owner=nobody") == ([], None)

    @pytest.mark.parametrize("query", ["limit=0", "limit=1001", "after=a/b", "owner="])
    def test_invalid_parameters(self, service: httpx2.Client, query: str) -> None:
        problem_of(service.get(f"/claims?{query}"), 400)


class TestDryRun:
    def test_it_changes_nothing(self, service: httpx2.Client) -> None:
        put(service, "a", action=EVACUATE)
        put(service, "b", cause="y")
        for path, body in ((f"{NODE}/claims/c", claim(cause="z")), ("/claims/c", {"n1": claim(cause="z")})):
            (entry,) = service.put(f"{path}?dryRun=true", json=body).json()["nodes"]
            assert (entry["status"], entry["node"]["cause"]) == (202, "disk,y,z")
        for path in (f"{NODE}/claims/a?dryRun=true", "/claims/a?dryRun=true&node=n1"):
            (entry,) = service.delete(path).json()["nodes"]
            assert (entry["status"], entry["node"]["action"]) == (202, MARK)
        assert current_list(service)[0] == 2


class TestLimits:
    def test_a_claim_is_limited_like_a_block(self, start_in_process: StartInProcess) -> None:
        with start_in_process(max_blocked="1", longest_block_admin="1h").client() as client:
            problem_of(client.put(f"{NODE}/claims/a", json=claim()), 409)
            short = claim(endTimestamp=later(60))
            assert client.put(f"{NODE}/claims/a", json=short).status_code == 201
            problem_of(client.put("/claims/a", json={"n2": short}), 409)
            forced = client.put("/claims/a?force=fire", json={"n2": short})
            assert forced.status_code == 200
            problem_of(client.put("/claims/a?strict=true", json={"n9": short}), 409)


class TestEverywhere:
    """Claims survive a restart, and every consumer gets a narrowed block."""

    @ON_BOTH
    def test_claims_survive_a_restart(self, fresh: ServiceProcess) -> None:
        """Also a canary whose owner is its author: without the canary the claim would be implied."""
        with fresh.client() as client:
            put(client, "anonymous", cause="x", canary=True)
            put(client, "b", cause="y", action=EVACUATE)
            put(client, "solo", node="/blocklist/nodes/n2")
            at, past = (change["at"] for change in all_changes(client)[:2])
            before = client.get("/claims").json(), current_list(client), all_changes(client)
        fresh.kill()
        with fresh.start().client() as client:
            assert (client.get("/claims").json(), current_list(client), all_changes(client)) == before
            assert client.delete(f"{NODE}/claims/b").json()["node"]["canary"] is True
            assert client.get(f"/blocklist?at={at}").json()["n1"]["canary"] is True
            assert client.get(f"/blocklist?at={past}").json()["n1"]["cause"] == "x,y"
            assert [change["type"] for change in all_changes(client, type="narrowed")] == ["narrowed"]

    def test_watchers_and_pushed_listeners_see_canaries(
        self, start_in_process: StartInProcess, receiver: Receiver
    ) -> None:
        with http_client(start_in_process().url) as client, watching(client, since=0) as events:
            put(client, "detection", canary=True)
            put(client, "kernel")
            revision = revision_of(client.delete(f"{NODE}/claims/kernel"))
            received = changes(next_events(events, 3))
            receiver.register(client, "jm")
            wait_until_pushed(client, receiver, revision)
        assert [(it["type"], it["node"].get("canary")) for it in received] == [
            ("blocked", True),
            ("merged", None),
            ("narrowed", True),
        ]
        assert receiver.applied[-1].body["blocked"][0]["canary"] is True

    def test_watchers_get_every_change(self, start_in_process: StartInProcess) -> None:
        with http_client(start_in_process().url) as client, watching(client, since=0) as events:
            put(client, "a", cause="x", action=EVACUATE)
            put(client, "b", cause="y")
            client.put(f"{NODE}/claims/a", json=claim(cause="x")).raise_for_status()
            client.delete(f"{NODE}/claims/a").raise_for_status()
            received = changes(next_events(events, 4))
        assert [(it["type"], it["node"]["action"], it["node"]["cause"]) for it in received] == [
            ("blocked", EVACUATE, "x"),
            ("merged", EVACUATE, "x,y"),
            ("narrowed", MARK, "x,y"),
            ("narrowed", MARK, "y"),
        ]
        assert [[it["owner"] for it in change["claims"]] for change in received] == [
            ["a"],
            ["a", "b"],
            ["a", "b"],
            ["b"],
        ]


@pytest.mark.parametrize("owner", ["kernel", "alertmanager/1", "Zoë 100% #1?"])
def test_the_python_client_puts_reads_and_removes_claims(start_in_process: StartInProcess, owner: str) -> None:
    with BlocklistClient(start_in_process().url, timeout=30) as client:
        blocked = client.put_claim("n1", owner, "x", action=BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS)
        assert [(it.owner, it.author, it.block) for it in client.claims("n1")] == [(owner, None, blocked)]
        end = now_ms() + 60_000
        assert client.put_claim("n1", "other", "y", end=end).cause == "x,y"
        left = client.remove_claim("n1", owner)
        assert left is not None
        assert (left.cause, left.end) == ("y", end)
        assert client.remove_claim("n1", "other") is None
        with pytest.raises(NotFoundError):
            client.remove_claim("n1", "other")
        with pytest.raises(InvalidError):
            client.put_claim("n1", "a//b", "x")


def test_the_python_client_knows_canaries(start_in_process: StartInProcess) -> None:
    with BlocklistClient(start_in_process().url, timeout=30) as client, client.watch() as watched:
        assert isinstance(next(watched), Snapshot)
        blocked = client.put_claim("n1", "detection", "x", canary=True)
        assert blocked.canary
        assert client.get("n1") == client.listing().nodes[0].node == client.claims("n1")[0].block == blocked
        (change,) = client.history("n1")
        assert change == next(watched)
        assert change.node == change.claims[0].block == blocked
        assert [claim.canary for claim in client.all_claims()] == [True]
        with client.watch() as again:
            snapshot = next(again)
            assert isinstance(snapshot, Snapshot)
            assert snapshot.nodes == {"n1": blocked}
        with pytest.raises(InvalidError, match="canary"):
            client.put_claim("n1", "detection", "x", action=BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS, canary=True)


def test_the_page_of_a_node_lists_its_claims_and_dismissals(service: httpx2.Client) -> None:
    put(service, "anna", cause="kernel")
    put(service, "detection", status=201, cause="slow <b>")
    page = service.get("/page/nodes/n1").text
    assert cells(page, "Cause") == ["kernel", "slow <b>"]
    assert '<th scope="row">detection</th>' in page
    assert "Dismissed" not in page
    service.delete(NODE).raise_for_status()
    page = service.get("/page/nodes/n1").text
    assert "<li>detection" in page
    assert 'id="claims"' not in page


def test_the_page_names_all_owners(service: httpx2.Client) -> None:
    service.put("/blocklist/nodes/n0", json=claim()).raise_for_status()
    for owner in ("anna", "detection"):
        put(service, owner, cause=owner)
    assert cells(service.get("/page/list?sort=node").text, "Owners") == ["–", "anna, detection"]
    assert facts(service.get("/page/nodes/n1/state").text)["Owners"] == "anna, detection"
    for number in range(3):
        put(service, f"alertmanager/{number:016}")
    shown = "anna, detection, alertmanager/0000000000000000 and 2 more"
    for path in ("/?sort=node", "/page/list?sort=node", "/?by=alertmanager%2F0000000000000002"):
        assert shown in cells(service.get(path).text, "Owners"), path
    service.delete(f"{NODE}/claims/anna").raise_for_status()
    assert cells(service.get("/page/list?sort=node").text, "Owners")[1].startswith("detection, alertmanager/")
    assert cells(service.get("/?by=anna").text, "Owners") == []


def test_the_page_and_the_command_show_canaries(start_in_process: StartInProcess, binaries: Path) -> None:
    service = start_in_process()
    with service.client() as client:
        put(client, "detection", cause="slow", canary=True)
        command = Command(binaries, service.url)
        for path in ("/", "/page/nodes/n1", "/page/history", "/page/nodes/n1/extend", "/page/nodes/n1/unblock"):
            assert "no new tasks (canary)</span>" in client.get(path).text, path
        assert "no new tasks (canary), slow" in client.get("/page/map/timeline").text
        assert ", all with a canary" in client.get("/?group=cause").text.replace('<span class="dim">', "")
        for arguments in (["list"], ["list", "--sort", "action"], ["get", "n1"], ["claims", "n1"], ["history", "n1"]):
            assert " mark(canary) " in command.stdout_of(*arguments), arguments
        assert command.stdout_of("is-blocked", "n1") == "n1 blocked forever, with a canary\n"
        (listed,) = json.loads(command.stdout_of("list", "-o", "json")).values()
        assert listed["canary"] is True
        put(client, "anna", cause="kernel")
        assert "canary" not in command.stdout_of("list")


class TestPreconditions:
    """If-Match and If-None-Match of one node or claim."""

    CLAIM = f"{NODE}/claims/team-a"

    @pytest.fixture
    def etag(self, service: httpx2.Client) -> str:
        put(service, "team-a")
        etag = service.get(NODE).headers["ETag"]
        assert service.get(f"{NODE}/claims").headers["ETag"] == etag
        return str(etag)

    @pytest.mark.parametrize("path", [NODE, "/blocklist/node/n1", CLAIM, "/blocklist/nodes/N1"])
    @pytest.mark.parametrize("method", ["PUT", "DELETE"])
    def test_a_node_that_has_changed_since_is_left_alone(
        self, service: httpx2.Client, etag: str, method: str, path: str
    ) -> None:
        body = None if method == "DELETE" else claim() if path == self.CLAIM else block(allowMerge=True)
        put(service, "team-b", cause="fan")
        before = service.get(f"{NODE}/claims").json()
        for tags in (etag, f"W/{etag}", '"x", "y"', "x"):
            refused = service.request(method, path, json=body, headers={"If-Match": tags})
            assert problem_of(refused, 412)["type"] == "urn:blocklist:problem:precondition-failed"
        assert service.get(f"{NODE}/claims").json() == before
        dry_run = service.request(method, f"{path}?dryRun=true", json=body, headers={"If-Match": etag})
        assert dry_run.status_code == 412
        now = service.get(NODE).headers["ETag"]
        assert service.request(method, path, json=body, headers={"If-Match": f'"x", {now}'}).is_success
        assert service.request(method, path, json=body, headers={"If-Match": now}).is_success is (
            method == "PUT" and path == self.CLAIM
        )

    def test_a_star_means_whatever_it_is(self, service: httpx2.Client, etag: str) -> None:
        star = {"If-Match": "*"}
        assert service.put("/blocklist/nodes/n2", json=block(), headers=star).status_code == 412
        assert service.put(f"{NODE}/claims/team-b", json=claim(), headers=star).status_code == 412
        assert service.put(self.CLAIM, json=claim(cause="fan"), headers=star).status_code == 200
        none = {"If-None-Match": "*"}
        assert service.put(self.CLAIM, json=claim(), headers=none).status_code == 412
        assert service.put(NODE, json=block(allowMerge=True), headers=none).status_code == 412
        assert service.put(f"{NODE}/claims/team-b", json=claim(), headers=none).status_code == 201
        assert etag != service.get(NODE).headers["ETag"]

    def test_a_node_that_is_as_it_was_read_may_be_excluded(self, service: httpx2.Client, etag: str) -> None:
        for tags, status in ((etag, 412), (f'"x", W/{etag}', 412), ('"x"', 202)):
            done = service.put(NODE, json=block(allowMerge=True), headers={"If-None-Match": tags})
            assert done.status_code == status

    def test_a_claim_that_has_ended_is_a_change(self, service: httpx2.Client, clock: ManualClock) -> None:
        put(service, "team-a")
        put(service, "team-b", endTimestamp=clock() + 1000)
        etag = service.get(NODE).headers["ETag"]
        clock.advance(1)
        assert service.delete(NODE, headers={"If-Match": etag}).status_code == 412

    @pytest.mark.parametrize(
        ("method", "path"),
        [("PUT", "/blocklist/nodes"), ("DELETE", "/blocklist/nodes?selector=a"), ("DELETE", "/claims/me?node=n1")],
    )
    def test_several_nodes_have_no_etag(self, service: httpx2.Client, etag: str, method: str, path: str) -> None:
        body = {"n1": block(allowMerge=True)} if method == "PUT" else None
        refused = service.request(method, path, json=body, headers={"If-Match": etag})
        assert "one node or claim" in problem_of(refused, 400)["detail"]
