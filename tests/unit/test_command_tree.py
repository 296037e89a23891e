"""The table of the commands: each entry can be imported, and says what the command says about itself."""

from __future__ import annotations

from importlib import import_module

import pytest
from typer.core import TyperGroup

from blocklist.cli.main import COMMANDS, command_tree

FUNCTIONS = [
    pytest.param(group, name, function, summary, id=f"{group} {name}".strip())
    for group, commands in COMMANDS.items()
    for name, (function, summary) in commands.items()
    if function and function != "admin.service"  # one function for all; app.cli has their help
]


@pytest.mark.parametrize(("group", "name", "function", "summary"), FUNCTIONS)
def test_a_summary_is_the_first_sentence_of_the_help(group: str, name: str, function: str, summary: str) -> None:
    module, _, attribute = function.partition(".")
    text = " ".join((getattr(import_module(f"blocklist.cli.{module}"), attribute).__doc__ or "").split())
    assert text == summary or text.startswith(f"{summary} ")
    command: object = command_tree()
    for word in filter(None, (group, name)):
        assert isinstance(command, TyperGroup)
        command = command.resolve_command(None, [word])[1]  # type: ignore[arg-type]
    assert getattr(command, "name", None) == name


def test_every_group_has_commands() -> None:
    assert {name for name, (function, _) in COMMANDS[""].items() if not function} == COMMANDS.keys() - {""}
