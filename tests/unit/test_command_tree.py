"""The table of the commands: each entry can be imported, and says what the command says about itself."""

from __future__ import annotations

from importlib import import_module

import pytest
from typer.core import TyperCommand, TyperGroup

from blocklist.cli.main import COMMANDS, command_tree
from tests.integration.command import run

FUNCTIONS = [
    pytest.param(group, name, function, summary, id=f"{group} {name}".strip())
    for group, commands in COMMANDS.items()
    for name, (function, summary) in commands.items()
    if function and function != "admin.service"  # one function for all; app.cli has their help
]


def command_of(group: str, name: str) -> TyperCommand:
    command: object = command_tree()
    for word in filter(None, (group, name)):
        assert isinstance(command, TyperGroup)
        command = command.resolve_command(None, [word])[1]  # type: ignore[arg-type]
    assert isinstance(command, TyperCommand)
    return command


@pytest.mark.parametrize(("group", "name", "function", "summary"), FUNCTIONS)
def test_a_summary_is_the_first_sentence_of_the_help(group: str, name: str, function: str, summary: str) -> None:
    module, _, attribute = function.partition(".")
    text = " ".join((getattr(import_module(f"blocklist.cli.{module}"), attribute).__doc__ or "").split())
    assert text == summary or text.startswith(f"{summary} ")
    assert command_of(group, name).name == name


OPTIONS = [
    pytest.param(group, name, option, id=f"{group} {name} {option}".strip())
    for group, commands in COMMANDS.items()
    for name, (function, _) in commands.items()
    if function and function not in {"admin.service", "admin.manager", "admin.flink"}
    for parameter in command_of(group, name).params
    for option in parameter.opts
    if option.startswith("-") and not getattr(parameter, "is_flag", False)
]


@pytest.mark.parametrize(("group", "name", "option"), OPTIONS)
@pytest.mark.parametrize("following", ["--misspelt", "-d"])
def test_no_option_takes_the_next_option_for_its_value(group: str, name: str, option: str, following: str) -> None:
    path = [*filter(None, (group, name))]
    done = run(*path, "n1", option, following, env={"BLOCKLIST_URL": "http://127.0.0.1:9"})
    assert (done.returncode, done.stdout) == (2, "")
    assert f"needs a value before {following}. If that is the value: --" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["block", "n1", "-r", "--"],
        ["block", "n1", "2h", "-r", "disk"],
        ["block", "n1", "forever", "-r", "disk"],
        ["block", "n1,2h", "-r", "disk"],
        ["block", "[1-2]h", "-r", "disk"],
        ["block", "n1,--merge", "-r", "disk"],
        ["block", "n1", "2H", "-r", "disk"],
        ["block", "n1", "90min", "-r", "disk"],
        ["extend", "n1", "2hours"],
        ["extend", "n1", "18:00"],
        ["extend", "n1", "tomorrow"],
        ["extend", "n1", "2026-11-21T18:00:00Z"],
        ["block", "n1", "-r", "2h"],
        ["block", "-r", "disk", "--", "n1", "--evacuate"],
        ["block", "n1", "-r", "disk", "--force-reason", "1d"],
        ["extend", "n1", "2h"],
        ["unblock", "n1", "2h"],
        ["drain", "n1", "30m"],
        ["status", "2h"],
        ["get", "90s"],
        ["is-blocked", "2h"],
        ["list", "--by", "1h"],
        ["list", "--owner", "1h"],
        ["history", "--by", "1h"],
        ["history", "-n", "1h"],
        ["history", "-n", "0"],
        ["token", "create", "90d", "--role", "reader"],
        ["block", "n1", "-r", "disk", "--wait-for", "95%"],
        ["block", "n1", "-r", "disk", "--wait", "1s", "--wait-for", "95"],
    ],
)
def test_a_word_that_belongs_to_another_option_is_refused(arguments: list[str]) -> None:
    done = run(*arguments, env={"BLOCKLIST_URL": "http://127.0.0.1:9"})
    assert (done.returncode, done.stdout) == (2, ""), done.stderr


@pytest.mark.parametrize("value", ["-15m", "-"])
def test_a_value_may_begin_with_a_dash(value: str) -> None:
    done = run("history", "--from", value, env={"BLOCKLIST_URL": "http://127.0.0.1:9"})
    assert "needs a value" not in done.stderr


def test_every_group_has_commands() -> None:
    assert {name for name, (function, _) in COMMANDS[""].items() if not function} == COMMANDS.keys() - {""}
