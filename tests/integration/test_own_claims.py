"""Unblocking as one of several owners: only the caller's claim goes, and whoever still blocks the node is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blocklist import NotFoundError
from blocklist.client.client import BlocklistClient
from blocklist.model.roles import Role
from tests.integration.command import Command
from tests.integration.databases import Databases
from tests.integration.secured import SecuredInProcess, secured_in_process

AsPerson = Callable[[str], Command]


@pytest.fixture
def secured(tmp_path: Path, databases: Databases) -> Iterator[SecuredInProcess]:
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("id,labels\nw1,rack=r1\nw2,rack=r1\nw3,rack=r1\nw4,\nw5,\n")
    with secured_in_process(tmp_path, databases, nodes_file=str(nodes)) as secured:
        yield secured


@pytest.fixture
def tokens(secured: SecuredInProcess) -> dict[str, str]:
    return {name: secured.make_token(Role.OPERATOR, name)["token"] for name in ("anna", "bob", "carol")}


@pytest.fixture
def as_person(secured: SecuredInProcess, binaries: Path, tokens: dict[str, str]) -> AsPerson:
    """The command of a person. anna and bob block w1, and anna alone w2."""

    def command(name: str) -> Command:
        return Command(binaries, secured.url, token=tokens[name])

    command("anna").stdout_of("block", "w1", "w2", "-r", "Kernel upgrade", "-d", "2h")
    command("bob").stdout_of("block", "w1", "-r", "Broken DIMM", "--forever", "--merge")
    return command


def blocked(secured: SecuredInProcess) -> set[str]:
    with secured.client(secured.admin) as client:
        return set(client.get("/blocklist").json())


def test_only_the_own_claim_goes(secured: SecuredInProcess, as_person: AsPerson) -> None:
    output = as_person("anna").stdout_of("unblock", "w1", "w2")
    assert output.splitlines() == ["w1 stays blocked: bob, forever: Broken DIMM", "w2 unblocked"]
    assert blocked(secured) == {"w1"}


def test_a_node_that_others_block_is_not_blocked_again(as_person: AsPerson) -> None:
    """Also where the last node, whose request would have waited, is not the caller's."""
    as_person("carol").stdout_of("block", "w3", "-r", "Fan", "--forever")
    done = as_person("anna").run("unblock", "w1", "w3", "--wait", "1s")
    assert "w1 stays blocked: bob, forever: Broken DIMM" in done.stdout
    assert "w3 stays blocked: you have no claim on it" in done.stdout
    assert "is blocked again" not in done.stdout


def test_without_a_claim_nothing_changes(secured: SecuredInProcess, as_person: AsPerson) -> None:
    done = as_person("carol").run("unblock", "w1")
    assert done.returncode == 1
    assert "you have no claim on it; it is blocked by anna, until" in done.stdout
    assert "bob, forever: Broken DIMM" in done.stdout
    assert "--all-owners" in done.stdout
    assert blocked(secured) == {"w1", "w2"}


def test_all_owners_are_named_before_they_lose_their_claims(secured: SecuredInProcess, as_person: AsPerson) -> None:
    done = as_person("carol").run("unblock", "w1", "--all-owners")
    assert done.returncode == 1
    assert "bob, forever: Broken DIMM" in done.stderr
    assert "--yes" in done.stderr
    assert blocked(secured) == {"w1", "w2"}
    assert as_person("carol").stdout_of("unblock", "w1", "--all-owners", "--yes") == "w1 unblocked\n"
    assert blocked(secured) == {"w2"}


@pytest.mark.parametrize(("answer", "left"), [("y\n", {"w2"}), ("\n", {"w1", "w2"})])
def test_on_a_terminal_it_asks(
    secured: SecuredInProcess, as_person: AsPerson, monkeypatch: pytest.MonkeyPatch, answer: str, left: set[str]
) -> None:
    command = as_person("carol")
    monkeypatch.setattr("blocklist.cli.messages.is_interactive", lambda: True)
    done = command.run("unblock", "w1", "--all-owners", stdin=answer)
    assert "Remove the claims of all owners? [y/N]" in done.stderr
    assert blocked(secured) == left


def test_only_claims_of_others_need_a_question(secured: SecuredInProcess, as_person: AsPerson) -> None:
    assert "anna, until" in as_person("carol").run("unblock", "w2", "--all-owners").stderr
    assert blocked(secured) == {"w1", "w2"}
    assert as_person("anna").stdout_of("unblock", "w2", "--all-owners") == "w2 unblocked\n"


def test_the_dry_run_names_each_claim(as_person: AsPerson, secured: SecuredInProcess) -> None:
    own = as_person("anna").stdout_of("unblock", "w1", "--dry-run")
    assert own.startswith("w1 would stay blocked\n")
    assert "  removed: anna, until" in own
    assert "  stays: bob, forever: Broken DIMM" in own
    everybody = as_person("anna").stdout_of("unblock", "w1", "--all-owners", "--dry-run")
    assert everybody.count("  removed: ") == 2
    assert blocked(secured) == {"w1", "w2"}


def test_a_conflict_names_the_others(as_person: AsPerson) -> None:
    done = as_person("carol").run("block", "w1", "-r", "Fan", "-d", "1h")
    assert done.returncode == 1
    assert done.stderr.startswith("Conflict: Node w1 is already blocked without end by anna, bob (")


def test_a_selector_frees_what_the_caller_blocks(
    secured: SecuredInProcess, as_person: AsPerson, tokens: dict[str, str]
) -> None:
    with secured.client(tokens["bob"]) as client:
        answer = client.delete("/blocklist/nodes", params={"selector": "rack=r1", "owner": "me"})
    assert {name: entry["status"] for name, entry in answer.json().items()} == {"w1": 200, "w2": 404, "w3": 404}
    assert blocked(secured) == {"w1", "w2"}


def test_the_api_refuses_another_owner(secured: SecuredInProcess, tokens: dict[str, str], as_person: AsPerson) -> None:
    with secured.client(tokens["carol"]) as client:
        assert client.delete("/blocklist/nodes/w1", params={"owner": "bob"}).status_code == 400
        assert client.delete("/blocklist/nodes/w1", params={"owner": "me"}).status_code == 404
    with BlocklistClient(secured.url, token=tokens["carol"]) as carol, pytest.raises(NotFoundError):
        carol.unblock_node("w1", only_own=True)
    assert blocked(secured) == {"w1", "w2"}


def test_without_owner_a_delete_frees_the_node(
    secured: SecuredInProcess, tokens: dict[str, str], as_person: AsPerson
) -> None:
    with secured.client(tokens["carol"]) as client:
        answer = client.delete("/blocklist/nodes/w1")
    assert (answer.status_code, answer.content) == (200, b"")
    assert blocked(secured) == {"w2"}
