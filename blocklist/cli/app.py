"""The commands and their exit codes."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

import blocklist
from blocklist.cli import (
    block_commands,
    completion_scripts,
    config_commands,
    drain_command,
    environment,
    extend_command,
    flink_command,
    full_completion,
    inventory_commands,
    manager_command,
    messages,
    output,
    read_commands,
    service_commands,
    shell_commands,
    spark_commands,
    token_commands,
    watch_commands,
)
from blocklist.cli.completed_line import COMPLETE
from blocklist.cli.option_hints import HintingTyper
from blocklist.client.token_file import TokenFileError
from blocklist.model.errors import BlocklistError, ConflictError, InvalidError, UnavailableError, UnknownNodeError

EXIT_REJECTED, EXIT_USAGE, EXIT_UNREACHABLE = 1, 2, 3
_HAND_OVER = {"ignore_unknown_options": True, "allow_extra_args": True}
"""All arguments are those of the command to which is handed over."""


def run(arguments: list[str]) -> int:
    """Run the command and return its exit code. Errors are sentences on stderr."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        if os.environ.get(COMPLETE) in full_completion.REQUESTS:
            full_completion.run(_command_tree())
            return 0
        completion_scripts.use_for(arguments)
        own, others = manager_command.split(arguments)
        _command_tree()([*environment.take_context(own), *others], prog_name="blocklist")
    except BlocklistError as error:
        return _report_error(error)
    except OSError as error:
        # Files are handled where they are used, so only typer's own output, such as --help, is left.
        output.exit_unwritable(error)
    finally:
        output.flush()
    return 0


def _report_error(error: BlocklistError) -> int:
    output.print_stderr(*messages.error_lines(error))
    if isinstance(error, ConflictError) and error.blocked:
        output.print_stderr("Nothing was changed. Use --merge to merge the blocks.")
    if isinstance(error, UnknownNodeError) and error.title is None:
        # Labels that no node has: nothing was sent.
        output.print_stderr("Nothing was changed.")
    elif isinstance(error, UnknownNodeError):
        output.print_stderr("Nothing was changed. Leave out --strict to block them anyway.")
    match error:
        case UnavailableError() if _is_token_file_error(error):
            return EXIT_USAGE
        case UnavailableError():
            if error.title is None and error.__cause__ is not None:
                output.print_stderr(*environment.url_source())
            return EXIT_UNREACHABLE
        case InvalidError(title=None):
            # No error of the service: an argument or a variable is invalid.
            return EXIT_USAGE
        case _:
            return EXIT_REJECTED


def _is_token_file_error(error: UnavailableError) -> bool:
    return isinstance(error.__cause__, TokenFileError)


def _command_tree() -> typer.Typer:
    tree, config, token = (
        _group(callback=_root),
        _group(help="Choose and set contexts, and check the configuration."),
        _group(help="Manage tokens."),
    )
    spark = _group(help="Load the agent into Spark drivers.")
    tree.command()(block_commands.block)
    tree.command()(drain_command.drain)
    tree.command()(extend_command.extend)
    tree.command()(block_commands.unblock)
    tree.command("list")(read_commands.list_)
    tree.command()(read_commands.get)
    tree.command()(read_commands.is_blocked)
    tree.command()(read_commands.history)
    tree.command()(read_commands.status)
    tree.command()(watch_commands.watch)
    tree.command()(watch_commands.listeners)
    tree.command()(watch_commands.evidence)
    tree.command()(inventory_commands.nodes)
    tree.command()(inventory_commands.claims)
    tree.command()(inventory_commands.drift)
    config.command()(config_commands.use)
    config.command("list")(config_commands.list_)
    config.command()(config_commands.get)
    config.command("set")(config_commands.set_)
    config.command()(config_commands.delete)
    config.command()(service_commands.check)
    tree.add_typer(config, name="config")
    token.command()(token_commands.create)
    token.command("list")(token_commands.list_)
    token.command()(token_commands.revoke)
    tree.add_typer(token, name="token")
    spark.command()(spark_commands.jar)
    spark.command()(spark_commands.defaults)
    tree.add_typer(spark, name="spark")
    tree.command(manager_command.NAME, add_help_option=False, context_settings=_HAND_OVER)(manager_command.manager)
    tree.command(context_settings=_HAND_OVER, add_help_option=False)(flink_command.flink)
    tree.command("open")(shell_commands.open_)
    tree.command()(shell_commands.completion)
    tree.command()(service_commands.serve)
    return tree


def _group(**settings: Any) -> typer.Typer:
    # No markup: importing rich takes as long as all other imports together.
    return HintingTyper(rich_markup_mode=None, no_args_is_help=True, pretty_exceptions_enable=False, **settings)


def _print_version(requested: bool) -> None:
    if requested:
        output.print_lines(f"blocklist {blocklist.__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    context: Annotated[
        str | None, typer.Option(metavar="NAME", help="Use this context; see config list. Also after the command.")
    ] = None,
) -> None:
    """Block and unblock nodes: no new tasks start on a blocked node.

    Environment: BLOCKLIST_URL (http://127.0.0.1:8224) or BLOCKLIST_CONTEXT, BLOCKLIST_TOKEN or BLOCKLIST_TOKEN_FILE,
    BLOCKLIST_TIMEOUT (5s), BLOCKLIST_DEFAULT_DURATION (4h), NO_COLOR.

    Exit codes: 0 success, also if nothing had to change; 1 rejected; 2 usage or configuration error; 3 service
    unreachable, or output not writable.
    """
