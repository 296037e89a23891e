"""TAB in real shells: bash, zsh and fish, each with the script that `blocklist completion` prints."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blocklist import BlocklistClient
from tests.integration.command import Command
from tests.integration.databases import Databases
from tests.integration.process import ServiceProcess, free_port, wait_until
from tests.integration.shells import INSTALLED_ZSH, SHELLS, Shell, running

NODES = ("r12n01", "r12n02", "r12n03", "fe80::1", "rm.example.com:8080", "a_b-c.example.com")
BLOCKED = ("r12n02", "fe80::1", "rm.example.com:8080", "::1")


def also(*values: str) -> Any:
    """A case of the long form: each TAB starts a process, and the shell makes no difference to these."""
    return pytest.param(*values, marks=pytest.mark.long)


@pytest.fixture(scope="module")
def filled(binaries: Path, tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[Command]:
    """A service with an inventory and blocks; `away` is the context of a service that is down."""
    folder = tmp_path_factory.mktemp("shells")
    file = folder / "nodes.csv"
    file.write_text("\n".join(["id", *NODES, ""]))
    with ServiceProcess(folder, **databases.settings(folder), nodes_file=str(file)) as process:
        with BlocklistClient(process.url) as client:
            wait_until(lambda: len(client.known_nodes_after()) == len(NODES))
            for node in BLOCKED:
                client.block(node, "disk")
        command = Command(binaries, process.url)
        command.env["XDG_CONFIG_HOME"] = str(folder)
        command.stdout_of("config", "set", "away", "url", f"http://127.0.0.1:{free_port()}")
        yield command


@pytest.fixture(scope="module", params=SHELLS)
def shell(request: pytest.FixtureRequest, filled: Command, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with running(request.param, tmp_path_factory.mktemp(request.param), filled.env) as shell:
        yield shell


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        also("dra", "drain"),
        ("config us", "config use"),
        also("token cr", "token create"),
        also("completion f", "completion fish"),
        ("list --act", "list --action"),
        also("list --action ev", "list --action evacuate"),
        ("list --action=ev", "list --action=evacuate"),
        also("unblock r", "unblock r12n02"),
        ("unblock fe80::1 r", "unblock fe80::1 r12n02"),
        also("unblock -l rack=r12 r", "unblock -l rack=r12 r12n02"),
        ("block -r 'a  b' a_", "block -r 'a  b' a_b-c.example.com"),
        also("list --context a", "list --context away"),
        ("list --context=a", "list --context=away"),
        ("config set away token_file n-", "config set away token_file n-file"),
    ],
)
def test_tab_completes_commands_options_nodes_contexts_and_files(shell: Shell, line: str, completed: str) -> None:
    assert shell.complete(f"blocklist {line}") == f"blocklist {completed}"


@pytest.mark.parametrize(
    ("begun", "node"),
    [
        also("f", "fe80::1"),
        ("fe80:", "fe80::1"),
        also("fe80::", "fe80::1"),
        ("rm.example.com:80", "rm.example.com:8080"),
        ("'fe80:", "fe80::1"),
        also('"r12', "r12n02"),
    ],
)
def test_a_node_with_a_special_character_is_completed_wherever_tab_is_pressed(
    shell: Shell, begun: str, node: str
) -> None:
    """Bash makes `:` a word of its own."""
    completed = shell.complete(f"blocklist unblock {begun}")
    assert shlex.split(completed) == ["blocklist", "unblock", node]


def test_free_nodes_are_offered_first(shell: Shell) -> None:
    """Shells would sort them."""
    for tabs, node in enumerate(("r12n01", "r12n03", "r12n02"), 1):
        assert shell.complete("blocklist block r12n", tabs) == f"blocklist block {node}"


@pytest.mark.parametrize(
    "line", ["status n", also("unblock --context away r12"), "block --context away n", also("list --context n")]
)
def test_files_are_not_offered_as_nodes_and_contexts(shell: Shell, line: str) -> None:
    """Whether there is none that begins so, or the service is down."""
    assert shell.complete(f"blocklist {line}") == f"blocklist {line}"


def test_the_first_tab_completes_with_the_script_that_zsh_loads_by_itself(filled: Command, tmp_path: Path) -> None:
    with running("zsh", tmp_path, filled.env, INSTALLED_ZSH) as shell:
        assert shell.complete("blocklist unblock fe80:") == "blocklist unblock fe80::1"
        assert shell.complete("blocklist block r12n", 2) == "blocklist block r12n03"
