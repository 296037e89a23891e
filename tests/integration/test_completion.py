"""TAB: what is offered for a line, in the form that each shell expects, and that it starts quickly."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from blocklist import BlocklistClient
from blocklist.cli.main import EXIT_FILES
from tests.integration.command import Command
from tests.integration.databases import Databases
from tests.integration.process import ROOT, ServiceProcess, free_port, wait_until

DAY: Final = 86_400_000
MARK, EVACUATE = "MARK_BLOCKED", "MARK_BLOCKED_AND_EVACUATE_TASKS"
SLOW: Final = {"click", "pydantic", "pydantic_core", "rich", "trio"}
"""Modules that take long to import and that no ordinary command needs."""


@pytest.fixture(scope="module")
def filled(binaries: Path, tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[Command]:
    """A service whose list has blocks of all kinds, and the contexts `lab`, which names it, and `away`."""
    end = str(time.time_ns() // 1_000_000 + 400 * DAY)
    blocks = {
        "n1": {"action": MARK, "cause": "disk"},
        "n2.example.com": {"action": EVACUATE, "cause": "too hot", "endTimestamp": end},
        "10.0.0.9": {"action": MARK, "cause": "a" * 300, "endTimestamp": end},
        "fe80::1": {"action": MARK, "cause": 'two  spaces, \\ and "quotes"'},
    }
    folder = tmp_path_factory.mktemp("completion")
    with ServiceProcess(folder, **databases.settings(folder)) as process:
        with process.client() as client:
            assert client.put("/blocklist/nodes", json=blocks).status_code == 200
        command = Command(binaries, process.url)
        command.env["XDG_CONFIG_HOME"] = str(folder)
        command.stdout_of("config", "set", "away", "url", f"http://127.0.0.1:{free_port()}")
        command.stdout_of("config", "set", "lab", "url", process.url)
        yield command


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


def zsh_words(items: str) -> str:
    return f"local -a blocklist_words=({items}); _describe -V blocklist blocklist_words\n"


ALL: Final = "10.0.0.9 fe80::1 n1 n2.example.com"
WITH_N: Final = "n1 n2.example.com"
FILES: Final = None
"""The files of the folder, which the shell offers by itself."""


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("unblock ", ALL),
        ("unblock n", WITH_N),
        ("unblock n1 n2", "n2.example.com"),
        ("status nosuch", ""),
        ("get n", WITH_N),
        ("get n1 n", FILES),
        ("get -o wide n", WITH_N),
        ("get n1 -o wide n", FILES),
        ("extend -d 2h n", WITH_N),
        ("extend -d2h n", WITH_N),
        ("extend n1 -d ", FILES),
        ("extend -r", FILES),
        ("unblock --wait 5s --dry-run n", WITH_N),
        ("history --by=anna --from -1h n", WITH_N),
        ("history --type blocked n", WITH_N),
        ("history -o n", "name"),
        ("unblock 'n", WITH_N),
        ("un", "unblock"),
        ("nosuch", ""),
        ("list ", FILES),
        ("config s", "set"),
        ("config use ", "away lab"),
        ("config set aw", "away"),
        ("config get lab ", FILES),
        ("token c", "create"),
        ("spark ", "jar defaults"),
        ("unblock --wa", "--wait --wait-for"),
        ("--context lab unblock n", WITH_N),
        ("unblock --context lab n", WITH_N),
        ("unblock --context away n", ""),
        ("unblock --context nosuch n", ""),
        ("--context ", "away lab"),
        ("list --context ", "away lab"),
        ("block --context a", "away"),
    ],
)
def test_bash_is_offered_what_may_come_next(filled: Command, line: str, offered: str | None) -> None:
    done = filled.run(**bash(line))
    assert (done.returncode, done.stderr) == (0 if offered is not FILES else EXIT_FILES, "")
    assert done.stdout.split() == (offered or "").split()


def test_all_commands_are_offered(filled: Command) -> None:
    offered = filled.stdout_of(**bash("")).split()
    assert {"block", "list", "status", "config", "manager"} <= set(offered)
    assert offered == filled.stdout_of(**fish("")).replace("\n", "\t").split("\t")[0 : 2 * len(offered) : 2]


@pytest.mark.parametrize(
    ("variables", "offered"),
    [
        (zsh("unblock n"), zsh_words("'n1' 'n2.example.com'")),
        (zsh("status fe80"), zsh_words(r"'fe80\:\:1'")),
        (zsh("unb"), zsh_words("'unblock:Unblock nodes before their end, one after...'")),
        (zsh("unblock nosuch"), "\n"),
        (fish("unblock n"), "n1\nn2.example.com\n"),
        (fish("unb"), "unblock\tUnblock nodes before their end, one after...\n"),
        (fish_asks("unblock n"), ""),
        (bash("status fe80::"), "fe80::1\n"),
    ],
)
def test_each_shell_has_its_form(filled: Command, variables: dict[str, str], offered: str) -> None:
    assert filled.stdout_of(**variables) == offered


def test_the_nodes_of_the_context_on_the_line_are_completed(filled: Command) -> None:
    away = {"BLOCKLIST_URL": f"http://127.0.0.1:{free_port()}"}
    for line in ("unblock --context lab n2", "--context lab unblock n2", "extend -d 2h --context lab n2"):
        assert "n2.example.com" in filled.stdout_of(**bash(line), **away).split()
    # Bash makes `=` a word.
    assert "n2.example.com" in filled.stdout_of(**bash("unblock --context = lab n2"), **away).split()


@pytest.mark.parametrize("shell", [bash, zsh])
def test_a_quoted_value_does_not_keep_the_nodes_from_being_completed(
    filled: Command, shell: Callable[[str], dict[str, str]]
) -> None:
    variables = shell('unblock n3 --wait "5 s" n2') | ({"COMP_CWORD": "5"} if shell is bash else {})
    assert "n2.example.com" in filled.stdout_of(**variables)


def test_block_and_drain_complete_the_nodes_of_the_inventory_free_ones_first(
    binaries: Path, tmp_path: Path, databases: Databases
) -> None:
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


@pytest.mark.parametrize("arguments", [["list", "--context", ""], ["unblock", "n1", "--context="]])
def test_an_empty_context_is_refused(filled: Command, arguments: list[str]) -> None:
    done = filled.run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--context needs the name of a context" in done.stderr


def modules_after(env: dict[str, str], *commands: str) -> set[str]:
    """The modules that a process has imported after these commands, each of which succeeds."""
    code = """
import json, sys
from blocklist.cli.main import run
for line in json.loads(sys.argv.pop()):
    try: run(line.split())
    except SystemExit as end: assert not end.code, line
print(*sys.modules, file=sys.stderr)
"""
    process = [sys.executable, "-P", "-c", code, json.dumps(commands)]
    done = subprocess.run(
        process, env=env | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300, check=True
    )
    return set(done.stderr.split())


def test_no_command_imports_what_is_slow(filled: Command) -> None:
    commands = (
        "list", "get n1", "is-blocked n1", "status n1", "history n1", "nodes", "claims", "drift", "listeners",
        "evidence", "token list", "block n1 -r disk", "block n9 -r disk --dry-run", "extend n1 -d 500d", "unblock n9",
        "config list", "config set other url http://127.0.0.1:1", "list --help", "config check",
    )  # fmt: skip
    imported = modules_after(filled.env, *commands)
    assert "httpx" in imported
    assert SLOW.isdisjoint(imported)


def test_tab_imports_the_client_only_for_nodes(filled: Command) -> None:
    imported = [modules_after(filled.env | bash(line), "") for line in ("unblock n", "unb", "config use ", "list --")]
    assert ["httpx" in each for each in imported] == [True, False, False, False]
    assert all(SLOW.isdisjoint(each) for each in imported)
