"""open and completion: the page in a browser, and TAB in a shell."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from blocklist.cli import options
from blocklist.cli.completion import SCRIPTS
from blocklist.cli.environment import connect
from blocklist.cli.output import print_lines, print_stderr


class Shell(StrEnum):
    """The shells that are supported."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def open_() -> None:
    """Open the page in a browser, and print its address."""
    import webbrowser  # noqa: PLC0415

    with connect() as client:
        url = f"{client.url}/"
    print_lines(url)
    if not webbrowser.open(url):
        print_stderr("No browser could be started here: open the address above.")


ShellName = Annotated[
    Shell,
    typer.Argument(
        metavar="SHELL",
        help="bash, zsh or fish.",
        parser=options.choice_parser(Shell),
        autocompletion=options.choice_completion(Shell),
    ),
]


def completion(shell: ShellName) -> None:
    """Print the completion for a shell: source <(blocklist completion bash)."""
    print_lines(SCRIPTS[shell])
