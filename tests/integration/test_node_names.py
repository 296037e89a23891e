"""A machine is one node under all its names, wherever a name is given."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest

from tests.integration.bodies import block, current_list, revision_of
from tests.integration.command import Command, install
from tests.integration.listeners import RM, heartbeat, post_heartbeat, register
from tests.integration.problems import problem_of
from tests.integration.process import ServiceProcess, wait_until

pytestmark = pytest.mark.databases("sqlite", "postgresql")

NAMES = [
    ("N1.Example.com", "n1"),
    ("n1", "N1.example.com"),
    ("n1", "N1"),
    ("Node-1.example.com", "node-1.EXAMPLE.com."),
    ("fe80::1", "FE80:0::0001"),
    ("10.0.0.7", "::ffff:10.0.0.7"),
]
BOTH = ["n1.a", "n1.b"]


@pytest.fixture
def command(tmp_path: Path, listener_service: ServiceProcess) -> Command:
    return Command(install(tmp_path), listener_service.url)


def path(name: str) -> str:
    return f"/blocklist/nodes/{name}"


def revision(client: httpx.Client) -> int:
    return current_list(client)[0]


def block_as(client: httpx.Client, *names: str, **fields: object) -> None:
    for name in names:
        made = client.put(path(name), json=block(**fields))
        assert (made.status_code, made.json()["id"]) == (201, name)


@pytest.mark.parametrize(("blocked", "name"), NAMES)
class TestApi:
    def test_reads_find_the_block(self, listener_client: httpx.Client, blocked: str, name: str) -> None:
        block_as(listener_client, blocked)
        assert listener_client.get(path(name)).json()["id"] == blocked
        status = listener_client.get(f"{path(name)}/status").json()
        assert (status["id"], status["blocked"]) == (blocked, True)

    def test_the_log_is_found_after_the_block(self, listener_client: httpx.Client, blocked: str, name: str) -> None:
        block_as(listener_client, blocked)
        assert listener_client.delete(path(blocked)).status_code == 200
        found = listener_client.get("/blocklist/changes", params={"node": name, "since": 0}).json()["changes"]
        assert [(change["type"], change["node"]["id"]) for change in found][-2:] == [
            ("blocked", blocked),
            ("unblocked", blocked),
        ]
        assert len({change["revision"] for change in found}) == len(found)
        assert listener_client.get(f"{path(name)}/status").json()["id"] == blocked

    def test_a_refusal_under_another_name_is_not_counted_as_applied(
        self, listener_client: httpx.Client, blocked: str, name: str
    ) -> None:
        block_as(listener_client, blocked)
        register(listener_client, "jm")
        heartbeat(listener_client, "jm", ackedRevision=revision(listener_client), refused={name: "the last host"})
        merging = block(cause="more", allowMerge=True)
        merged = listener_client.put(path(blocked), json=merging, headers={"Prefer": "wait=0"})
        heartbeat(listener_client, "jm", ackedRevision=revision_of(merged))
        (status,) = listener_client.get(f"{path(blocked)}/status").json()["listeners"]
        assert (status["applied"], status["refused"]) == (False, "the last host")
        again = listener_client.put(path(blocked), json=merging, headers={"Prefer": "wait=0"})
        assert (again.headers["blocklist-applied"], again.headers["blocklist-refused"]) == ("0/1", "jm")

    def test_a_block_conflicts_or_merges(self, listener_client: httpx.Client, blocked: str, name: str) -> None:
        block_as(listener_client, blocked, cause="x")
        refused = problem_of(listener_client.put(path(name), json=block(cause="y")), 409)
        assert refused["blockedNode"]["id"] == blocked
        many = problem_of(listener_client.put("/blocklist/nodes", json={name: block(cause="y")}), 409)
        assert {given: node["id"] for given, node in many["blockedNodes"].items()} == {name: blocked}
        merged = listener_client.put(path(name), json=block(cause="y", allowMerge=True))
        assert (merged.status_code, merged.json()["id"], merged.json()["cause"]) == (202, blocked, "x,y")
        several = listener_client.put("/blocklist/nodes", json={name: block(cause="z", allowMerge=True)})
        assert {given: (node["status"], node["id"]) for given, node in several.json().items()} == {name: (202, blocked)}
        assert {node_id: node["cause"] for node_id, node in current_list(listener_client)[1].items()} == {
            blocked: "x,y,z"
        }

    def test_the_fast_path_and_the_route_agree(self, listener_client: httpx.Client, blocked: str, name: str) -> None:
        block_as(listener_client, blocked)
        # A header that only the route understands.
        answers = [
            listener_client.put(path(name), json=block(cause="y", allowMerge=merge), headers=headers)
            for merge in (False, True)
            for headers in ({}, {"Prefer": "return=minimal"})
        ]
        fast, route, fast_merge, route_merge = answers
        assert (fast.status_code, fast.content) == (route.status_code, route.content)
        assert (fast_merge.status_code, fast_merge.content) == (route_merge.status_code, route_merge.content)

    def test_unblocking_frees_the_machine(self, listener_client: httpx.Client, blocked: str, name: str) -> None:
        block_as(listener_client, blocked)
        assert listener_client.delete(path(name)).status_code == 200
        assert current_list(listener_client)[1] == {}
        assert [listener_client.get(path(other)).status_code for other in (blocked, name)] == [404, 404]

    def test_wait_names_the_listener_that_refuses_the_block(
        self, listener_client: httpx.Client, blocked: str, name: str
    ) -> None:
        block_as(listener_client, blocked)
        register(listener_client, "jm")
        revision = current_list(listener_client)[0]
        heartbeat(listener_client, "jm", ackedRevision=revision, refused={blocked: "its last host"})
        again = listener_client.put(path(name), json=block(allowMerge=True), headers={"Prefer": "wait=1"})
        assert (again.headers["blocklist-applied"], again.headers["blocklist-refused"]) == ("0/1", "jm")


def test_unblocking_returns_the_name_that_was_blocked_except_on_the_path_of_the_flip(
    listener_client: httpx.Client,
) -> None:
    for route, expected in (("nodes", "n1.example.com"), ("node", None)):
        block_as(listener_client, "n1.example.com")
        answer = listener_client.delete(f"/blocklist/{route}/N1")
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers.get("Blocklist-Node") == expected


class TestShortNameOfSeveral:
    def test_reads_and_unblocking_are_refused_and_name_them(self, listener_client: httpx.Client) -> None:
        block_as(listener_client, *BOTH)
        for answer in (
            listener_client.get(path("n1")),
            listener_client.get(f"{path('n1')}/status"),
            listener_client.delete(path("N1")),
        ):
            problem = problem_of(answer, 409)
            assert problem["type"] == "urn:blocklist:problem:ambiguous-node"
            assert list(problem["blockedNodes"]) == BOTH
            assert "n1.a, n1.b" in problem["detail"]
        assert list(current_list(listener_client)[1]) == BOTH

    def test_a_block_of_it_is_a_node_of_its_own(self, listener_client: httpx.Client) -> None:
        block_as(listener_client, *BOTH, "n1")
        assert listener_client.delete(path("n1")).status_code == 200
        assert list(current_list(listener_client)[1]) == BOTH


class TestPage:
    def test_the_page_of_a_node_is_found_under_any_name(self, listener_client: httpx.Client) -> None:
        block_as(listener_client, "n1.example.com")
        shown = listener_client.get("/page/nodes/N1")
        assert (shown.status_code, "<h1>n1.example.com</h1>" in shown.text) == (200, True)
        assert "Unblock n1.example.com" in listener_client.get("/page/nodes/N1/unblock").text

    def test_a_short_name_of_several_names_them(self, listener_client: httpx.Client) -> None:
        block_as(listener_client, *BOTH)
        for page in ("", "/extend", "/unblock"):
            shown = listener_client.get(f"/page/nodes/n1{page}")
            assert (shown.status_code, "n1.a, n1.b" in shown.text) == (409, True)

    def test_a_form_with_one_machine_twice_is_refused(self, listener_client: httpx.Client) -> None:
        form = {"nodes": "n1 N1", "action": "mark", "cause": "disk", "ends": "for", "for": "2h", "until": ""}
        shown = listener_client.post("/page/block", data=form, headers={"Sec-Fetch-Site": "same-origin"})
        assert (shown.status_code, "mean the same machine" in shown.text) == (400, True)


class TestLog:
    @pytest.mark.parametrize(("blocked", "name"), [*NAMES[:3], ("N1", "n1.example.com"), ("n1.example.com", "N1")])
    def test_a_node_that_is_free_again_is_found(self, fresh_client: httpx.Client, blocked: str, name: str) -> None:
        block_as(fresh_client, blocked, "n10", "n1-b.example.com")
        for node_id in (blocked, "n10", "n1-b.example.com"):
            fresh_client.delete(path(node_id))
        if name != name.lower() or blocked in (blocked.lower(), blocked.upper()):
            assert fresh_client.get(f"{path(name)}/status").json()["id"] == blocked
            changes = fresh_client.get("/blocklist/changes", params={"node": name}).json()["changes"]
            assert [(change["type"], change["node"]["id"]) for change in changes] == [
                ("blocked", blocked),
                ("unblocked", blocked),
            ]


class TestEvidence:
    def test_it_merges_with_the_block_of_another_name_once(self, fresh_client: httpx.Client) -> None:
        block_as(fresh_client, "N1")
        self._report(fresh_client)
        wait_until(lambda: "2 applications" in fresh_client.get(path("n1")).json()["cause"])
        self._report(fresh_client, "n2")
        wait_until(lambda: fresh_client.get(path("n2")).status_code == 200)
        changes = fresh_client.get("/blocklist/changes").json()["changes"]
        assert [(change["type"], change["node"]["id"]) for change in changes] == [
            ("blocked", "N1"),
            ("merged", "N1"),
            ("blocked", "n2"),
        ]

    def test_unblocking_another_name_overrides_it(self, fresh_client: httpx.Client) -> None:
        self._report(fresh_client)
        wait_until(lambda: fresh_client.get(path("n1.example.com")).status_code == 200)
        assert fresh_client.delete(path("N1")).status_code == 200
        self._report(fresh_client)
        self._report(fresh_client, "n2")
        wait_until(lambda: fresh_client.get(path("n2")).status_code == 200)
        assert fresh_client.get(path("n1")).status_code == 404

    def _report(self, client: httpx.Client, *more: str) -> None:
        evidence = {name: {"kind": "excluded", "reason": "bad"} for name in ("n1.example.com", *more)}
        for application in ("a", "b"):
            if post_heartbeat(client, application).status_code != 200:
                register(client, application)
            hosts = {f"{application}:{i}": f"{application}-{i}" for i in range(10)}
            heartbeat(client, application, evidence=evidence, taskManagers=hosts)


class TestCommand:
    def test_is_blocked_is_right_for_the_name_of_this_machine(
        self, listener_client: httpx.Client, command: Command
    ) -> None:
        name = socket.gethostname()
        assert command.run("is-blocked", name).returncode == 1
        for spelled in (f"{name.partition('.')[0].upper()}.Example.com", name.partition(".")[0].title()):
            block_as(listener_client, spelled)
            assert command.stdout_of("is-blocked", name).startswith(f"{spelled} blocked ")
            listener_client.delete(path(spelled))

    def test_a_short_name_of_several_is_blocked_and_they_are_named(
        self, listener_client: httpx.Client, command: Command
    ) -> None:
        block_as(listener_client, *BOTH)
        lines = command.stdout_of("is-blocked", "n1").splitlines()
        assert [line.split()[0] for line in lines] == BOTH
        refused = command.run("unblock", "n1")
        assert refused.returncode == 1
        assert "n1 means 2 blocked nodes: n1.a, n1.b. Give the id of one of them." in refused.stderr
        assert "--merge" not in refused.stderr

    def test_every_subcommand_takes_any_name(self, listener_client: httpx.Client, command: Command) -> None:
        block_as(listener_client, "n1.example.com")
        assert "n1.example.com" in command.stdout_of("get", "N1")
        assert "n1.example.com blocked" in command.run("status", "N1").stderr
        assert "n1.example.com" in command.stdout_of("history", "N1")
        again = command.stdout_of("block", "N1", "-r", "disk", "--forever")
        assert again == "n1.example.com already blocked forever\n"
        merged = command.stdout_of("block", "N1", "-r", "heat", "--forever", "--merge")
        assert merged == "n1.example.com blocked forever, merged: disk,heat\n"
        assert command.stdout_of("unblock", "n1", "--dry-run") == "n1.example.com would be unblocked\n"
        assert command.run("unblock", "N1").returncode == 0
        assert command.run("is-blocked", "n1.example.com").returncode == 1


def test_the_log_is_found_under_a_known_address_or_another_name(listener_client: httpx.Client) -> None:
    register(listener_client, "rm", role=RM)
    addresses = ["10.71.2.7", "FE80::71:7"]
    heartbeat(listener_client, "rm", nodes=[{"id": "Logged-7.Rack.example", "addresses": addresses}])
    assert listener_client.get("/nodes/10.71.2.7").status_code == 200
    block_as(listener_client, "LOGGED-7.rack.example")
    assert listener_client.delete(path("LOGGED-7.rack.example")).status_code == 200
    for name in ["10.71.2.7", "fe80:0::71:7", "logged-7", "Logged-7.RACK.example"]:
        found = listener_client.get("/blocklist/changes", params={"node": name}).json()["changes"]
        assert [change["node"]["id"] for change in found] == ["LOGGED-7.rack.example"] * 2, name
    block_as(listener_client, "10.71.2.7")
    assert listener_client.delete(path("10.71.2.7")).status_code == 200
    found = listener_client.get("/blocklist/changes", params={"node": "logged-7"}).json()["changes"]
    assert [change["type"] for change in found] == ["blocked", "unblocked"] * 2
