"""A node that is not known: the change is made and says so, or is refused if asked."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from blocklist.model.claims import Role
from tests.integration.bodies import block, current_list
from tests.integration.command import Command
from tests.integration.conftest import StartInProcess
from tests.integration.databases import Databases
from tests.integration.in_process import InProcessService
from tests.integration.listeners import RM, heartbeat, register
from tests.integration.problems import problem_of
from tests.integration.secured import secured_in_process


@pytest.fixture
def service(start_in_process: StartInProcess) -> InProcessService:
    return start_in_process()


@pytest.fixture
def client(service: InProcessService) -> httpx.Client:
    return service.client()


@pytest.fixture
def cluster(client: httpx.Client) -> httpx.Client:
    """A Slurm manager knows n1 to n3, and a job runs on app-7.example.com."""
    register(client, "rm", role=RM)
    heartbeat(client, "rm", nodes=["n1", "n2", "n3"])
    register(client, "jm")
    heartbeat(client, "jm", taskManagers={"tm": "App-7.example.com"})
    return client


@pytest.fixture
def command(binaries: Path, service: InProcessService) -> Command:
    return Command(binaries, service.url)


def dry_run(client: httpx.Client, name: str) -> tuple[bool | None, str | None]:
    answer = client.put(f"/blocklist/nodes/{name}", params={"dryRun": "true"}, json=block(allowMerge=True))
    assert answer.status_code == 200
    [node] = answer.json()["nodes"]
    return node["known"], node["didYouMean"]


def block_several(client: httpx.Client, *names: str) -> dict[str, Any]:
    answer = client.put("/blocklist/nodes", json={name: block(allowMerge=True) for name in names})
    assert answer.status_code == 200
    return {name: (node.get("known", True), node.get("didYouMean")) for name, node in answer.json().items()}


class TestDryRun:
    @pytest.mark.parametrize("name", ["n1", "N2", "n3.example.com", "app-7", "APP-7.example.com"])
    def test_a_node_that_a_listener_reports_is_known_under_any_name(self, cluster: httpx.Client, name: str) -> None:
        assert dry_run(cluster, name) == (True, None)

    @pytest.mark.parametrize(
        ("name", "meant"),
        [
            ("n11", "n1"),
            ("1n", "n1"),
            ("m3", "n3"),
            ("ap-7", "App-7.example.com"),
            ("app-17.example.com", "App-7.example.com"),
            ("apq-7.exmple.com", "App-7.example.com"),
            ("something-else", None),
            ("10.0.0.7", None),
            ("x" * 253, None),
        ],
    )
    def test_an_unknown_node_has_the_most_similar_known_one(
        self, cluster: httpx.Client, name: str, meant: str | None
    ) -> None:
        assert dry_run(cluster, name) == (False, meant)
        assert name not in current_list(cluster)[1]

    def test_a_node_that_is_blocked_already_is_known(self, cluster: httpx.Client) -> None:
        cluster.put("/blocklist/nodes/n11", json=block())
        assert dry_run(cluster, "N11") == (True, None)

    def test_without_any_reported_node_nothing_is_known_about_it(self, client: httpx.Client) -> None:
        register(client, "jm")
        assert dry_run(client, "n11") == (None, None)
        assert block_several(client, "n11") == {"n11": (True, None)}

    def test_a_listener_that_left_knows_nothing(self, cluster: httpx.Client) -> None:
        cluster.delete("/listeners/rm")
        assert dry_run(cluster, "n1") == (False, None)


class TestBlock:
    def test_a_block_of_several_is_made_and_names_the_unknown_ones(self, cluster: httpx.Client) -> None:
        assert block_several(cluster, "n1", "n11", "zzz") == {
            "n1": (True, None),
            "n11": (False, "n1"),
            "zzz": (False, None),
        }
        assert list(current_list(cluster)[1]) == ["n1", "n11", "zzz"]

    def test_a_merge_says_nothing(self, cluster: httpx.Client) -> None:
        block_several(cluster, "n11")
        assert block_several(cluster, "n11") == {"n11": (True, None)}

    def test_a_thousand_unknown_nodes_are_answered_in_one_request(self, cluster: httpx.Client) -> None:
        several = block_several(cluster, *(f"unknown-node-{i}" for i in range(1000)))
        assert {known for known, _ in several.values()} == {False}


class TestStrict:
    @pytest.mark.parametrize("extra", [{}, {"dryRun": "true"}])
    def test_an_unknown_node_is_refused_and_nothing_changes(self, cluster: httpx.Client, extra: dict[str, str]) -> None:
        for path, body in (
            ("/blocklist/nodes/n11", block()),
            ("/blocklist/nodes", {"n1": block(), "n11": block()}),
        ):
            problem = problem_of(cluster.put(path, params={"strict": "true", **extra}, json=body), 409)
            assert problem["type"] == "urn:blocklist:problem:unknown-node"
            assert problem["detail"] == "n11 is not a known node; did you mean n1?"
        assert current_list(cluster)[1] == {}

    def test_several_unknown_nodes_are_all_named(self, cluster: httpx.Client) -> None:
        body = {"n1": block(), "n11": block(), "zzz": block()}
        problem = problem_of(cluster.put("/blocklist/nodes?strict=true", json=body), 409)
        assert problem["errors"] == ["n11 is not a known node; did you mean n1?", "zzz is not a known node."]

    def test_a_known_or_already_blocked_node_is_accepted(self, cluster: httpx.Client) -> None:
        assert cluster.put("/blocklist/nodes/n1?strict=true", json=block()).status_code == 201
        cluster.put("/blocklist/nodes/n11", json=block())
        again = cluster.put("/blocklist/nodes/N11?strict=true", json=block(cause="y", allowMerge=True))
        assert (again.status_code, again.json()["id"]) == (202, "n11")

    def test_without_any_reported_node_it_is_refused(self, client: httpx.Client) -> None:
        problem = problem_of(client.put("/blocklist/nodes/n1?strict=true", json=block()), 409)
        assert problem["detail"].startswith("No node is known")
        assert current_list(client)[1] == {}

    @pytest.mark.parametrize("query", ["strict=yes", "strict=true&strict=true", "Strict=true"])
    def test_another_value_is_refused(self, cluster: httpx.Client, query: str) -> None:
        problem_of(cluster.put(f"/blocklist/nodes/n1?{query}", json=block()), 400)

    def test_unblocking_has_no_such_parameter(self, cluster: httpx.Client) -> None:
        problem_of(cluster.delete("/blocklist/nodes/n1?strict=true"), 400)


class TestPage:
    def test_the_preview_names_unknown_nodes(self, cluster: httpx.Client) -> None:
        form = {"nodes": "n1 n11 zzz", "action": "mark", "cause": "disk", "ends": "for", "for": "2h", "until": ""}
        answer = cluster.post("/page/block", data=form, headers={"Sec-Fetch-Site": "same-origin"})
        assert answer.status_code == 200
        assert "n11 is not a known node; did you mean n1?" in answer.text
        assert "zzz is not a known node." in answer.text
        assert answer.text.count("is not a known node") == 2
        assert current_list(cluster)[1] == {}


class TestCommand:
    SENTENCE = "n11 is not a known node; did you mean n1?"

    def test_block_says_so_and_blocks(self, cluster: httpx.Client, command: Command) -> None:
        done = command.run("block", "n11", "n1", "zzz", "-r", "disk", "--forever", "--yes")
        assert (done.returncode, done.stderr) == (0, f"{self.SENTENCE}\nzzz is not a known node\n")
        assert list(current_list(cluster)[1]) == ["n1", "n11", "zzz"]

    def test_a_dry_run_says_so(self, cluster: httpx.Client, command: Command) -> None:
        done = command.run("block", "n11", "n2", "-r", "disk", "--dry-run")
        assert (done.returncode, done.stderr) == (0, f"{self.SENTENCE}\n")
        assert current_list(cluster)[1] == {}

    def test_strict_refuses_it(self, cluster: httpx.Client, command: Command) -> None:
        for arguments in ([], ["--dry-run"]):
            done = command.run("block", "n1", "n11", "-r", "disk", "--strict", "--yes", *arguments)
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr == (
                "Conflict: n11 is not a known node; did you mean n1?\n"
                "Nothing was changed. Leave out --strict to block them anyway.\n"
            )
        assert current_list(cluster)[1] == {}
        assert command.run("block", "n1", "-r", "disk", "--strict").returncode == 0


def test_a_jobs_token_alone_makes_no_node_known(tmp_path: Path, databases: Databases) -> None:
    """Otherwise it could invent the node that somebody mistypes. Two tokens, or a manager's, do."""
    with secured_in_process(tmp_path, databases) as service, ExitStack() as stack:

        def client_of(name: str, role: Role = Role.LISTENER) -> httpx.Client:
            return stack.enter_context(service.client(service.make_token(role, name)["token"]))

        job, other, manager = client_of("job"), client_of("other"), client_of("rm", Role.MANAGER)
        admin = stack.enter_context(service.client(service.admin))
        register(job, "job")
        heartbeat(job, "job", nodes=["n1", "n2", "n11"], taskManagers={"tm": "n1", "tm-2": "n11"})
        assert dry_run(admin, "n1") == (None, None)
        register(manager, "rm", role=RM)
        heartbeat(manager, "rm", nodes=["n3"])
        register(other, "other")
        heartbeat(other, "other", taskManagers={"tm": "n1.example.com"})
        assert {name: dry_run(admin, name) for name in ("n1", "n2", "n3", "n11")} == {
            "n1": (True, None),
            "n2": (False, "n3"),
            "n3": (True, None),
            "n11": (False, "n1.example.com"),
        }
        problem = problem_of(admin.put("/blocklist/nodes/n11?strict=true", json=block()), 409)
        assert problem["detail"] == "n11 is not a known node; did you mean n1.example.com?"
        heartbeat(other, "other", taskManagers={})
        assert dry_run(admin, "n1") == (False, "n3")
