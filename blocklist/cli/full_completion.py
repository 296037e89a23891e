"""TAB where the commands themselves must say what comes next: options, and values with an option before them."""

from __future__ import annotations

from typing import Final

import typer
import typer.main

from blocklist.cli import completed_line, environment
from blocklist.cli.completion_output import print_completions
from blocklist.model.errors import BlocklistError

REQUESTS: Final = frozenset({"complete_bash", "complete_zsh", "complete_fish"})
"""What the scripts ask for; typer serves others, such as PowerShell."""


def run(tree: typer.Typer) -> None:
    """Print the completions; none if the line is invalid: an error would be printed into it."""
    # Private: if a later typer has moved them, all but this goes on working.
    from typer._click.shell_completion import _resolve_context, _resolve_incomplete  # noqa: PLC0415

    words, incomplete, kept = completed_line.read()
    try:
        # TAB shows the nodes of the service that the line will use.
        words = environment.take_context(words)
    except BlocklistError:
        print_completions([])
        return
    command = typer.main.get_command(tree)
    context = _resolve_context(command, {}, "blocklist", words)
    completed, value = _resolve_incomplete(context, words, incomplete)
    # `--action=m`: the word begins with the name of the option.
    before = incomplete.removesuffix(value)
    found = {before + item.value: item.help or "" for item in completed.shell_complete(context, value)}
    print_completions(found, kept=kept, files=_may_be_file(completed))


def _may_be_file(completed: object) -> bool:
    """Whether the value may be the name of a file: no command or option, and nothing that is known here."""
    is_group = hasattr(completed, "commands")
    return not is_group and getattr(completed, "_custom_shell_complete", None) is None
