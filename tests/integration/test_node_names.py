"""A machine is one node under all its names, wherever a name is given."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest

from tests.integration.bodies import block, current_list
from tests.integration.command import Command
from tests.integration.conftest import StartInProcess
from tests.integration.in_process import InProcessService, RunningClock
from tests.integration.listeners import RM, heartbeat, post_heartbeat, register
from tests.integration.problems import problem_of
from tests.integration.process import http_client

NAMES = [("N1.Example.com", "n1"), ("10.0.0.7", "::ffff:10.0.0.7")]
"""Others are in `tests/unit/test_node_lookup.py`."""
BOTH = ["n1.a", "n1.b"]


@pytest.fixture
def service(start_in_process: StartInProcess) -> InProcessService:
    return start_in_process(clock=RunningClock())


@pytest.fixture
def client(service: InProcessService) -> httpx.Client:
    return service.client()


@pytest.fixture
def command(binaries: Path, service: InProcessService) -> Command:
    return Command(binaries, service.url)


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
    def test_the_log_is_found_after_the_block(self, client: httpx.Client, blocked: str, name: str) -> None:
        block_as(client, blocked)
        assert client.delete(path(blocked)).status_code == 200
        found = client.get("/blocklist/changes", params={"node": name, "since": 0}).json()["changes"]
        assert [(change["type"], change["node"]["id"]) for change in found][-2:] == [
            ("blocked", blocked),
            ("unblocked", blocked),
        ]
        assert len({change["revision"] for change in found}) == len(found)
        assert client.get(f"{path(name)}/status").json()["id"] == blocked

    def test_the_fast_path_and_the_route_agree(
        self, service: InProcessService, client: httpx.Client, blocked: str, name: str
    ) -> None:
        block_as(client, blocked)
        with http_client(service.url) as at_port:
            # A header that only the route understands.
            answers = [
                at_port.put(path(name), json=block(cause="y", allowMerge=merge), headers=headers)
                for merge in (False, True)
                for headers in ({}, {"Prefer": "return=minimal"})
            ]
        fast, route, fast_merge, route_merge = answers
        assert (fast.status_code, fast.content) == (route.status_code, route.content)
        assert (fast_merge.status_code, fast_merge.content) == (route_merge.status_code, route_merge.content)

    def test_wait_names_the_listener_that_refuses_the_block(
        self, client: httpx.Client, blocked: str, name: str
    ) -> None:
        block_as(client, blocked)
        register(client, "jm")
        revision = current_list(client)[0]
        heartbeat(client, "jm", ackedRevision=revision, refused={blocked: "its last host"})
        again = client.put(path(name), json=block(allowMerge=True), headers={"Prefer": "wait=1"})
        assert (again.headers["blocklist-applied"], again.headers["blocklist-refused"]) == ("0/1", "jm")


def test_unblocking_returns_the_name_that_was_blocked_except_on_the_path_of_the_flip(
    client: httpx.Client,
) -> None:
    for route, expected in (("nodes", "n1.example.com"), ("node", None)):
        block_as(client, "n1.example.com")
        answer = client.delete(f"/blocklist/{route}/N1")
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers.get("Blocklist-Node") == expected


class TestShortNameOfSeveral:
    def test_reads_and_unblocking_are_refused_and_name_them(self, client: httpx.Client) -> None:
        block_as(client, *BOTH)
        for answer in (
            client.get(path("n1")),
            client.get(f"{path('n1')}/status"),
            client.delete(path("N1")),
        ):
            problem = problem_of(answer, 409)
            assert problem["type"] == "urn:blocklist:problem:ambiguous-node"
            assert list(problem["blockedNodes"]) == BOTH
            assert "n1.a, n1.b" in problem["detail"]
        assert list(current_list(client)[1]) == BOTH


class TestPage:
    def test_the_page_of_a_node_is_found_under_any_name(self, client: httpx.Client) -> None:
        block_as(client, "n1.example.com")
        shown = client.get("/page/nodes/N1")
        assert (shown.status_code, "<h1>n1.example.com</h1>" in shown.text) == (200, True)
        assert "Unblock n1.example.com" in client.get("/page/nodes/N1/unblock").text

    def test_a_short_name_of_several_names_them(self, client: httpx.Client) -> None:
        block_as(client, *BOTH)
        for page in ("", "/extend", "/unblock"):
            shown = client.get(f"/page/nodes/n1{page}")
            assert (shown.status_code, "n1.a, n1.b" in shown.text) == (409, True)

    def test_a_form_with_one_machine_twice_is_refused(self, client: httpx.Client) -> None:
        form = {
            "nodes": "n1 n1.example.com",
            "action": "mark",
            "cause": "disk",
            "ends": "for",
            "for": "2h",
            "until": "",
        }
        shown = client.post("/page/block", data=form, headers={"Sec-Fetch-Site": "same-origin"})
        assert (shown.status_code, "mean the same machine" in shown.text) == (400, True)


class TestLog:
    @pytest.mark.parametrize(
        ("blocked", "name"),
        [
            ("N1.Example.com", "n1"),
            ("n1", "N1.example.com"),
            ("n1", "N1"),
            ("N1", "n1.example.com"),
            ("n1.example.com", "N1"),
        ],
    )
    def test_a_node_that_is_free_again_is_found(self, client: httpx.Client, blocked: str, name: str) -> None:
        block_as(client, blocked, "n10", "n1-b.example.com")
        for node_id in (blocked, "n10", "n1-b.example.com"):
            client.delete(path(node_id))
        if name != name.lower() or blocked in (blocked.lower(), blocked.upper()):
            assert client.get(f"{path(name)}/status").json()["id"] == blocked
            changes = client.get("/blocklist/changes", params={"node": name}).json()["changes"]
            assert [(change["type"], change["node"]["id"]) for change in changes] == [
                ("blocked", blocked),
                ("unblocked", blocked),
            ]


class TestEvidence:
    def test_it_merges_with_the_block_of_another_name_once(
        self, service: InProcessService, client: httpx.Client
    ) -> None:
        block_as(client, "N1")
        self._report(client)
        service.until(lambda: "2 applications" in client.get(path("n1")).json()["cause"])
        self._report(client, "n2")
        service.until(lambda: client.get(path("n2")).status_code == 200)
        changes = client.get("/blocklist/changes").json()["changes"]
        assert [(change["type"], change["node"]["id"]) for change in changes] == [
            ("blocked", "N1"),
            ("merged", "N1"),
            ("blocked", "n2"),
        ]

    def test_unblocking_another_name_overrides_it(self, service: InProcessService, client: httpx.Client) -> None:
        self._report(client)
        service.until(lambda: client.get(path("n1.example.com")).status_code == 200)
        assert client.delete(path("N1")).status_code == 200
        self._report(client)
        self._report(client, "n2")
        service.until(lambda: client.get(path("n2")).status_code == 200)
        assert client.get(path("n1")).status_code == 404

    def _report(self, client: httpx.Client, *more: str) -> None:
        evidence = {name: {"kind": "excluded", "reason": "bad"} for name in ("n1.example.com", *more)}
        for application in ("a", "b"):
            if post_heartbeat(client, application).status_code != 200:
                register(client, application)
            hosts = {f"{application}:{i}": f"{application}-{i}" for i in range(10)}
            heartbeat(client, application, evidence=evidence, taskManagers=hosts)


class TestCommand:
    def test_is_blocked_is_right_for_the_name_of_this_machine(self, client: httpx.Client, command: Command) -> None:
        name = socket.gethostname()
        assert command.run("is-blocked", name).returncode == 1
        for spelled in (f"{name.partition('.')[0].upper()}.Example.com", name.partition(".")[0].title()):
            block_as(client, spelled)
            assert command.stdout_of("is-blocked", name).startswith(f"{spelled} blocked ")
            client.delete(path(spelled))

    def test_a_short_name_of_several_is_blocked_and_they_are_named(
        self, client: httpx.Client, command: Command
    ) -> None:
        block_as(client, *BOTH)
        lines = command.stdout_of("is-blocked", "n1").splitlines()
        assert [line.split()[0] for line in lines] == BOTH
        refused = command.run("unblock", "n1")
        assert refused.returncode == 1
        assert "n1 means 2 blocked nodes: n1.a, n1.b. Give the id of one of them." in refused.stderr
        assert "--merge" not in refused.stderr

    def test_every_subcommand_takes_any_name(self, client: httpx.Client, command: Command) -> None:
        block_as(client, "n1.example.com")
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


def test_the_log_is_found_under_a_known_address_or_another_name(client: httpx.Client) -> None:
    register(client, "rm", role=RM)
    addresses = ["10.71.2.7", "FE80::71:7"]
    heartbeat(client, "rm", nodes=[{"id": "Logged-7.Rack.example", "addresses": addresses}])
    assert client.get("/nodes/10.71.2.7").status_code == 200
    block_as(client, "LOGGED-7.rack.example")
    assert client.delete(path("LOGGED-7.rack.example")).status_code == 200
    for name in ["10.71.2.7", "fe80:0::71:7", "logged-7", "Logged-7.RACK.example"]:
        found = client.get("/blocklist/changes", params={"node": name}).json()["changes"]
        assert [change["node"]["id"] for change in found] == ["LOGGED-7.rack.example"] * 2, name
    block_as(client, "10.71.2.7")
    assert client.delete(path("10.71.2.7")).status_code == 200
    found = client.get("/blocklist/changes", params={"node": "logged-7"}).json()["changes"]
    assert [change["type"] for change in found] == ["blocked", "unblocked"] * 2
