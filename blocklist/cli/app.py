"""The command's tree, and from an error to its exit code."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

import blocklist
from blocklist.cli import block_commands, config_command, output, read_commands, serve_command, tokens, watch_commands
from blocklist.model.errors import BlocklistError, ConflictError, InvalidError, UnavailableError

EXIT_REJECTED, EXIT_USAGE, EXIT_UNREACHABLE = 1, 2, 3


def run(arguments: list[str]) -> int:
    """Run the command; its exit code. What went wrong is a sentence on stderr."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        _command_tree()(arguments, prog_name="blocklist")
    except BlocklistError as error:
        return _report_error(error)
    finally:
        output.flush()
    return 0


def _report_error(error: BlocklistError) -> int:
    # A single line says more than a sentence that counts them.
    detail, *lines = error.lines if len(error.lines) == 1 else (error.detail, *error.lines)
    output.print_stderr(f"{error.title or 'Error'}: {detail}", *(f"  {line}" for line in lines))
    if isinstance(error, ConflictError) and error.blocked:
        output.print_stderr("Nothing was changed. --merge joins the blocks.")
    match error:
        case UnavailableError():
            return EXIT_UNREACHABLE
        case InvalidError(title=None):
            # Not the service says so: a setting or an argument is wrong.
            return EXIT_USAGE
        case _:
            return EXIT_REJECTED


def _command_tree() -> typer.Typer:
    tree, config, token = _group(callback=_root), _group(help="The settings."), _group(help="Who may do what.")
    tree.command()(block_commands.block)
    tree.command()(block_commands.unblock)
    tree.command("list")(read_commands.list_)
    tree.command()(read_commands.get)
    tree.command()(read_commands.is_blocked)
    tree.command()(read_commands.history)
    tree.command()(read_commands.status)
    tree.command()(watch_commands.watch)
    tree.command()(watch_commands.listeners)
    tree.command()(watch_commands.evidence)
    config.command()(config_command.check)
    tree.add_typer(config, name="config")
    token.command()(tokens.create)
    token.command("list")(tokens.list_)
    token.command()(tokens.revoke)
    tree.add_typer(token, name="token")
    tree.command()(serve_command.serve)
    return tree


def _group(**more: Any) -> typer.Typer:
    # No markup: rich, which would draw the help, takes as long to load as all the rest.
    return typer.Typer(rich_markup_mode=None, no_args_is_help=True, pretty_exceptions_enable=False, **more)


def _print_version(requested: bool) -> None:
    if requested:
        output.print_lines(f"blocklist {blocklist.__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """The list of blocked nodes, on which no work runs.

    Environment: BLOCKLIST_URL (http://127.0.0.1:8224), BLOCKLIST_TOKEN or BLOCKLIST_TOKEN_FILE, BLOCKLIST_TIMEOUT (5s),
    BLOCKLIST_DEFAULT_DURATION (4h), NO_COLOR.

    Exit codes: 0 done, or so already; 1 refused; 2 not understood; 3 the service is out of reach.
    """
