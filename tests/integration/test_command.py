"""The command `blocklist` with a real service: subcommands, exit codes, stdout and stderr."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from blocklist import BlocklistClient
from blocklist.model.claims import Role
from blocklist.model.evidence import Finding, FindingKind
from blocklist.model.listener import ListenerRole, Registration, Report
from tests.integration.bodies import now_ms
from tests.integration.command import Command, interrupt
from tests.integration.conftest import Start, StartInProcess
from tests.integration.fake_servers import SERVICE_HEADERS, fake_server, http_response, respond
from tests.integration.in_process import InProcessService, RunningClock
from tests.integration.process import ROOT, ServiceProcess, free_port, wait_until
from tests.integration.receiver import receiving

DEFAULT = "in 4h"


@pytest.fixture
def fresh(start_in_process: StartInProcess) -> InProcessService:
    return start_in_process(clock=RunningClock())


@pytest.fixture
def fresh_command(binaries: Path, fresh: InProcessService) -> Command:
    """With a service of its own."""
    return Command(binaries, fresh.url)


@pytest.fixture
def blocklist(service: ServiceProcess) -> Iterator[BlocklistClient]:
    with BlocklistClient(service.url, timeout=30) as client:
        yield client


def connect(url: str) -> BlocklistClient:
    return BlocklistClient(url, timeout=30)


class TestBlock:
    def test_the_output_shows_until_when_the_node_is_blocked(
        self, command: Command, blocklist: BlocklistClient, node_id: str
    ) -> None:
        output = command.stdout_of("block", node_id, "-r", "Hot machine")
        assert output.startswith(f"{node_id} blocked until 20")
        assert output.endswith(f" UTC ({DEFAULT})\n")
        node = blocklist.get(node_id)
        assert node.cause == "Hot machine"
        assert node.action.name == "MARK_BLOCKED"
        assert abs(node.end - node.start - 4 * 3_600_000) < 60_000

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            (["-d", "90s"], "(in 1m 30s)"),
            (["--until", "2099-12-31T23:00:00Z"], "until 2099-12-31 23:00:00 UTC"),
            (["--forever"], "blocked forever"),
            (["-d", "forever", "--evacuate"], "blocked forever, evacuating its tasks"),
        ],
    )
    def test_the_end_and_the_action_are_options(
        self, command: Command, node_id: str, options: list[str], expected: str
    ) -> None:
        assert expected in command.stdout_of("block", node_id, "-r", "disk", *options)

    def test_the_default_duration_is_a_setting(self, command: Command, node_id: str) -> None:
        output = command.stdout_of("block", node_id, "-r", "disk", BLOCKLIST_DEFAULT_DURATION="forever")
        assert output == f"{node_id} blocked forever\n"
        done = command.run("block", node_id, "-r", "disk", BLOCKLIST_DEFAULT_DURATION="soon")
        assert (done.returncode, "BLOCKLIST_DEFAULT_DURATION" in done.stderr) == (2, True)

    def test_without_one_the_default_duration_is_that_of_the_service(
        self, binaries: Path, start: Start, node_id: str
    ) -> None:
        command = Command(binaries, start(default_duration="36h").url)
        assert "(in 1d 12h)" in command.stdout_of("block", node_id, "-r", "disk")
        assert "DURATION  1d 12h" in command.stdout_of("config", "check")

    def test_ranges_and_standard_input(self, command: Command, blocklist: BlocklistClient, node_id: str) -> None:
        output = command.stdout_of(
            "block", f"{node_id}-[08-10]", "-", "-r", "disk", stdin=f" {node_id}-a\n{node_id}-[b,c]\n\n"
        )
        names = [f"{node_id}-{end}" for end in ("08", "09", "10", "a", "b", "c")]
        assert [line.partition(" ")[0] for line in output.splitlines()] == names
        revisions = [entry.revision for entry in blocklist.listing().nodes if entry.node.id in names]
        assert None not in revisions
        assert max(filter(None, revisions)) - min(filter(None, revisions)) == 5

    def test_a_repeat_succeeds_and_changes_nothing(self, command: Command, node_id: str) -> None:
        first = ("block", node_id, "-r", "disk", "-d", "4h")
        command.stdout_of(*first)
        assert command.stdout_of(*first).startswith(f"{node_id} already blocked until ")
        assert command.stdout_of("block", node_id, "-r", "disk", "-d", "1h").startswith(f"{node_id} already blocked")
        assert len(command.stdout_of("history", node_id, "-o", "jsonl").splitlines()) == 1

    def test_nodes_that_are_already_blocked_do_not_prevent_blocking_the_others(
        self, command: Command, node_id: str
    ) -> None:
        command.stdout_of("block", f"{node_id}-2", "-r", "disk", "--forever")
        output = command.stdout_of("block", f"{node_id}-[1-3]", "-r", "disk", "--forever").splitlines()
        assert output == [
            f"{node_id}-1 blocked forever",
            f"{node_id}-2 already blocked forever",
            f"{node_id}-3 blocked forever",
        ]

    def test_a_conflict_rejects_all_nodes(self, command: Command, blocklist: BlocklistClient, node_id: str) -> None:
        command.stdout_of("block", f"{node_id}-1", "-r", "disk")
        done = command.run("block", f"{node_id}-[1-2]", "-r", "memory")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"Conflict: Node {node_id}-1 is already blocked until ")
        assert "--merge" in done.stderr
        assert f"{node_id}-2" not in blocklist.snapshot().nodes

    def test_a_merge_shows_the_merged_causes(self, command: Command, node_id: str) -> None:
        command.stdout_of("block", node_id, "-r", "disk", "--forever")
        output = command.stdout_of("block", node_id, "-r", "memory", "--merge", "--evacuate")
        assert output == f"{node_id} blocked forever, evacuating its tasks, merged: disk,memory\n"

    def test_a_dry_run_changes_nothing(self, command: Command, blocklist: BlocklistClient, node_id: str) -> None:
        revision = blocklist.snapshot().revision
        assert "would be blocked until" in command.stdout_of("block", f"{node_id}-[1-2]", "-r", "disk", "--dry-run")
        assert not {f"{node_id}-1", f"{node_id}-2"} & set(blocklist.snapshot().nodes)
        blocklist.block(node_id, "disk")
        would = f"{node_id} would be unblocked\n"
        assert command.stdout_of("unblock", node_id, "--dry-run") == would
        assert command.stdout_of("block", node_id, "-r", "disk", "--dry-run").startswith(f"{node_id} already blocked")
        done = command.run("block", node_id, "-r", "memory", "--dry-run")
        assert (done.returncode, "Conflict" in done.stderr) == (1, True)
        assert len(blocklist.history(node_id)) == 1
        assert blocklist.snapshot().revision >= revision

    @pytest.mark.parametrize("options", [[], ["--dry-run"]])
    def test_a_merge_without_a_change_is_reported_as_already_blocked(
        self, command: Command, blocklist: BlocklistClient, node_id: str, options: list[str]
    ) -> None:
        blocklist.block(node_id, "disk")
        block = ("block", node_id, "-d", "1h", "--merge", *options, "-r")
        assert command.stdout_of(*block, "disk") == f"{node_id} already blocked forever\n"
        assert command.stdout_of(*block, "memory").endswith("blocked forever, merged: disk,memory\n")


SLOW = Registration(id="slow", role=ListenerRole.JOB_MASTER, session="s", lease=3_600_000)


class TestWait:
    def test_the_output_shows_which_listeners_have_applied_it(self, binaries: Path, fresh: InProcessService) -> None:
        command = Command(binaries, fresh.url)
        block, unblock = ("block", "-r", "disk", "--forever"), ("unblock",)

        def timed_out(*change: str) -> str:
            """The line about listeners that have not applied it in time."""
            done = fresh.in_time(lambda: command.run(*change, "--wait", "500ms"))
            assert done.returncode == 1
            return done.stdout.splitlines()[-1]

        done = command.run(*block, "n", "--wait", "1s")
        assert (done.returncode, done.stdout.splitlines()[1:]) == (
            1,
            ["There are no live listeners, so nothing has applied it."],
        )
        with connect(fresh.url) as client:
            client.register(SLOW)
            for change in ((*block, "m"), (*block, "n"), (*unblock, "free", "n")):
                assert timed_out(*change) == "Applied by 0 of 1; pending: slow"
            client.heartbeat("slow", "s", report=Report(refused={"m": "no answer"}))
            assert timed_out(*block, "m") == "Applied by 0 of 1; pending: slow (last report: no answer)"
            assert "slow reports: no answer" in command.run("status", "m").stderr
            client.heartbeat("slow", "s", acked=client.snapshot().revision, report=Report(refused={}))
        # The node is already blocked; the command still waits until it is applied.
        assert "Applied by 1 listener." in command.stdout_of(*block, "m", "--wait", "30s")

    def test_a_block_that_somebody_ends_meanwhile_is_not_applied(self, binaries: Path, fresh: InProcessService) -> None:
        with connect(fresh.url) as client:
            client.register(SLOW)
            with Command(binaries, fresh.url).beside("block", "n", "-r", "disk", "--wait", "30s") as running:
                wait_until(lambda: "n" in client.snapshot().nodes)
                client.unblock("n")
                client.heartbeat("slow", "s", acked=client.snapshot().revision)
                done = running.result(60)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (
            1,
            "n is no longer blocked; blocklist history n shows why",
        )

    def test_a_block_of_which_a_canary_is_left_is_not_applied(self, binaries: Path, fresh: InProcessService) -> None:
        with connect(fresh.url) as client:
            client.register(SLOW)
            client.put_claim("n", "detection", "slow", canary=True)
            block = ("block", "n", "-r", "slow", "--merge", "--wait", "30s")
            with Command(binaries, fresh.url).beside(*block) as running:
                wait_until(lambda: not client.snapshot().nodes["n"].canary)
                client.remove_claim("n", "anonymous")
                client.heartbeat("slow", "s", acked=client.snapshot().revision)
                done = running.result(60)
        last = "n is only a canary now; blocklist history n shows why"
        assert (done.returncode, done.stdout.splitlines()[-1]) == (1, last)

    def test_an_unblocking_that_somebody_reverses_meanwhile_is_not_applied(
        self, binaries: Path, fresh: InProcessService
    ) -> None:
        with connect(fresh.url) as client:
            client.register(SLOW)
            client.block("n", "disk")
            with Command(binaries, fresh.url).beside("unblock", "n", "--wait", "30s") as running:
                wait_until(lambda: "n" not in client.snapshot().nodes)
                client.block("n", "memory")
                client.heartbeat("slow", "s", acked=client.snapshot().revision)
                done = running.result(60)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (
            1,
            "n is blocked again; blocklist history n shows why",
        )

    def test_a_node_that_was_unblocked_during_the_wait_is_not_blocked_again(
        self, binaries: Path, fresh: InProcessService
    ) -> None:
        with connect(fresh.url) as client:
            client.register(SLOW)
            client.block("m", "disk")
            block = ("block", "m", "n", "-r", "disk", "--forever", "--wait", "2s")
            with Command(binaries, fresh.url).beside(*block) as running:
                wait_until(lambda: "n" in client.snapshot().nodes)
                client.unblock("n")
                fresh.until(running.done)
                done = running.result()
            assert set(client.snapshot().nodes) == {"m"}
        assert (done.returncode, done.stdout.splitlines()[-1]) == (
            1,
            "n is no longer blocked; blocklist history n shows why",
        )

    def test_a_repeated_unblock_succeeds_only_when_the_unblocking_is_applied(
        self, binaries: Path, fresh: InProcessService
    ) -> None:
        command = Command(binaries, fresh.url)
        unblock = ("unblock", "n", "never-blocked", "--wait")
        with connect(fresh.url) as client:
            client.register(SLOW)
            client.block("n", "disk")
            client.heartbeat("slow", "s", acked=client.snapshot().revision)
            client.unblock("n")
            done = fresh.in_time(lambda: command.run(*unblock, "500ms"))
            assert (done.returncode, done.stdout.splitlines()) == (
                1,
                ["n not blocked", "never-blocked not blocked", "Applied by 0 of 1; pending: slow"],
            )
            client.block("m", "disk")
            done = fresh.in_time(lambda: command.run("unblock", "n", "m", "--wait", "500ms"))
            assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "Applied by 0 of 1; pending: slow")
            client.heartbeat("slow", "s", acked=client.snapshot().revision)
        assert command.stdout_of(*unblock, "30s").splitlines()[-1] == "Applied by 1 listener."

    def test_a_wait_for_nodes_that_were_never_blocked_succeeds(self, command: Command, node_id: str) -> None:
        assert command.stdout_of("unblock", node_id, "--wait", "30s") == f"{node_id} not blocked\n"

    @pytest.mark.parametrize("node", ["m", "o"])
    def test_a_refusal_of_any_node_is_named_with_its_reason(
        self, binaries: Path, fresh: InProcessService, node: str
    ) -> None:
        command = Command(binaries, fresh.url)
        with receiving() as good, receiving() as etl, fresh.client() as client:
            etl.report = {"refused": {node: "its last host"}}
            good.register(client, "good")
            etl.register(client, "etl")
            block = ("block", "[m,n,o]", "-r", "disk", "-d", "4h")
            # The second block changes nothing; of three DELETEs only the last one waits.
            for change in (block, block, ("unblock", "[m,n,o]")):
                done = command.run(*change, "--wait", "20s")
                last = done.stdout.splitlines()[-1]
                assert (done.returncode, last) == (1, "Applied by 1 of 2; refused by etl (its last host)")


class TestUnblock:
    def test_a_name_that_is_not_blocked_is_answered_with_the_one_that_was_probably_meant(
        self, command: Command, node_id: str
    ) -> None:
        command.stdout_of("block", f"{node_id}-17", "-r", "x")
        done = command.run("unblock", f"{node_id}-1")
        assert (done.stdout, done.stderr) == (
            f"{node_id}-1 not blocked\n",
            f"{node_id}-1: did you mean {node_id}-17?\n",
        )

    def test_each_node_is_reported_and_one_that_is_not_blocked_is_no_error(
        self, command: Command, blocklist: BlocklistClient, node_id: str
    ) -> None:
        blocklist.block(f"{node_id}-2", "disk")
        output = command.stdout_of("unblock", f"{node_id}-[1-2]").splitlines()
        assert output == [f"{node_id}-1 not blocked", f"{node_id}-2 unblocked"]
        assert command.stdout_of("unblock", f"{node_id}-2") == f"{node_id}-2 not blocked\n"

    def test_the_name_under_which_the_node_was_blocked_is_printed(
        self, command: Command, blocklist: BlocklistClient, node_id: str
    ) -> None:
        blocklist.block(f"{node_id}.example.com", "disk")
        assert command.stdout_of("unblock", node_id.upper()) == f"{node_id}.example.com unblocked\n"

    def test_the_typed_name_is_printed_if_the_response_has_none(self, command: Command, node_id: str) -> None:
        nobody = respond(http_response(b'{"name": null, "role": "admin"}', "200 OK", *SERVICE_HEADERS))
        with fake_server(nobody, respond(http_response(b"", "200 OK", *SERVICE_HEADERS))) as other:
            assert command.stdout_of("unblock", node_id, BLOCKLIST_URL=other.url) == f"{node_id} unblocked\n"

    @pytest.mark.parametrize("options", [[], ["--wait", "1s"], ["--dry-run"]])
    def test_an_ambiguous_name_does_not_stop_the_others(
        self, command: Command, blocklist: BlocklistClient, node_id: str, options: list[str]
    ) -> None:
        for name in (f"{node_id}.a", f"{node_id}.b", f"{node_id}-2", f"{node_id}-3"):
            blocklist.block(name, "disk")
        done = command.run("unblock", f"{node_id}-2", node_id, f"{node_id}-3", *options)
        assert done.returncode == 1
        assert f"{node_id}.a, {node_id}.b" in done.stderr
        free = "would be unblocked" if "--dry-run" in options else "unblocked"
        lines = [line for line in done.stdout.splitlines() if not line.startswith("  removed: ")]
        assert lines[:2] == [f"{node_id}-2 {free}", f"{node_id}-3 {free}"]

    def test_is_blocked_answers_by_exit_code(self, command: Command, blocklist: BlocklistClient, node_id: str) -> None:
        done = command.run("is-blocked", node_id)
        assert (done.returncode, done.stdout, done.stderr) == (1, f"{node_id} not blocked\n", "")
        blocklist.block(node_id, "disk")
        assert command.stdout_of("is-blocked", node_id) == f"{node_id} blocked forever\n"


class TestList:
    def test_the_table_shows_each_blocked_node(self, fresh_command: Command) -> None:
        done = fresh_command.run("list")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "No node is blocked.\n")
        reason = "Hot " * 200 + "[x]"
        fresh_command.stdout_of("block", "worker-17", "-r", reason, "--evacuate", "--until", "2099-12-31T23:00:00Z")
        fresh_command.stdout_of("block", "w", "-r", "disk", "--forever")
        head, *rows = fresh_command.stdout_of("list").splitlines()
        assert head.split() == ["NODE", "ACTION", "REMAINING", "OWNER", "REASON"]
        assert rows[0].split()[:4] == ["w", "mark", "forever", "anonymous"]
        assert re.match(r"worker-17  evacuate  \S+ +anonymous  Hot ", rows[1])
        assert rows[1].endswith(f"  {reason}")
        assert fresh_command.stdout_of("list", "--no-headers").splitlines() == rows
        wide = fresh_command.stdout_of("list", "-o", "wide").splitlines()
        assert wide[0].split()[4:] == ["EXPIRES", "SINCE", "BY", "TASKMANAGERS", "REVISION", "REASON"]
        assert wide[1].split()[4] == "never"
        assert wide[2].split()[4] == "2099-12-31T23:00:00Z"
        assert wide[2].split()[7:9] == ["0", "1"]
        assert fresh_command.stdout_of("list", "-o", "name") == "w\nworker-17\n"

    def test_an_ordinary_line_fits_into_80_columns(self, fresh_command: Command, fresh: InProcessService) -> None:
        with BlocklistClient(fresh.url) as client:
            client.put_claim("worker-017", "alertmanager/809c736d", "alert DiskReadOnly")
        assert max(map(len, fresh_command.stdout_of("list").splitlines())) < 80

    def test_a_pipe_and_a_terminal_show_the_same(self, fresh_command: Command) -> None:
        fresh_command.stdout_of("block", "worker-[1-2]", "-r", "Hot", "--evacuate", "--forever")
        piped = fresh_command.stdout_of("list")
        assert fresh_command.on_terminal("list", NO_COLOR="1") == piped
        coloured = fresh_command.on_terminal("list")
        assert "\x1b[" in coloured
        assert fresh_command.on_terminal("list", TERM="dumb") == piped
        assert "\x1b" not in fresh_command.on_terminal("block", "x", "-r", "Hot")

    def test_json_output_is_the_response_of_the_service(self, fresh_command: Command, fresh: InProcessService) -> None:
        fresh_command.stdout_of("block", "b", "a", "-r", "disk")
        with fresh.client() as http:
            listed = http.get("/blocklist", params={"details": "true"}).json()
        assert json.loads(fresh_command.stdout_of("list", "-o", "json")) == listed
        lines = [json.loads(line) for line in fresh_command.stdout_of("list", "-o", "jsonl").splitlines()]
        assert lines == [{"id": node_id, **node} for node_id, node in listed.items()]
        assert json.loads(fresh_command.stdout_of("get", "a", "-o", "json")) == lines[0]

    def test_get_shows_one_blocked_node(self, command: Command, blocklist: BlocklistClient, node_id: str) -> None:
        done = command.run("get", node_id)
        assert (done.returncode, done.stdout) == (1, "")
        assert node_id in done.stderr
        blocklist.block(node_id, "disk")
        assert command.stdout_of("get", node_id, "--no-headers").split()[:4] == [
            node_id,
            "mark",
            "forever",
            "anonymous",
        ]

    @pytest.mark.parametrize("arguments", [["list"], ["history"], ["--help"]])
    def test_a_closed_stdout_is_no_error(
        self, command: Command, blocklist: BlocklistClient, node_id: str, arguments: list[str]
    ) -> None:
        blocklist.block(node_id, "disk")
        with command.running(*arguments) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            assert process.stderr.read() == ""
            assert process.wait(60) in (0, 1, 141)

    def test_where_several_claim_a_node_it_shows_their_owners(
        self, fresh_command: Command, fresh: InProcessService
    ) -> None:
        with BlocklistClient(fresh.url) as client:
            client.put_claim("n1", "anna", "kernel")
            client.put_claim("n1", "detection", "slow")
        _, row = fresh_command.stdout_of("list").splitlines()
        assert row.split()[3] == "anna,detection"
        listed = json.loads(fresh_command.stdout_of("list", "-o", "json"))
        assert listed["n1"]["owners"] == ["anna", "detection"]


class TestHistory:
    def test_n_shows_the_last_changes_in_order(self, fresh_command: Command) -> None:
        for node in "abc":
            fresh_command.stdout_of("block", node, "-r", "disk")
        assert fresh_command.stdout_of("history", "-n", "2", "-o", "name") == "b\nc\n"
        assert fresh_command.stdout_of("history", "a", "c", "-n", "1", "-o", "name") == "c\n"
        assert fresh_command.stdout_of("history", "-n", "2", "--type", "unblocked") == ""
        assert fresh_command.stdout_of("history", "-n", "5000", "-o", "name") == "a\nb\nc\n"
        fresh_command.stdout_of("block", *(f"n{number}" for number in range(120)), "-r", "rack", "--yes")
        assert len(fresh_command.stdout_of("history", "-o", "name").splitlines()) == 123
        shown = fresh_command.on_terminal("history", "--no-headers").splitlines()
        assert [line.split()[2] for line in (shown[0], shown[-1])] == ["n20", "n119"]
        assert len(fresh_command.on_terminal("history", "-n", "all", "-o", "name").splitlines()) == 123

    def test_history_shows_each_change(self, fresh_command: Command) -> None:
        fresh_command.stdout_of("block", "a", "b", "-r", "disk")
        fresh_command.stdout_of("unblock", "a")
        head, *rows = fresh_command.stdout_of("history").splitlines()
        assert head.split() == ["AT", "CHANGE", "NODE", "ACTION", "EXPIRES", "BY", "REASON"]
        assert [row.split()[1:3] for row in rows] == [["blocked", "a"], ["blocked", "b"], ["unblocked", "a"]]
        assert len(fresh_command.stdout_of("history", "a", "--no-headers").splitlines()) == 2
        assert fresh_command.stdout_of("history", "--type", "unblocked", "-o", "name") == "a\n"
        changes = [json.loads(line) for line in fresh_command.stdout_of("history", "-o", "jsonl").splitlines()]
        assert [change["revision"] for change in changes] == [1, 2, 3]
        assert json.loads(fresh_command.stdout_of("history", "-o", "json")) == {"changes": changes}
        assert fresh_command.stdout_of("history", "--by", "nobody") == ""
        assert "is in the future" in fresh_command.run("history", "--from", "2099-01-01T00:00:00Z").stderr
        assert fresh_command.stdout_of("history", "--until", "2099-01-01T00:00:00Z", "-o", "name") == "a\nb\n"

    def test_the_list_at_a_time_in_the_past(self, fresh_command: Command) -> None:
        fresh_command.stdout_of("block", "a", "b", "-r", "disk")
        change = json.loads(fresh_command.stdout_of("history", "a", "-o", "jsonl"))
        # The first whole second after the change.
        then = int(change["at"]) // 1000 + 1
        wait_until(lambda: now_ms() > (then + 1) * 1000)
        fresh_command.stdout_of("unblock", "a")
        moment = f"{datetime.fromtimestamp(then, UTC):%Y-%m-%dT%H:%M:%SZ}"
        assert fresh_command.stdout_of("list", "-o", "name") == "b\n"
        assert fresh_command.stdout_of("list", "--at", moment, "-o", "name") == "a\nb\n"
        assert fresh_command.stdout_of("history", "a", "--at", moment, "--no-headers").split()[0] == "a"


class TestListeners:
    def test_status_listeners_and_evidence(self, binaries: Path, fresh: InProcessService) -> None:
        command = Command(binaries, fresh.url)
        assert command.run("status", "n").returncode == 1
        command.stdout_of("block", "n", "-r", "disk")
        with connect(fresh.url) as client:
            client.register(Registration(id="app-1", role=ListenerRole.JOB_MASTER, session="s"))
            finding = Finding(kind=FindingKind.EXCLUDED, reason="Spark excluded the host.")
            client.heartbeat(
                "app-1",
                "s",
                acked=1,
                report=Report(task_managers={"app-1:3": "n"}, running_tasks={"app-1:3": 2}, evidence={"m": finding}),
            )
        assert command.stdout_of("status", "n").splitlines()[1].split()[:3] == ["app-1", "JOB_MASTER", "yes"]
        assert command.stdout_of("status", "n", "--no-headers").split()[5:7] == ["1", "2"]
        with fresh.client() as http:
            assert (
                json.loads(command.stdout_of("status", "n", "-o", "json"))
                == http.get("/blocklist/nodes/n/status").json()
            )
            listed = json.loads(command.stdout_of("listeners", "-o", "json"))["listeners"]
            assert set(listed[0]) == set(http.get("/listeners").json()["listeners"][0])
            assert json.loads(command.stdout_of("evidence", "-o", "json")) == http.get("/evidence").json()
        assert command.stdout_of("listeners", "--no-headers").split()[:4] == ["app-1", "JOB_MASTER", "live", "1"]
        assert command.stdout_of("evidence", "--no-headers").split()[:4] == ["m", "app-1", "excluded", "yes"]
        assert command.stdout_of("list", "-o", "wide", "--no-headers").split()[7] == "1"
        rehearsed = command.stdout_of("unblock", "n", "--dry-run")
        assert "  TaskManager app-1:3 of app-1 runs 2 tasks" in rehearsed


class TestWatch:
    def test_changes_are_shown_as_they_happen_until_ctrl_c(self, binaries: Path, fresh: InProcessService) -> None:
        command = Command(binaries, fresh.url)
        with command.running("watch") as process, connect(fresh.url) as client:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stderr.readline() == f"Watching {fresh.url} from revision 0 on.\n"
            client.block("n", "disk")
            assert process.stdout.readline().split() == ["AT", "CHANGE", "NODE", "ACTION", "EXPIRES", "BY", "REASON"]
            assert process.stdout.readline().split()[1:] == ["blocked", "n", "mark", "never", "-", "disk"]
            assert interrupt(process) == (130, "")

    def test_json_output_begins_with_a_snapshot(self, binaries: Path, fresh: InProcessService) -> None:
        command = Command(binaries, fresh.url)
        command.stdout_of("block", "n", "-r", "disk")
        with command.running("watch", "-o", "jsonl") as process, connect(fresh.url) as client:
            assert process.stdout is not None
            first = json.loads(process.stdout.readline())
            assert (first["type"], first["revision"], list(first["nodes"])) == ("snapshot", 1, ["n"])
            client.unblock("n")
            assert json.loads(process.stdout.readline())["type"] == "unblocked"

    def test_the_list_is_shown_again_after_each_change(self, binaries: Path, fresh: InProcessService) -> None:
        command = Command(binaries, fresh.url)
        command.stdout_of("block", "a", "-r", "disk")
        with command.running("list", "--watch", "--no-headers") as process, connect(fresh.url) as client:
            assert process.stdout is not None
            assert process.stdout.readline().split()[0] == "a"
            client.block("b", "disk")
            assert [process.stdout.readline().partition(" ")[0] for _ in range(3)] == ["\n", "a", "b"]
            assert interrupt(process)[0] == 130


class TestExitCodes:
    @pytest.mark.parametrize(
        "arguments",
        [
            ["block", "n"],
            ["block", "n", "-r", ""],
            ["block", "n", "-r", "a\nb"],
            ["block", "n", "-r", "x" * 1025],
            ["block", "-r", "disk"],
            ["block", "-", "-r", "disk"],
            ["block", "a b", "-r", "disk"],
            ["block", "n[1-1001]", "-r", "disk"],
            ["block", "n", "-r", "disk", "-d", "soon"],
            ["block", "n", "-r", "disk", "-d", "1h", "--forever"],
            ["block", "n", "-r", "disk", "--until", "2020-01-01T00:00:00Z"],
            ["block", "n", "-r", "disk", "--until", "someday"],
            ["block", "n", "-r", "disk", "--wait", "2m"],
            ["get"],
            ["get", "a/b"],
            ["list", "-o", "xml"],
            ["list", "-o"],
            ["list", "n1"],
            ["--no-headers", "list"],
            ["listeners", "list"],
            ["history", "--at", "2026-11-21T18:00:00Z", "--by", "anna"],
            ["history", "--type", "banned"],
            ["token", "create", "x", "--role", "king"],
            ["block", "-l", "", "-r", "disk"],
            ["unblock", "-l", " "],
            ["block", "n", "-r", "disk", "--nope"],
            ["ban", "n"],
        ],
    )
    def test_2_for_a_usage_error(self, command: Command, arguments: list[str]) -> None:
        done = command.run(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr

    @pytest.mark.parametrize(
        "setting",
        [
            {"BLOCKLIST_URL": "ftp://x"},
            {"BLOCKLIST_URL": "http://[::1"},
            {"BLOCKLIST_URL": "http://127.0.0.1:8224/blocklist?x"},
            {"BLOCKLIST_TIMEOUT": "soon"},
            {"BLOCKLIST_TOKEN": "bad token"},
            {"BLOCKLIST_URLS": "1"},
        ],
        ids=str,
    )
    def test_2_for_an_invalid_setting(self, command: Command, setting: dict[str, str]) -> None:
        done = command.run("list", **setting)
        assert (done.returncode, done.stdout) == (2, "")
        assert "bad token" not in done.stderr

    @pytest.mark.parametrize(
        ("text", "fault"),
        [
            (None, "cannot be read"),
            ("two words", ""),
            ("a\nb\n", "must contain exactly one token.\n"),
            ("", "contains no token.\n"),
        ],
    )
    def test_2_for_a_token_file_that_cannot_be_used(
        self, command: Command, tmp_path: Path, text: str | None, fault: str
    ) -> None:
        file = tmp_path / "token"
        if text is not None:
            file.write_text(text)
        done = command.run("list", BLOCKLIST_TOKEN_FILE=str(file))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"Error: BLOCKLIST_TOKEN_FILE: the token file {file} {fault}")

    def test_1_for_a_strict_refusal_which_says_what_to_do(self, command: Command, node_id: str) -> None:
        done = command.run("block", node_id, "-r", "disk", "--strict")
        assert done.returncode == 1
        assert done.stderr.endswith("Nothing was changed. Leave out --strict to block them anyway.\n")

    @pytest.mark.parametrize("arguments", ["list -o json", "is-blocked free", "watch -o jsonl", "--version", "--help"])
    @pytest.mark.parametrize("unbuffered", ["", "1"])
    def test_3_if_the_output_cannot_be_written(self, command: Command, arguments: str, unbuffered: str) -> None:
        run = ["sh", "-c", f"blocklist {arguments} >/dev/full"]
        env = command.env | {"PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(run, env=env, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 3
        assert done.stderr.splitlines()[-1] == "Error: the output cannot be written: No space left on device."
        assert "Traceback" not in done.stderr

    @pytest.mark.parametrize(
        "arguments",
        ["block n -r disk", "block n -r disk --dry-run", "unblock n", "list", "list --watch", "get n", "is-blocked n",
         "history", "status n", "watch", "listeners", "evidence", "config check", "token list", "token revoke x",
         "token create x --role reader", "audit", "audit --follow"],
    )  # fmt: skip
    def test_3_if_the_service_is_unreachable(self, command: Command, arguments: str) -> None:
        done = command.run(*arguments.split(), BLOCKLIST_URL=f"http://127.0.0.1:{free_port()}")
        assert done.returncode == 3
        assert "out of reach" in done.stderr

    @pytest.mark.parametrize(
        "response",
        [
            http_response(b"{}"),
            http_response(b"", "500 Internal Server Error", *SERVICE_HEADERS),
            http_response(b"[]", "200 OK", *SERVICE_HEADERS),
            http_response(b"", "204 No Content", *SERVICE_HEADERS),
            http_response(b"<html>", "404 Not Found", "Content-Type: text/html", *SERVICE_HEADERS),
            http_response(b"{}", "404 Not Found", "Content-Type: application/problem+json", *SERVICE_HEADERS),
            http_response(b'{"id": NaN}', "200 OK", *SERVICE_HEADERS),
            b"",
        ],
    )
    def test_3_for_a_foreign_or_broken_service(self, command: Command, response: bytes) -> None:
        with fake_server(respond(response)) as other:
            for arguments in (["list"], ["is-blocked", "n"]):
                assert command.run(*arguments, BLOCKLIST_URL=other.url).returncode == 3

    @pytest.mark.parametrize(
        "response",
        [
            http_response(b"2\r\n{}\r\n0\r\n\r\n", "200 OK", *SERVICE_HEADERS, "Transfer-Encoding: chunked"),
            http_response(b"{}", "200 OK", *SERVICE_HEADERS).replace(b"Content-Length: 2\r\n", b""),
            http_response(b"{}", "200 OK", *SERVICE_HEADERS, "X-Place: K\u00f6ln"),
        ],
        ids=["in chunks", "to the end of the connection", "with a header that is not ASCII"],
    )
    def test_0_for_a_response_that_a_proxy_has_changed(self, command: Command, response: bytes) -> None:
        with fake_server(respond(response)) as other:
            done = command.run("list", BLOCKLIST_URL=other.url)
        assert (done.returncode, done.stderr) == (0, "No node is blocked.\n")

    def test_the_nodes_that_were_not_unblocked_are_reported(
        self, command: Command, blocklist: BlocklistClient, node_id: str
    ) -> None:
        nobody = respond(http_response(b'{"name": null, "role": "admin"}', "200 OK", *SERVICE_HEADERS))
        first = respond(http_response(b"", "200 OK", *SERVICE_HEADERS))
        with fake_server(nobody, first, respond(http_response())) as other:
            done = command.run("unblock", f"{node_id}-[1-3]", BLOCKLIST_URL=other.url)
        assert (done.returncode, done.stdout) == (3, f"{node_id}-1 unblocked\n")
        # Whatever answered may have passed the request for the second one on.
        assert f"Not unblocked: {node_id}-3.\nThe change may have been made" in done.stderr


class TestTokens:
    @pytest.fixture
    def secured(self, start: Start, tmp_path: Path) -> tuple[ServiceProcess, str]:
        file = tmp_path / "admin.token"
        return start(auth="tokens", admin_token_file=str(file)), str(file)

    def test_a_token_is_created_used_listed_and_revoked(
        self, binaries: Path, secured: tuple[ServiceProcess, str]
    ) -> None:
        service, file = secured
        admin = Command(binaries, service.url, token_file=file)
        made = admin.run("token", "create", "anna", "--role", Role.OPERATOR.value, "-d", "90d")
        token = made.stdout.strip()
        assert token.startswith("blocklist_")
        assert "anna" in made.stderr
        assert token not in made.stderr
        anna = Command(binaries, service.url, token=token)
        anna.stdout_of("block", "n", "-r", "disk")
        assert anna.stdout_of("list", "--no-headers").split()[3] == "anna"
        assert anna.stdout_of("history", "--by", "anna", "-o", "name") == "n\n"
        refused = anna.run("token", "list")
        assert (refused.returncode, "admin" in refused.stderr) == (1, True)
        assert "ROLE      operator, as anna" in anna.stdout_of("config", "check")
        listed = admin.stdout_of("token", "list", "-o", "wide") + admin.stdout_of("token", "list", "-o", "json")
        assert "anna" in listed
        assert token not in listed
        admin.stdout_of("token", "revoke", token.split("_")[1])
        refused = anna.run("list")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert token not in refused.stderr

    def test_the_audit_log_is_shown_and_followed(self, binaries: Path, secured: tuple[ServiceProcess, str]) -> None:
        service, file = secured
        admin = Command(binaries, service.url, token_file=file)
        made = admin.stdout_of("token", "create", "anna", "--role", "operator").strip()
        row = admin.stdout_of("audit", "--kind", "token-created", "--by", "admin", "--no-headers", "-n", "1")
        assert row.split()[1:5] == ["token-created", "admin", "command", "127.0.0.1"]
        assert "name: anna, role: operator, endTimestamp: -" in row
        assert "values, see -o json" in admin.stdout_of("audit", "--kind", "settings")
        lines = [json.loads(line) for line in admin.stdout_of("audit", "-o", "jsonl").splitlines()]
        assert json.loads(admin.stdout_of("audit", "-o", "json")) == {"records": lines}
        last = lines[-1]["id"]
        assert admin.stdout_of("audit", "--after", str(last - 1), "-o", "name") == f"{last}\n"
        assert admin.run("audit", "--after", str(last)).stderr == "No record matches.\n"
        assert Command(binaries, service.url, token=made).run("audit").returncode == 1
        for wrong in (["--after", "x"], ["--after", "1", "-n", "1"], ["--follow", "--until", "now"], ["--kind", "x"]):
            assert admin.run("audit", *wrong).returncode == 2
        with admin.running(
            "audit", "--follow", "--after", str(last), "-o", "jsonl", "--kind", "token-revoked"
        ) as process:
            admin.stdout_of("token", "revoke", made.split("_")[1])
            assert process.stdout is not None
            shown = json.loads(process.stdout.readline())
        assert (shown["details"]["name"], shown["way"], shown["id"] > last) == ("anna", "command", True)

    def test_a_token_is_never_shown(self, command: Command) -> None:
        secret = "blocklist_00000000_" + "s" * 43
        for arguments in (["config", "check"], ["list"], ["--help"], ["block", "--help"], ["list", "--nope"]):
            done = command.run(*arguments, BLOCKLIST_TOKEN=secret)
            assert secret not in done.stdout + done.stderr


class TestItself:
    def test_config_check_shows_the_settings_and_the_role(self, command: Command, service: ServiceProcess) -> None:
        output = command.stdout_of("config", "check")
        assert f"URL      {service.url} (BLOCKLIST_URL)" in output
        assert "DURATION  4h" in output
        assert "ROLE      admin" in output

    @pytest.mark.parametrize(
        "words",
        ["--version", "--help", "manager --help", "manager exec --help", "flink --help", "drain --help"],
    )
    def test_it_starts_without_slow_imports(self, command: Command, words: str) -> None:
        code = f"""
import sys
from blocklist.cli.main import run
try: run({words.split()})
except SystemExit as end: assert not end.code
if heavy := {{"pydantic", "httpx", "rich", "asyncio", "ssl"}} & set(sys.modules): sys.exit(str(heavy))
"""
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert "blocklist" in done.stdout

    @pytest.mark.parametrize("shell", ["bash", "zsh"])
    def test_the_completion_script_is_valid(self, command: Command, shell: str) -> None:
        script = command.stdout_of(_BLOCKLIST_COMPLETE=f"source_{shell}")
        assert "_BLOCKLIST_COMPLETE" in script
        if shell == "bash":
            subprocess.run(["bash", "-c", f"{script}\ncomplete -p blocklist"], check=True, capture_output=True)

    def test_serve_runs_the_service_of_the_checkout(self, binaries: Path, tmp_path: Path) -> None:
        port = free_port()
        command = Command(
            binaries, f"http://127.0.0.1:{port}", port=str(port), database_url=f"sqlite:///{tmp_path}/b.db"
        )
        with command.running("serve") as process:
            wait_until(lambda: command.run("list").returncode == 0, seconds=120)
            process.send_signal(signal.SIGTERM)
            _, stderr = process.communicate(timeout=300)
            assert (process.returncode, "Traceback" in stderr) == (0, False)
