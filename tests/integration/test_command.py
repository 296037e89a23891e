"""The command `blocklist` against a real service: each subcommand, exit codes, and what goes where."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from blocklist import BlocklistClient
from blocklist.model.evidence import Finding, Kind
from blocklist.model.listener import Registration, Role
from blocklist.model.roles import Access
from tests.integration.bodies import now_ms
from tests.integration.command import Command, install, interrupt
from tests.integration.conftest import Start
from tests.integration.process import ROOT, ServiceProcess, free_port, wait_until
from tests.integration.strangers import OURS, answer, says, stranger

DEFAULT = "in 4h"


@pytest.fixture(scope="session")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("command"))


@pytest.fixture
def command(binaries: Path, service: ServiceProcess) -> Command:
    return Command(binaries, service.url)


@pytest.fixture
def alone(binaries: Path, fresh: ServiceProcess) -> Command:
    """Where nobody else changes the list."""
    return Command(binaries, fresh.url)


@pytest.fixture
def blocklist(service: ServiceProcess) -> Iterator[BlocklistClient]:
    with BlocklistClient(service.url, timeout=30) as client:
        yield client


def on(url: str) -> BlocklistClient:
    return BlocklistClient(url, timeout=30)


class TestBlock:
    def test_the_answer_says_until_when(self, command: Command, blocklist: BlocklistClient, node_id: str) -> None:
        said = command.says("block", node_id, "-r", "Hot machine")
        assert said.startswith(f"{node_id} blocked until 20")
        assert said.endswith(f" UTC ({DEFAULT})\n")
        node = blocklist.get(node_id)
        assert node.cause == "Hot machine"
        assert node.action.name == "MARK_BLOCKED"
        assert abs(node.end - node.start - 4 * 3_600_000) < 60_000

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (["-d", "90s"], "(in 1m 30s)"),
            (["--until", "2099-12-31T23:00:00Z"], "until 2099-12-31 23:00:00 UTC"),
            (["--forever"], "blocked forever"),
            (["-d", "forever", "--evacuate"], "blocked forever, evacuating its tasks"),
        ],
    )
    def test_how_long_and_how(self, command: Command, node_id: str, options: list[str], said: str) -> None:
        assert said in command.says("block", node_id, "-r", "disk", *options)

    def test_the_default_duration_is_a_setting(self, command: Command, node_id: str) -> None:
        said = command.says("block", node_id, "-r", "disk", BLOCKLIST_DEFAULT_DURATION="forever")
        assert said == f"{node_id} blocked forever\n"
        done = command.run("block", node_id, "-r", "disk", BLOCKLIST_DEFAULT_DURATION="soon")
        assert (done.returncode, "BLOCKLIST_DEFAULT_DURATION" in done.stderr) == (2, True)

    def test_ranges_and_standard_input(self, command: Command, blocklist: BlocklistClient, node_id: str) -> None:
        said = command.says(
            "block", f"{node_id}-[08-10]", "-", "-r", "disk", stdin=f" {node_id}-a\n{node_id}-[b,c]\n\n"
        )
        names = [f"{node_id}-{end}" for end in ("08", "09", "10", "a", "b", "c")]
        assert [line.partition(" ")[0] for line in said.splitlines()] == names
        revisions = [own.revision for own in blocklist.listing().nodes if own.node.id in names]
        assert None not in revisions
        assert max(filter(None, revisions)) - min(filter(None, revisions)) == 5

    def test_a_repeat_succeeds_and_changes_nothing(self, command: Command, node_id: str) -> None:
        first = ("block", node_id, "-r", "disk", "-d", "4h")
        command.says(*first)
        assert command.says(*first).startswith(f"{node_id} already blocked until ")
        assert command.says("block", node_id, "-r", "disk", "-d", "1h").startswith(f"{node_id} already blocked")
        assert len(command.says("history", node_id, "-o", "jsonl").splitlines()) == 1

    def test_those_that_are_free_are_blocked_beside_those_that_are_blocked(
        self, command: Command, node_id: str
    ) -> None:
        command.says("block", f"{node_id}-2", "-r", "disk", "--forever")
        said = command.says("block", f"{node_id}-[1-3]", "-r", "disk", "--forever").splitlines()
        assert said == [
            f"{node_id}-1 blocked forever",
            f"{node_id}-2 already blocked forever",
            f"{node_id}-3 blocked forever",
        ]

    def test_another_block_is_refused_for_all(self, command: Command, blocklist: BlocklistClient, node_id: str) -> None:
        command.says("block", f"{node_id}-1", "-r", "disk")
        done = command.run("block", f"{node_id}-[1-2]", "-r", "memory")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"Conflict: Node {node_id}-1 is already blocked until ")
        assert "--merge" in done.stderr
        assert f"{node_id}-2" not in blocklist.snapshot().nodes

    def test_merged(self, command: Command, node_id: str) -> None:
        command.says("block", node_id, "-r", "disk", "--forever")
        said = command.says("block", node_id, "-r", "memory", "--merge", "--evacuate")
        assert said == f"{node_id} blocked forever, evacuating its tasks, merged: disk,memory\n"

    def test_a_dry_run_changes_nothing(self, command: Command, blocklist: BlocklistClient, node_id: str) -> None:
        revision = blocklist.snapshot().revision
        assert "would be blocked until" in command.says("block", f"{node_id}-[1-2]", "-r", "disk", "--dry-run")
        assert not {f"{node_id}-1", f"{node_id}-2"} & set(blocklist.snapshot().nodes)
        blocklist.block(node_id, "disk")
        assert command.says("unblock", node_id, "--dry-run") == f"{node_id} would be unblocked\n"
        assert command.says("block", node_id, "-r", "disk", "--dry-run").startswith(f"{node_id} already blocked")
        done = command.run("block", node_id, "-r", "memory", "--dry-run")
        assert (done.returncode, "Conflict" in done.stderr) == (1, True)
        assert len(blocklist.history(node_id)) == 1
        assert blocklist.snapshot().revision >= revision


class TestWait:
    def test_it_is_said_who_has_applied_it(self, binaries: Path, fresh: ServiceProcess) -> None:
        command = Command(binaries, fresh.url)
        assert "Nobody listens." in command.says("block", "n", "-r", "disk", "--wait", "1s")
        with on(fresh.url) as client:
            client.register(Registration(id="slow", role=Role.JOB_MASTER, session="s"))
        for change in (("block", "m", "-r", "disk"), ("block", "n", "-r", "disk"), ("unblock", "free", "n")):
            assert "Applied by 0 of 1 listener, not yet by slow." in command.says(*change, "--wait", "500ms")
        with on(fresh.url) as client:
            client.heartbeat("slow", "s", acked=client.snapshot().revision)
        # Nothing is to do any more, and yet whoever waits knows that it is applied.
        assert "Applied by 1 listener." in command.says("block", "m", "-r", "disk", "--wait", "30s")


class TestUnblock:
    def test_each_is_said_and_a_free_one_is_no_error(
        self, command: Command, blocklist: BlocklistClient, node_id: str
    ) -> None:
        blocklist.block(f"{node_id}-2", "disk")
        said = command.says("unblock", f"{node_id}-[1-2]").splitlines()
        assert said == [f"{node_id}-1 not blocked", f"{node_id}-2 unblocked"]
        assert command.says("unblock", f"{node_id}-2") == f"{node_id}-2 not blocked\n"

    def test_is_blocked(self, command: Command, blocklist: BlocklistClient, node_id: str) -> None:
        done = command.run("is-blocked", node_id)
        assert (done.returncode, done.stdout, done.stderr) == (1, f"{node_id} not blocked\n", "")
        blocklist.block(node_id, "disk")
        assert command.says("is-blocked", node_id) == f"{node_id} blocked forever\n"


class TestList:
    def test_the_table(self, alone: Command) -> None:
        done = alone.run("list")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "No node is blocked.\n")
        reason = "Hot " * 200 + "[x]"
        alone.says("block", "worker-17", "-r", reason, "--evacuate", "--until", "2099-12-31T23:00:00Z")
        alone.says("block", "w", "-r", "disk", "--forever")
        head, *rows = alone.says("list").splitlines()
        assert head.split() == ["NODE", "ACTION", "EXPIRES", "BY", "SINCE", "REASON"]
        assert rows[0].split()[:4] == ["w", "mark", "never", "-"]
        assert rows[1].startswith("worker-17  evacuate  2099-12-31T23:00:00Z  -   20")
        assert rows[1].endswith(f"  {reason}")
        assert alone.says("list", "--no-headers").splitlines() == rows
        wide = alone.says("list", "-o", "wide").splitlines()
        assert wide[0].split()[-3:] == ["TASKMANAGERS", "REVISION", "REASON"]
        assert wide[2].split()[5:7] == ["0", "1"]
        assert alone.says("list", "-o", "name") == "w\nworker-17\n"

    def test_a_pipe_and_a_terminal_show_the_same(self, alone: Command) -> None:
        alone.says("block", "worker-[1-2]", "-r", "Hot", "--evacuate")
        piped = alone.says("list")
        assert alone.on_terminal("list", NO_COLOR="1") == piped
        coloured = alone.on_terminal("list")
        assert "\x1b[" in coloured
        assert alone.on_terminal("list", TERM="dumb") == piped
        assert "\x1b" not in alone.on_terminal("block", "x", "-r", "Hot")

    def test_json_is_what_the_service_answers(self, alone: Command, fresh: ServiceProcess) -> None:
        alone.says("block", "b", "a", "-r", "disk")
        with fresh.client() as http:
            listed = http.get("/blocklist", params={"details": "true"}).json()
        assert json.loads(alone.says("list", "-o", "json")) == listed
        lines = [json.loads(line) for line in alone.says("list", "-o", "jsonl").splitlines()]
        assert lines == [{"id": node_id, **node} for node_id, node in listed.items()]
        assert json.loads(alone.says("get", "a", "-o", "json")) == lines[0]

    def test_get(self, command: Command, blocklist: BlocklistClient, node_id: str) -> None:
        done = command.run("get", node_id)
        assert (done.returncode, done.stdout) == (1, "")
        assert node_id in done.stderr
        blocklist.block(node_id, "disk")
        assert command.says("get", node_id, "--no-headers").split()[:3] == [node_id, "mark", "never"]

    @pytest.mark.parametrize("arguments", [["list"], ["history"], ["--help"]])
    def test_a_reader_that_leaves_is_no_error_to_talk_of(
        self, command: Command, blocklist: BlocklistClient, node_id: str, arguments: list[str]
    ) -> None:
        blocklist.block(node_id, "disk")
        with command.running(*arguments) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            assert process.stderr.read() == ""
            assert process.wait(60) in (0, 1, 141)


class TestHistory:
    def test_what_happened_and_to_what(self, alone: Command) -> None:
        alone.says("block", "a", "b", "-r", "disk")
        alone.says("unblock", "a")
        head, *rows = alone.says("history").splitlines()
        assert head.split() == ["AT", "CHANGE", "NODE", "ACTION", "EXPIRES", "BY", "REASON"]
        assert [row.split()[1:3] for row in rows] == [["blocked", "a"], ["blocked", "b"], ["unblocked", "a"]]
        assert len(alone.says("history", "a", "--no-headers").splitlines()) == 2
        assert alone.says("history", "--type", "unblocked", "-o", "name") == "a\n"
        changes = [json.loads(line) for line in alone.says("history", "-o", "jsonl").splitlines()]
        assert [change["revision"] for change in changes] == [1, 2, 3]
        assert json.loads(alone.says("history", "-o", "json")) == {"changes": changes}
        assert alone.says("history", "--by", "nobody") == ""
        assert alone.says("history", "--from", "2099-01-01T00:00:00Z") == ""
        assert alone.says("history", "--until", "2099-01-01T00:00:00Z", "-o", "name") == "a\nb\n"

    def test_the_list_as_it_was(self, alone: Command) -> None:
        alone.says("block", "a", "b", "-r", "disk")
        change = json.loads(alone.says("history", "a", "-o", "jsonl"))
        # The first whole second after it; nothing else happens before that has passed.
        then = int(change["at"]) // 1000 + 1
        wait_until(lambda: now_ms() > (then + 1) * 1000)
        alone.says("unblock", "a")
        moment = f"{datetime.fromtimestamp(then, UTC):%Y-%m-%dT%H:%M:%SZ}"
        assert alone.says("list", "-o", "name") == "b\n"
        assert alone.says("list", "--at", moment, "-o", "name") == "a\nb\n"
        assert alone.says("history", "a", "--at", moment, "--no-headers").split()[0] == "a"


class TestListeners:
    def test_status_listeners_and_evidence(self, binaries: Path, fresh: ServiceProcess) -> None:
        command = Command(binaries, fresh.url)
        assert command.run("status", "n").returncode == 1
        command.says("block", "n", "-r", "disk")
        with on(fresh.url) as client:
            client.register(Registration(id="app-1", role=Role.JOB_MASTER, session="s"))
            finding = Finding(kind=Kind.EXCLUDED, reason="Spark excluded the host.")
            client.heartbeat(
                "app-1",
                "s",
                acked=1,
                task_managers={"app-1:3": "n"},
                running_tasks={"app-1:3": 2},
                evidence={"m": finding},
            )
        assert command.says("status", "n").splitlines()[1].split()[:3] == ["app-1", "JOB_MASTER", "yes"]
        assert command.says("status", "n", "--no-headers").split()[5:7] == ["1", "2"]
        with fresh.client() as http:
            assert json.loads(command.says("status", "n", "-o", "json")) == http.get("/blocklist/nodes/n/status").json()
            listed = json.loads(command.says("listeners", "-o", "json"))["listeners"]
            assert set(listed[0]) == set(http.get("/listeners").json()["listeners"][0])
            assert json.loads(command.says("evidence", "-o", "json")) == http.get("/evidence").json()
        assert command.says("listeners", "--no-headers").split()[:4] == ["app-1", "JOB_MASTER", "live", "1"]
        assert command.says("evidence", "--no-headers").split()[:4] == ["m", "app-1", "excluded", "yes"]
        assert command.says("list", "-o", "wide", "--no-headers").split()[5] == "1"
        rehearsed = command.says("unblock", "n", "--dry-run")
        assert "  TaskManager app-1:3 of app-1 is there, running 2 tasks" in rehearsed


class TestWatch:
    def test_changes_as_they_happen_until_ctrl_c(self, binaries: Path, fresh: ServiceProcess) -> None:
        command = Command(binaries, fresh.url)
        with command.running("watch") as process, on(fresh.url) as client:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stderr.readline() == f"Watching {fresh.url} from revision 0 on.\n"
            client.block("n", "disk")
            assert process.stdout.readline().split() == ["AT", "CHANGE", "NODE", "ACTION", "EXPIRES", "BY", "REASON"]
            assert process.stdout.readline().split()[1:] == ["blocked", "n", "mark", "never", "-", "disk"]
            assert interrupt(process) == (130, "")

    def test_as_json_the_list_comes_first(self, binaries: Path, fresh: ServiceProcess) -> None:
        command = Command(binaries, fresh.url)
        command.says("block", "n", "-r", "disk")
        with command.running("watch", "-o", "jsonl") as process, on(fresh.url) as client:
            assert process.stdout is not None
            first = json.loads(process.stdout.readline())
            assert (first["type"], first["revision"], list(first["nodes"])) == ("snapshot", 1, ["n"])
            client.unblock("n")
            assert json.loads(process.stdout.readline())["type"] == "unblocked"

    def test_the_list_again_at_each_change(self, binaries: Path, fresh: ServiceProcess) -> None:
        command = Command(binaries, fresh.url)
        command.says("block", "a", "-r", "disk")
        with command.running("list", "--watch", "--no-headers") as process, on(fresh.url) as client:
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
            ["block", "n", "-r", "disk", "--until", "tomorrow"],
            ["block", "n", "-r", "disk", "--wait", "2m"],
            ["get"],
            ["get", "a/b"],
            ["list", "-o", "yaml"],
            ["history", "--at", "2026-11-21T18:00:00Z", "--by", "anna"],
            ["history", "--type", "banned"],
            ["token", "create", "x", "--role", "king"],
            ["block", "n", "-r", "disk", "--nope"],
            ["ban", "n"],
        ],
    )
    def test_2_for_what_is_not_understood(self, command: Command, arguments: list[str]) -> None:
        done = command.run(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr

    @pytest.mark.parametrize(
        "setting",
        [{"BLOCKLIST_URL": "ftp://x"}, {"BLOCKLIST_TIMEOUT": "soon"}, {"BLOCKLIST_TOKEN": "bad token"}],
        ids=lambda setting: next(iter(setting)),
    )
    def test_2_for_a_setting_that_is_none(self, command: Command, setting: dict[str, str]) -> None:
        done = command.run("list", **setting)
        assert (done.returncode, done.stdout) == (2, "")
        assert "bad token" not in done.stderr

    @pytest.mark.parametrize(
        "arguments",
        ["block n -r disk", "block n -r disk --dry-run", "unblock n", "list", "list --watch", "get n", "is-blocked n",
         "history", "status n", "watch", "listeners", "evidence", "config check", "token list", "token revoke x",
         "token create x --role reader"],
    )  # fmt: skip
    def test_3_when_the_service_is_away(self, command: Command, arguments: str) -> None:
        done = command.run(*arguments.split(), BLOCKLIST_URL=f"http://127.0.0.1:{free_port()}")
        assert done.returncode == 3
        assert "out of reach" in done.stderr

    @pytest.mark.parametrize(
        "said",
        [answer(b"{}"), answer(b"", "500 Internal Server Error", *OURS), answer(b"", "502 Bad Gateway"),
         answer(b"[]", "200 OK", *OURS), answer(b"", "404 Not Found")],
    )  # fmt: skip
    def test_3_for_a_stranger_and_a_service_that_is_broken(self, command: Command, said: bytes) -> None:
        with stranger(says(said)) as other:
            for arguments in (["list"], ["is-blocked", "n"]):
                assert command.run(*arguments, BLOCKLIST_URL=other.url).returncode == 3

    def test_what_was_left_is_said(self, command: Command, blocklist: BlocklistClient, node_id: str) -> None:
        with stranger(says(answer(b"", "200 OK", *OURS)), says(answer())) as other:
            done = command.run("unblock", f"{node_id}-[1-3]", BLOCKLIST_URL=other.url)
        assert (done.returncode, done.stdout) == (3, f"{node_id}-1 unblocked\n")
        assert f"Not unblocked: {node_id}-2, {node_id}-3." in done.stderr


class TestTokens:
    @pytest.fixture
    def guarded(self, start: Start, tmp_path: Path) -> tuple[ServiceProcess, str]:
        file = tmp_path / "admin.token"
        return start(auth="tokens", admin_token_file=str(file)), str(file)

    def test_made_used_listed_and_revoked(self, binaries: Path, guarded: tuple[ServiceProcess, str]) -> None:
        service, file = guarded
        admin = Command(binaries, service.url, token_file=file)
        made = admin.run("token", "create", "anna", "--role", Access.OPERATOR.value, "-d", "90d")
        token = made.stdout.strip()
        assert token.startswith("blocklist_")
        assert "anna" in made.stderr
        assert token not in made.stderr
        anna = Command(binaries, service.url, token=token)
        anna.says("block", "n", "-r", "disk")
        assert anna.says("list", "--no-headers").split()[3] == "anna"
        assert anna.says("history", "--by", "anna", "-o", "name") == "n\n"
        refused = anna.run("token", "list")
        assert (refused.returncode, "admin" in refused.stderr) == (1, True)
        assert "ROLE      operator, as anna" in anna.says("config", "check")
        listed = admin.says("token", "list", "-o", "wide") + admin.says("token", "list", "-o", "json")
        assert "anna" in listed
        assert token not in listed
        admin.says("token", "revoke", token.split("_")[1])
        refused = anna.run("list")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert token not in refused.stderr

    def test_without_one_it_is_refused(self, binaries: Path, guarded: tuple[ServiceProcess, str]) -> None:
        done = Command(binaries, guarded[0].url).run("list")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("Unauthorized: ")

    def test_a_token_is_never_shown(self, command: Command) -> None:
        secret = "blocklist_00000000_" + "s" * 43
        for arguments in (["config", "check"], ["list"], ["--help"], ["block", "--help"], ["list", "--nope"]):
            done = command.run(*arguments, BLOCKLIST_TOKEN=secret)
            assert secret not in done.stdout + done.stderr


class TestItself:
    def test_config_check(self, command: Command, service: ServiceProcess) -> None:
        said = command.says("config", "check")
        assert f"URL       {service.url} (BLOCKLIST_URL)" in said
        assert "DURATION  4h" in said
        assert "ROLE      admin" in said
        assert "sound" in said
        done = command.run("config", "check", BLOCKLIST_PROT="1")
        assert (done.returncode, "BLOCKLIST_PROT" in done.stdout) == (1, True)

    @pytest.mark.parametrize("argument", ["--version", "--help"])
    def test_it_starts_without_what_takes_long_to_load(self, command: Command, argument: str) -> None:
        code = f"""
import sys
from blocklist.cli.app import run
try: run(["{argument}"])
except SystemExit as end: assert not end.code
if heavy := {{"pydantic", "httpx", "rich", "asyncio", "ssl"}} & set(sys.modules): sys.exit(str(heavy))
"""
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert "blocklist" in done.stdout

    def test_a_list_is_shown_without_rich(self, fresh: ServiceProcess, binaries: Path) -> None:
        """The HTTP library would load it, for a command of its own. Causes beyond ASCII need it, for their width."""
        command = Command(binaries, fresh.url)
        command.says("block", "n", "-r", "disk")
        code = """
import sys
from blocklist.cli.app import run
try: run(["list"])
except SystemExit as end: assert not end.code
sys.exit("rich" in sys.modules)
"""
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=command.env, stdout=subprocess.DEVNULL, check=False
        )
        assert done.returncode == 0

    @pytest.mark.parametrize("shell", ["bash", "zsh"])
    def test_the_completion_of_a_shell(self, command: Command, shell: str) -> None:
        script = command.says(_BLOCKLIST_COMPLETE=f"source_{shell}")
        assert "_BLOCKLIST_COMPLETE" in script
        if shell == "bash":
            subprocess.run(["bash", "-c", f"{script}\ncomplete -p blocklist"], check=True, capture_output=True)

    def test_names_of_blocked_nodes_are_completed(
        self, command: Command, blocklist: BlocklistClient, node_id: str
    ) -> None:
        blocklist.block(f"{node_id}-alpha", "disk")
        words = {
            "COMP_WORDS": f"blocklist unblock {node_id}-a",
            "COMP_CWORD": "2",
            "_BLOCKLIST_COMPLETE": "complete_bash",
        }
        assert command.says(**words).split() == [f"{node_id}-alpha"]
        away = command.run(**words, BLOCKLIST_URL=f"http://127.0.0.1:{free_port()}")
        assert (away.stdout.strip(), away.stderr) == ("", "")

    def test_serve_from_the_checkout(self, binaries: Path, tmp_path: Path) -> None:
        port = free_port()
        command = Command(
            binaries, f"http://127.0.0.1:{port}", port=str(port), database_url=f"sqlite:///{tmp_path}/b.db"
        )
        with command.running("serve") as process:
            wait_until(lambda: command.run("list").returncode == 0, seconds=120)
            process.send_signal(signal.SIGTERM)
            _, stderr = process.communicate(timeout=60)
            assert (process.returncode, "Traceback" in stderr) == (0, False)

    def test_serve_elsewhere_is_a_sentence(self, tmp_path: Path, command: Command) -> None:
        shutil.copytree(ROOT / "blocklist", tmp_path / "blocklist")
        run = [sys.executable, "-P", "-m", "blocklist.cli", "serve"]
        env = {**os.environ, "PYTHONPATH": str(tmp_path)}
        done = subprocess.run(run, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert "checkout" in done.stderr
