"""Unblocking as one of several owners: only the caller's claim goes, and whoever still blocks the node is named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from blocklist import NotFoundError, __version__
from blocklist.client.client import BlocklistClient
from blocklist.model.claims import Role
from tests.integration.command import Command
from tests.integration.databases import Databases
from tests.integration.listeners import RM, heartbeat, register
from tests.integration.secured import SecuredInProcess, secured_in_process
from tests.integration.test_page_listener import facts
from tests.integration.test_page_tasks import cells

AsPerson = Callable[[str], Command]


@pytest.fixture
def secured(tmp_path: Path, databases: Databases) -> Iterator[SecuredInProcess]:
    nodes = tmp_path / "nodes.csv"
    others = "".join(f"w{number},\n" for number in [*range(4, 9), *range(10, 50)])
    nodes.write_text(f"id,labels\nw1,rack=r1\nw2,rack=r1\nw3,rack=r1\n{others}")
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


def test_the_page_names_the_owners_and_whoever_changed_the_block_last(
    secured: SecuredInProcess, as_person: AsPerson
) -> None:
    as_person("carol")
    with secured.client(secured.admin) as client:
        assert cells(client.get("/page/list?sort=node").text, "Owners") == ["anna, bob", "anna"]
        longer = {"action": "MARK_BLOCKED_AND_EVACUATE_TASKS", "cause": "Broken DIMM"}
        author = (
            client.put("/blocklist/nodes/w1/claims/bob", json=longer).raise_for_status().json()["claim"]["createdBy"]
        )
        assert cells(client.get("/page/list?sort=node").text, "Owners")[0] == f"anna, bob last change by {author}"
        assert facts(client.get("/page/nodes/w1/state").text)["Owners"] == f"anna, bob last change by {author}"


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
    done = as_person("carol").run("unblock", "w1", "--all-owners", "--yes")
    assert (done.returncode, done.stdout) == (0, "w1 unblocked\n")
    assert "anna, until" in done.stderr
    assert "bob, forever: Broken DIMM" in done.stderr
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


@pytest.mark.parametrize("options", [("-d", "5h"), ("-d", "1h", "--replace")])
def test_a_dry_run_of_extend_merges_nothing(
    secured: SecuredInProcess, as_person: AsPerson, options: tuple[str, ...]
) -> None:
    output = as_person("anna").stdout_of("extend", "w2", *options, "--dry-run")
    assert output.startswith("w2 would stay blocked until ")
    assert "merged" not in output
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


def claims_on(secured: SecuredInProcess, node: str) -> dict[str, dict[str, str]]:
    """The claims on a node, by owner."""
    with secured.client(secured.admin) as client:
        return {it["owner"]: it for it in client.get(f"/blocklist/nodes/{node}/claims").json()["claims"]}


@pytest.mark.parametrize(
    "arguments",
    [("block", "w1", "w2", "-r", "Kernel", "-d", "30m", "--replace"), ("extend", "w1", "w2", "-d", "30m", "--replace")],
    ids=["block", "extend"],
)
def test_ones_own_claim_may_be_shortened(
    secured: SecuredInProcess, as_person: AsPerson, arguments: tuple[str, ...]
) -> None:
    anna, before = as_person("anna"), claims_on(secured, "w1")
    preview = anna.stdout_of(*arguments, "--dry-run")
    assert re.match(r"w1 would (be|stay) blocked forever", preview)
    assert claims_on(secured, "w1") == before
    first, second = anna.stdout_of(*arguments).splitlines()
    assert re.fullmatch(
        r"w1 now blocked until .* \(in 30m\) by you; it stays blocked by bob, forever: Broken DIMM", first
    )
    assert re.fullmatch(r"w2 now blocked until .* \(in 30m\)", second)
    after = claims_on(secured, "w1")
    assert after["bob"] == before["bob"]
    assert int(after["anna"]["endTimestamp"]) < int(before["anna"]["endTimestamp"])
    assert after["anna"]["startTimestamp"] == before["anna"]["startTimestamp"]
    (change,) = anna.stdout_of("history", "w2", "--type", "narrowed", "-o", "name").splitlines()
    assert change == "w2"


def test_ones_own_claim_may_be_weakened(secured: SecuredInProcess, as_person: AsPerson) -> None:
    anna = as_person("anna")
    anna.stdout_of("block", "w2", "-r", "Kernel", "--evacuate", "--forever", "--merge")
    assert anna.stdout_of("block", "w2", "-r", "Fan", "--forever", "--replace") == "w2 now blocked forever\n"
    assert claims_on(secured, "w2")["anna"]["action"] == "MARK_BLOCKED"


def test_without_a_claim_there_is_nothing_to_replace(secured: SecuredInProcess, as_person: AsPerson) -> None:
    before = claims_on(secured, "w1")
    done = as_person("carol").run("extend", "w1", "-d", "30m", "--replace")
    assert done.returncode == 1
    assert "w1 is unchanged: you have no claim on it; it is blocked by anna, until" in done.stdout
    assert claims_on(secured, "w1") == before
    as_person("carol").stdout_of("block", "w1", "-r", "Fan", "-d", "30m", "--replace")
    assert {name: it for name, it in claims_on(secured, "w1").items() if name != "carol"} == before


def test_merge_and_replace_are_two_things(as_person: AsPerson) -> None:
    done = as_person("anna").run("block", "w1", "-r", "x", "--merge", "--replace")
    assert (done.returncode, "only one of --merge and --replace" in done.stderr) == (2, True)


def test_the_selected_nodes_are_replaced_by_the_api(
    secured: SecuredInProcess, as_person: AsPerson, tokens: dict[str, str]
) -> None:
    before = claims_on(secured, "w1")
    body = {"action": "MARK_BLOCKED", "cause": "Fan", "endTimestamp": before["anna"]["endTimestamp"]}
    with secured.client(tokens["anna"]) as client:
        answer = client.put("/blocklist/nodes", params={"selector": "rack=r1", "replace": "true"}, json=body)
        assert {name: it["status"] for name, it in answer.json().items()} == {"w1": 202, "w2": 202, "w3": 201}
        assert client.put("/blocklist/nodes/w1", params={"replace": "true"}, json=body).status_code == 202
        assert client.put("/blocklist/nodes/w1", params={"replace": "yes"}, json=body).status_code == 400
        assert client.put("/claims/x", params={"replace": "true"}, json={"w1": body}).status_code == 400
    assert claims_on(secured, "w1")["bob"] == before["bob"]
    assert claims_on(secured, "w1")["anna"]["cause"] == "Fan"


class TestJson:
    """-o json: one document at the end, of one shape."""

    MEMBERS = frozenset({"command", "dryRun", "ok", "nodes", "applied", "notes", "error"})

    def document(self, command: Command, *arguments: str, code: int = 0) -> dict[str, Any]:
        done = command.run(*arguments, "-o", "json")
        assert done.returncode == code, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        assert set(document) - {"belowMinimum"} == self.MEMBERS
        assert (document["command"], document["ok"]) == (arguments[0], code == 0)
        return document

    def results(self, document: dict[str, Any]) -> dict[str, str]:
        assert all({"name", "result", "message", "node"} <= set(it) for it in document["nodes"])
        return {it["name"]: it["result"] for it in document["nodes"]}

    def test_block(self, as_person: AsPerson) -> None:
        anna = as_person("anna")
        made = self.document(anna, "block", "w2", "w3", "-r", "Kernel upgrade", "-d", "2h")
        assert self.results(made) == {"w2": "already-blocked", "w3": "blocked"}
        assert made["nodes"][1]["node"]["cause"] == "Kernel upgrade"
        refused = self.document(anna, "block", "w3", "w4", "-r", "Fan", "--forever", code=1)
        assert self.results(refused) == {"w3": "conflict", "w4": "not-changed"}
        assert refused["nodes"][0]["message"].startswith("Node w3 is already blocked until ")
        assert "allowMerge" not in refused["nodes"][0]["message"]
        assert refused["error"]["type"] == "conflict"
        waited = self.document(anna, "block", "w4", "-r", "Fan", "--forever", "--wait", "1s", code=1)
        assert waited["applied"] == {
            "applied": 0,
            "of": 0,
            "waitFor": "100%",
            "enough": False,
            "refused": {},
            "pending": {},
            "notHere": [],
            "superseded": [],
            "observing": [],
        }

    def test_unblock(self, as_person: AsPerson) -> None:
        anna = as_person("anna")
        tried = self.document(anna, "unblock", "w1", "--dry-run")
        assert (tried["dryRun"], self.results(tried)) == (True, {"w1": "stays-blocked"})
        assert {it["owner"]: it["removed"] for it in tried["nodes"][0]["claims"]} == {"anna": True, "bob": False}
        done = self.document(anna, "unblock", "w1", "w2", "w3", "w9")
        assert self.results(done) == {
            "w1": "stays-blocked",
            "w2": "unblocked",
            "w3": "not-blocked",
            "w9": "not-blocked",
        }
        refused = self.document(anna, "unblock", "w1", code=1)
        assert self.results(refused) == {"w1": "not-own"}
        for entry, *_ in (done["nodes"], refused["nodes"]):
            assert (entry["node"]["cause"], [it["owner"] for it in entry["claims"]]) == ("Broken DIMM", ["bob"])
        asked = self.document(anna, "unblock", "w1", "--all-owners", code=1)
        assert self.results(asked) == {"w1": "not-changed"}
        assert asked["notes"][0].startswith("w1 is blocked by bob, forever: Broken DIMM")

    def test_extend(self, as_person: AsPerson) -> None:
        anna = as_person("anna")
        done = self.document(anna, "extend", "w1", "w2", "w3", "-d", "5h", code=1)
        assert self.results(done) == {"w1": "already-blocked", "w2": "extended", "w3": "not-blocked"}
        shortened = self.document(anna, "extend", "w1", "-d", "1h", "--replace")
        assert self.results(shortened) == {"w1": "replaced"}
        assert [it["owner"] for it in shortened["nodes"][0]["claims"]] == ["bob"]

    def test_drain(self, as_person: AsPerson) -> None:
        held = self.document(as_person("anna"), "drain", "w3", "-r", "Kernel", "--timeout", "1", code=1)
        assert self.results(held) == {"w3": "held"}
        assert held["nodes"][0]["holders"][0]["hold"] == "unknown"

    def test_a_service_that_is_away(self, binaries: Path) -> None:
        away = Command(binaries, "http://127.0.0.1:9")
        for command in (("block", "w1", "-r", "x"), ("unblock", "w1"), ("extend", "w1"), ("drain", "w1")):
            document = self.document(away, *command, code=3)
            assert document["error"]["type"] == "unavailable"
            assert self.results(document) == {"w1": "not-changed"}


class TestIdentity:
    def test_whoami(self, secured: SecuredInProcess, binaries: Path, tokens: dict[str, str]) -> None:
        text = Command(binaries, secured.url, token=tokens["anna"]).stdout_of("whoami")
        assert [line.split()[:2] for line in text.splitlines()][:4] == [
            ["NAME", "anna"],
            ["ROLE", "operator"],
            ["OWNER", "anna,"],
            ["OWNERS", "all"],
        ]
        restricted = secured.make_token(Role.OPERATOR, "mirror", owners=["cordon/*"])["token"]
        shown = json.loads(Command(binaries, secured.url, token=restricted).stdout_of("whoami", "-o", "json"))
        assert (shown["name"], shown["owner"], shown["owners"]) == ("mirror", "mirror", ["cordon/*"])

    def test_version(self, secured: SecuredInProcess, binaries: Path, tokens: dict[str, str]) -> None:
        command = Command(binaries, secured.url, token=tokens["anna"])
        lines = command.stdout_of("version").splitlines()
        assert [line.split()[:2] for line in lines] == [["CLIENT", f"{__version__},"], ["SERVICE", f"{__version__},"]]
        away = Command(binaries, "http://127.0.0.1:9").run("version", "-o", "json")
        shown = json.loads(away.stdout)
        assert (away.returncode, shown["client"]["version"], shown["service"]) == (3, __version__, None)
        assert "cannot be reached" in away.stderr or "127.0.0.1:9" in away.stderr


def test_waiting_for_the_managers_alone(secured: SecuredInProcess, as_person: AsPerson) -> None:
    anna, wait = as_person("anna"), ("--wait", "1s", "--wait-for")
    with secured.client(secured.admin) as client:
        register(client, "gc", leaseSeconds=3600)
        assert anna.run("block", "w3", "-r", "Fan", *wait, "managers").stdout.endswith(
            "There are no live managers, so nothing has applied it.\n"
        )
        register(client, "yarn", role=RM, leaseSeconds=3600)
        heartbeat(client, "yarn", ackedRevision=int(client.get("/blocklist").headers["blocklist-revision"]))
    repeated = ("block", "w3", "-r", "Fan", "-d", "1h", *wait)
    assert anna.stdout_of(*repeated, "managers").endswith("Applied by 1 manager.\n")
    assert anna.stdout_of(*repeated, "50%").endswith("Applied by 1 of 2; pending: gc\n")
    assert anna.run(*repeated, "51%").returncode == 1
    gone = anna.run("unblock", "w9", "w3", *wait, "managers")
    assert (gone.returncode, gone.stdout.splitlines()[-1]) == (1, "Applied by 0 of 1 managers; pending: yarn")


def test_status_names_only_those_that_are_pending(
    secured: SecuredInProcess, as_person: AsPerson, tokens: dict[str, str]
) -> None:
    anna = as_person("anna")
    with secured.client(secured.admin) as client:
        unheard = anna.run("status", "w1", "w2", "--pending")
        assert (unheard.stdout, unheard.stderr) == ("", "There is no live listener that could apply it.\n")
        for name in ("etl", "idle"):
            register(client, name, leaseSeconds=3600)
        heartbeat(client, "etl", ackedRevision=int(client.get("/blocklist").headers["blocklist-revision"]))
        assert anna.stdout_of("status", "w1", "--pending", "-o", "name") == "idle\n"
        shown = json.loads(anna.stdout_of("status", "w1", "--pending", "-o", "json"))
        assert [it["id"] for it in shown["listeners"]] == ["idle"]
        assert anna.stdout_of("status", "w1", "w2", "--pending", "-o", "name") == "w1\nw2\n"
        rows = anna.stdout_of("status", "w1", "w2", "--pending", "--no-headers").splitlines()
        assert [row.split() for row in rows] == [[name, "yes", "1/2", "unknown", "-"] for name in ("w1", "w2")]
        heartbeat(client, "idle", ackedRevision=int(client.get("/blocklist").headers["blocklist-revision"]))
        for nodes in (["w1"], ["w1", "w2"]):
            done = anna.run("status", *nodes, "--pending")
            assert (done.stdout, "Every live listener has applied it." in done.stderr) == ("", True)
