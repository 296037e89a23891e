"""`list` and TAB need few imports; they print what the ordinary command prints, whatever the service answers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer.main

from blocklist import BlocklistClient
from blocklist.cli import app
from blocklist.cli.completion_words import COMMANDS, FLAGS, VALUED_OPTIONS
from blocklist.cli.quick_completion import BLOCK_COMMANDS, NODE_COMMANDS
from blocklist.client.quick_read import NotQuickError, quick_get
from tests.integration.command import Command, run
from tests.integration.databases import Databases
from tests.integration.fake_servers import (
    SERVICE_HEADERS,
    fake_server,
    http_response,
    respond,
    respond_endlessly,
    tcp_server,
)
from tests.integration.process import ROOT, ServiceProcess, free_port, wait_until
from tests.integration.secured import SecuredService
from tests.integration.test_tls import TlsProcess

DAY: Final = 86_400_000
MARK, EVACUATE = "MARK_BLOCKED", "MARK_BLOCKED_AND_EVACUATE_TASKS"
HEAVY: Final = {"click", "email", "http", "httpx", "logging", "pydantic", "ssl", "tempfile", "typer", "urllib.request"}
LISTED: Final = {
    "action": MARK,
    "startTimestamp": "1",
    "endTimestamp": "9223372036854775807",
    "cause": "disk",
    "taskManagers": [],
    "createdBy": None,
    "revision": 7,
    "owners": ["anna"],
}


def check_same(command: Command, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The result of the command, which is also that of its ordinary way."""
    ordinary = run(*arguments, env=command.env | env, main=lambda: app.run(list(arguments)))
    done = command.run(*arguments, **env)
    assert (done.returncode, done.stdout, done.stderr) == (ordinary.returncode, ordinary.stdout, ordinary.stderr)
    return done


@pytest.fixture(scope="module")
def filled(binaries: Path, tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[Command]:
    """A service whose list has blocks of all kinds, and the contexts `lab`, which names it, and `away`."""
    # Half a day and half an hour: no unit of what remains changes during a test.
    end = str(time.time_ns() // 1_000_000 + 400 * DAY + DAY // 2 + 1_800_000)
    blocks = {
        "n1": {"action": MARK, "cause": "disk"},
        "n2.example.com": {"action": EVACUATE, "cause": "zu hei\u00df \U0001f525 \u202e", "endTimestamp": end},
        "10.0.0.9": {"action": MARK, "cause": "a" * 300, "endTimestamp": end},
        "fe80::1": {"action": MARK, "cause": 'two  spaces, \\ and "quotes"'},
    }
    folder = tmp_path_factory.mktemp("quick")
    with ServiceProcess(folder, **databases.settings(folder)) as process:
        with process.client() as client:
            assert client.put("/blocklist/nodes", json=blocks).status_code == 200
            for owner in ("alertmanager/1", "anna"):
                claim = {"action": EVACUATE, "cause": f"of {owner}", "endTimestamp": end}
                assert client.put(f"/blocklist/nodes/n1/claims/{owner}", json=claim).status_code in {200, 201}
        command = Command(binaries, process.url)
        command.env["XDG_CONFIG_HOME"] = str(folder)
        command.stdout_of("config", "set", "away", "url", f"http://127.0.0.1:{free_port()}")
        command.stdout_of("config", "set", "lab", "url", process.url)
        yield command


@pytest.mark.parametrize(
    "arguments",
    [
        "list",
        "list -o wide",
        "list --output name --no-headers",
        "list --no-headers",
        "list -o json",
        "list -o",
        "list -o tabel",
        "list n1",
        "list --by nobody",
        "--no-headers list",
        "listeners list",
        "list --context lab",
        "--context=lab list",
        "list --context away",
        "list --context nosuch",
        "list --context=",
    ],
)
def test_the_list_is_the_same(filled: Command, arguments: str) -> None:
    check_same(filled, *arguments.split())


@pytest.mark.parametrize(
    "env",
    [
        {"BLOCKLIST_URLS": "http://127.0.0.1:1"},
        {"BLOCKLIST_TIMEOUT": "soon"},
        {"BLOCKLIST_URL": "http://127.0.0.1:8224/blocklist?x"},
        {"BLOCKLIST_URL": "ftp://127.0.0.1"},
        {"BLOCKLIST_URL": "http://[::1"},
        {"BLOCKLIST_TOKEN": "no token"},
        {"BLOCKLIST_TOKEN_FILE": "/nonexistent"},
        {"XDG_CONFIG_HOME": "/dev/null"},
    ],
)
def test_a_wrong_setting_is_the_same_error(filled: Command, env: dict[str, str]) -> None:
    check_same(filled, "list", **env)


@pytest.mark.parametrize(
    "response",
    [
        http_response(json.dumps({"n1": LISTED}).encode(), "200 OK", *SERVICE_HEADERS),
        http_response(json.dumps({"n1": LISTED}).encode()),
        http_response(b"{}", "200 OK", *SERVICE_HEADERS, length=3),
        http_response(b"{} more", "200 OK", *SERVICE_HEADERS, length=2),
        http_response(b"2\r\n{}\r\n0\r\n\r\n", "200 OK", *SERVICE_HEADERS, "Transfer-Encoding: chunked"),
        http_response(b"{}", "200 OK", *SERVICE_HEADERS).replace(b"Content-Length: 2\r\n", b""),
        http_response(b"{}", "200 OK", *SERVICE_HEADERS, "X-Place: K\u00f6ln"),
        http_response(b"[]", "200 OK", *SERVICE_HEADERS),
        http_response(b"{", "200 OK", *SERVICE_HEADERS),
        http_response(b"[" * 100_000, "200 OK", *SERVICE_HEADERS),
        http_response(b"", "503 Service Unavailable", *SERVICE_HEADERS),
        http_response(b"", "302 Found", "Location: /elsewhere"),
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"",
    ],
)
def test_an_odd_response_is_the_same_error(command: Command, response: bytes) -> None:
    with fake_server(respond(response)) as server:
        check_same(command, "list", BLOCKLIST_URL=server.url)


@pytest.mark.parametrize("field", LISTED)
@pytest.mark.parametrize("value", [None, 5, "", ["x"], [5], "9223372036854775808"])
def test_an_odd_field_is_the_same(command: Command, field: str, value: Any) -> None:
    body = json.dumps({"n1": LISTED, "n2": LISTED | {field: value}}).encode()
    with fake_server(respond(http_response(body, "200 OK", *SERVICE_HEADERS))) as server:
        check_same(command, "list", "-o", "wide", BLOCKLIST_URL=server.url)


def test_a_service_that_sends_byte_by_byte_is_left_to_the_ordinary_command_after_a_second(command: Command) -> None:
    """Each byte comes in time; the last would come after days."""
    body = json.dumps({"n1": LISTED}).encode()
    endless = respond_endlessly(http_response(b"{", "200 OK", *SERVICE_HEADERS, length=10**6), b" ", 0.2)
    with fake_server(endless, http_response(body, "200 OK", *SERVICE_HEADERS)) as server:
        done = command.run("list", BLOCKLIST_URL=server.url)
        assert (done.returncode, len(server.requests)) == (0, 2), done.stderr


def test_tokens_and_token_files(binaries: Path, secured: SecuredService, tmp_path: Path) -> None:
    command, file = Command(binaries, secured.process.url), tmp_path / "token"
    file.write_text(f"{secured.admin}\n")
    assert check_same(command, "list").returncode == 1
    assert check_same(command, "list", BLOCKLIST_TOKEN="wrong").returncode == 1
    assert check_same(command, "list", BLOCKLIST_TOKEN=secured.admin).returncode == 0
    assert check_same(command, "list", BLOCKLIST_TOKEN_FILE=str(file)).returncode == 0
    file.write_text("two words")
    assert check_same(command, "list", BLOCKLIST_TOKEN_FILE=str(file)).returncode == 2


def test_tls_with_and_without_trust(binaries: Path, tmp_path: Path, databases: Databases) -> None:
    with TlsProcess(tmp_path, **databases.settings(tmp_path)) as process:
        command = Command(binaries, process.url)
        assert check_same(command, "list").returncode == 3
        check_same(command, "list", SSL_CERT_FILE=str(process.cert))
        check_same(command, "list", BLOCKLIST_URL=process.url.replace("https", "http"))


def test_the_quick_way_speaks_tls_and_ipv6(
    tmp_path: Path, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TlsProcess(tmp_path, **databases.settings(tmp_path)) as process:
        monkeypatch.setattr("certifi.where", lambda: str(process.cert))
        monkeypatch.setattr("blocklist.client.quick_read._MAX_SECONDS", 30)
        assert quick_get(process.url, "/blocklist", None, 30).body == {}
        with pytest.raises(NotQuickError):
            quick_get(process.url.replace("https", "http"), "/blocklist", None, 30)
    whole = http_response(b"{}", "200 OK", *SERVICE_HEADERS, "Date: Sat, 21 Nov 2026 18:00:03 GMT")
    with tcp_server(lambda connection: connection.sendall(whole * bool(connection.recv(65536))), "::1") as url:
        assert quick_get(url, "/blocklist", None, 30) == ({}, "Sat, 21 Nov 2026 18:00:03 GMT")


def test_closed_and_full_outputs(filled: Command) -> None:
    for redirection in (">/dev/full", ">&-", "| true", "2>&-"):
        script = f'blocklist list {redirection}; echo "${{PIPESTATUS[*]}}"'
        done = subprocess.run(["bash", "-c", script], env=filled.env, capture_output=True, text=True, check=True)
        script = script.replace("blocklist list", "blocklist list --sort node")
        other = subprocess.run(["bash", "-c", script], env=filled.env, capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr) == (other.stdout, other.stderr)


@pytest.mark.parametrize("line", ["list", "unblock n", "unblock --wait 5s n", "unb"])
def test_the_slow_modules_are_not_imported(filled: Command, line: str) -> None:
    code = "import sys; from blocklist.cli.__main__ import main; main(); print(*sys.modules, file=sys.stderr)"
    env = {} if line == "list" else bash(line)
    command = [sys.executable, "-P", "-c", code, *(["list"] if line == "list" else [])]
    done = subprocess.run(
        command, env=filled.env | env | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("unblock" if line == "unb" else ("NODE", "n1"))
    assert HEAVY.isdisjoint(done.stderr.split())


def bash(line: str) -> dict[str, str]:
    """The variables with which bash asks to complete the last word of a line."""
    words = f"blocklist {line}"
    return {"_BLOCKLIST_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}


def zsh(line: str) -> dict[str, str]:
    return {"_BLOCKLIST_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": f"blocklist {line}"}


def fish(line: str) -> dict[str, str]:
    own = {"_BLOCKLIST_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    return zsh(line) | own


def fish_asks(line: str) -> dict[str, str]:
    return fish(line) | {"_TYPER_COMPLETE_FISH_ACTION": "is-args"}


@pytest.mark.parametrize("shell", [bash, zsh, fish, fish_asks])
@pytest.mark.parametrize(
    "line",
    [
        "unblock ",
        "unblock n",
        "status fe80::",
        "history nosuch",
        "un",
        "",
        "nosuch",
        "config ",
        "config use ",
        "token c",
    ],
)
def test_each_shell_gets_the_same_completions(filled: Command, shell: Any, line: str) -> None:
    check_same(filled, **shell(line))


@pytest.mark.parametrize(
    "line",
    [
        "unblock n1 n2",
        "get n1 n",
        "extend -d 2h n",
        "extend n1 -d ",
        "unblock --wait 5s --dry-run n",
        "history --by=anna --from -1h n",
        "history --type blocked n",
        "history -o n",
        "extend -d2h n",
        "unblock --nosuch n",
        "extend -r",
        "get -o wide n",
        "get n1 -o wide n",
        "config set aw",
        "config get lab ",
        "spark ",
        "unblock --",
        "list ",
        "",
        "unblock 'n",
        "--context lab unblock n",
        "unblock --context away n",
        "unblock --context nosuch n",
    ],
)
def test_every_line_gets_the_same_completions(filled: Command, line: str) -> None:
    check_same(filled, **bash(line))


def test_the_nodes_of_the_context_on_the_line_are_completed(filled: Command) -> None:
    away = {"BLOCKLIST_URL": f"http://127.0.0.1:{free_port()}"}
    for line in ("unblock --context lab n2", "--context lab unblock n2", "extend -d 2h --context lab n2"):
        assert "n2.example.com" in filled.stdout_of(**bash(line), **away).split()
    # Bash makes `=` a word.
    assert "n2.example.com" in filled.stdout_of(**bash("unblock --context = lab n2"), **away).split()
    assert filled.stdout_of(**bash("unblock --context away n2")).split() == []


def test_a_quoted_reason_does_not_keep_the_nodes_from_being_completed(filled: Command) -> None:
    line = 'unblock n3 --wait "5 s" n2'
    words = {**bash(line), "COMP_CWORD": "5"}
    assert check_same(filled, **words).stdout.split() == ["n2.example.com"]
    assert check_same(filled, **zsh(line)).stdout == (
        "local -a blocklist_words=('n2.example.com'); _describe -V blocklist blocklist_words\n"
    )


def test_contexts_are_completed(filled: Command) -> None:
    for line in ("--context ", "list --context ", "config use "):
        assert sorted(filled.stdout_of(**bash(line)).split()) == ["away", "lab"], line
    assert filled.stdout_of(**bash("block --context a")).split() == ["away"]


def test_the_tables_for_tab_are_those_of_the_commands() -> None:
    tree = typer.main.get_command(app._command_tree())
    groups = {"": tree} | {name: each for name, each in tree.commands.items() if hasattr(each, "commands")}  # type: ignore[attr-defined]
    for name, group in groups.items():
        context = group.make_context(name, [], resilient_parsing=True)
        shown = {word.value: word.help for word in group.shell_complete(context, "")}
        assert dict(COMMANDS[name]) == shown
    assert groups.keys() == COMMANDS.keys()
    commands = [tree.commands[name] for name in (*NODE_COMMANDS, *BLOCK_COMMANDS)]  # type: ignore[attr-defined]
    options = [each for command in commands for each in command.params if each.opts[0].startswith("-")]
    assert {name for each in options if each.is_flag for name in each.opts} == FLAGS
    assert {name for each in options if not each.is_flag for name in each.opts} == VALUED_OPTIONS


def test_all_commands_that_complete_nodes_do_it_quickly() -> None:
    tree = typer.main.get_command(app._command_tree())
    commands = {
        name
        for name, command in tree.commands.items()  # type: ignore[attr-defined]
        for parameter in command.params
        if parameter.name == "node" and parameter._custom_shell_complete
    }
    assert commands == {*NODE_COMMANDS, *BLOCK_COMMANDS}


def test_block_and_drain_complete_the_nodes_of_the_inventory_free_ones_first(
    binaries: Path, tmp_path: Path, databases: Databases
) -> None:
    """Whether or not the line has an option, with which typer completes."""
    file = tmp_path / "nodes.csv"
    file.write_text("id\n" + "".join(f"r12n0{number}\n" for number in range(1, 5)) + "a\nr1\nz\n")
    with ServiceProcess(tmp_path, **databases.settings(tmp_path), nodes_file=str(file)) as process:
        with BlocklistClient(process.url) as client:
            wait_until(lambda: len(client.known_nodes_after()) == 7)
            client.block("r12n02", "disk")
        command = Command(binaries, process.url)
        for line in ("block r12n", "drain r12n", "block -r Disk r12n", "drain a r12n"):
            assert command.stdout_of(**bash(line)).split() == ["r12n01", "r12n03", "r12n04", "r12n02"], line
        assert command.stdout_of(**bash("block r12n03")).split() == ["r12n03"]
        assert command.stdout_of(**bash("block x")).split() == []
        assert len(command.stdout_of(**bash("block ")).split()) == 7


def test_an_empty_context_is_refused(filled: Command) -> None:
    for arguments in (["list", "--context", ""], ["unblock", "n1", "--context="]):
        done = filled.run(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert "--context needs the name of a context" in done.stderr
