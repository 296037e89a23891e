"""The commands, of which only the one that is called is imported, and their exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

import blocklist
from blocklist.cli import completion, environment, output
from blocklist.client.token_file import TokenFileError
from blocklist.model.errors import BlocklistError, ConflictError, InvalidError, UnavailableError, UnknownNodeError

# httpx does without its own command line if that cannot be imported: with it come click, rich and pygments.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]

EXIT_REJECTED, EXIT_USAGE, EXIT_UNREACHABLE = 1, 2, 3
COMMANDS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "": {
        "block": ("block_commands.block", "Block nodes: no new tasks start there."),
        "drain": ("drain_command.drain", "Block nodes, evacuate their tasks, and wait until nothing runs there."),
        "extend": (
            "block_commands.extend",
            "Extend blocks: they end a DURATION from now, or at a time, but never earlier than before.",
        ),
        "unblock": ("block_commands.unblock", "Unblock nodes before their end, one after the other."),
        "list": ("read_commands.list_", "Show the blocked nodes."),
        "get": ("read_commands.get", "Show one blocked node."),
        "is-blocked": ("read_commands.is_blocked", "Exit code 0 if the node is blocked, 1 if not."),
        "history": ("watch_commands.history", "Show changes, the oldest first."),
        "status": ("read_commands.status", "Show where a node's last change is applied."),
        "watch": ("watch_commands.watch", "Show changes as they happen, until Ctrl-C."),
        "listeners": ("watch_commands.listeners", "Show the listeners, and how far each is behind."),
        "evidence": ("watch_commands.evidence", "Show what applications report about nodes."),
        "nodes": (
            "inventory_commands.nodes",
            "Show the nodes that anybody reports, blocked or not, with their labels and running tasks.",
        ),
        "claims": (
            "inventory_commands.claims",
            "Show who claims which node, until when and why; a node is free when its last claim ends.",
        ),
        "drift": (
            "inventory_commands.drift",
            "Show where listeners report something else than the list says: tasks on evacuated nodes, for example.",
        ),
        "manager": (
            "programs.manager",
            "Keep a cluster manager in line with the list: yarn, slurm, kubernetes or exec; see `manager KIND --help`.",
        ),
        "flink": (
            "programs.flink",
            "Make a Flink cluster follow the list: runs beside its JobManager until it is stopped.",
        ),
        "open": ("programs.open_", "Open the page in a browser, and print its address."),
        "completion": (
            "programs.completion",
            "Print the completion for a shell: source <(blocklist completion bash).",
        ),
        "serve": ("programs.serve", "Run the service; only in a checkout."),
        "config": ("", "Choose and set contexts, and check the configuration."),
        "token": ("", "Manage tokens."),
        "spark": ("", "Load the agent into Spark drivers."),
    },
    "config": {
        "use": ("config_commands.use", "Make a context the current one: commands then talk to its service."),
        "list": ("config_commands.list_", "Show the contexts; * marks the one that commands use now."),
        "get": ("config_commands.get", "Show the settings of a context, or one of them."),
        "set": ("config_commands.set_", "Set one setting of a context."),
        "delete": ("config_commands.delete", "Delete a context."),
        "check": ("programs.check", "Show the settings, whether the service is reachable, and your role."),
    },
    "token": {
        "create": ("token_commands.create", "Create a token."),
        "list": ("token_commands.list_", "Show all tokens, without their secrets."),
        "revoke": ("token_commands.revoke", "Revoke a token, with immediate effect."),
    },
    "spark": {
        "jar": ("programs.jar", "Print the path of the agent's jar in this installation."),
        "defaults": (
            "programs.defaults",
            "Print the lines for spark-defaults.conf with which all applications use the agent and this service.",
        ),
    },
}
"""The commands of each group, whose name is empty for the command itself: the function, and its summary for --help and
TAB. A group has its commands instead of a function."""
_MANAGER: Final = "manager"
_HANDED_OVER: Final = frozenset({_MANAGER, "flink"})
"""These commands hand all their arguments over to another program, also --help."""
_SIMILARITY: Final = 0.8
"""An option at least this similar is the one that was meant: others, which share a few letters, are not named."""


def run(arguments: list[str]) -> int:
    """Run the command and return its exit code. Errors are sentences on stderr."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        if os.environ.get(completion.COMPLETE) in completion.REQUESTS:
            completion.complete(command_tree())
            return 0
        completion.use_scripts_for(arguments)
        own, others = _split_manager(arguments)
        command_tree()([*environment.take_context(own), *others], prog_name="blocklist")
    except BlocklistError as error:
        return _report_error(error)
    except OSError as error:
        # Files are handled where they are used, so only typer's own output, such as --help, is left.
        output.exit_unwritable(error)
    finally:
        output.flush()
    return 0


def _report_error(error: BlocklistError) -> int:
    from blocklist.cli import messages  # noqa: PLC0415 - only with an error

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


def _split_manager(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The arguments of the command itself, and those of the manager: its --context is one of Kubernetes."""
    place = 0
    while place < len(arguments) and arguments[place].partition("=")[0] == "--context":
        place += 1 if "=" in arguments[place] else 2
    if arguments[place : place + 1] != [_MANAGER]:
        return arguments, []
    return arguments[: place + 1], arguments[place + 1 :]


def command_tree() -> TyperGroup:
    """All commands, each of which is imported when it is called."""
    root = get_command(_typer(cls=_LazyGroup, no_args_is_help=True, callback=_root))
    assert isinstance(root, _LazyGroup)
    return _with_commands(root, "")


def _group(name: str, summary: str) -> TyperGroup:
    return _with_commands(get_group(_typer(cls=_LazyGroup, no_args_is_help=True, help=summary)), name)


def _with_commands(group: TyperGroup, name: str) -> TyperGroup:
    for command, (function, summary) in COMMANDS[name].items():
        load = partial(_command, command, function) if function else partial(_group, command, summary)
        group.add_command(_Summary(command, summary, load))
    return group


def _command(name: str, function: str) -> Any:
    module, _, attribute = function.partition(".")
    settings: Any = {}
    if name in _HANDED_OVER:
        unparsed = {"ignore_unknown_options": True, "allow_extra_args": True}
        settings = {"add_help_option": False, "context_settings": unparsed}
    holder = _typer(add_completion=False)
    holder.command(name, cls=_Command, **settings)(getattr(import_module(f"blocklist.cli.{module}"), attribute))
    return get_command(holder)


class _Summary(TyperCommand):
    """What --help and TAB need of a command. `load` imports it."""

    def __init__(self, name: str, summary: str, load: Callable[[], TyperCommand | TyperGroup]) -> None:
        super().__init__(name, help=summary)
        self.load = load


class _Command(TyperCommand):
    """A command whose error about a misspelt option also knows --context, which is an option of every command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer's."""
        with _hints(self):
            return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> Any:
        """As typer's."""
        return _without_pydantic(super().get_params(ctx))


class _LazyGroup(TyperGroup):
    """A group with such errors, which imports only the command that is called."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer's."""
        with _hints(self):
            return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> Any:
        """As typer's."""
        return _without_pydantic(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As typer's."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, _Summary) else command, rest


def _without_pydantic(parameters: list[Any]) -> list[Any]:
    """The same parameters, whose values are read by their parsers alone: those without one are texts and flags.

    By itself typer builds a model of pydantic for each parameter of a command, which takes longer than the request.
    """
    for parameter in parameters:
        # Private: with a later typer that has none, commands are only slower.
        if not isinstance(getattr(parameter, "_runtime_param", None), _Values):
            parameter._runtime_param = _Values(parameter.type_descriptor.parameter_info.parser)  # noqa: SLF001
    return parameters


class _Values:
    """How the values of a parameter are read, as typer asks for it."""

    def __init__(self, parse: Callable[[Any], Any] | None) -> None:
        self._parse = parse or (lambda value: value)

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ARG002
        """The value, or those of a parameter that may be repeated; typer takes an empty tuple for none."""
        if param.multiple or param.nargs == -1:
            return tuple(self._parse(each) for each in value or ())
        return None if value is None else self._parse(value)


@contextmanager
def _hints(command: TyperCommand | TyperGroup) -> Iterator[None]:
    try:
        yield
    except typer.TyperException as error:
        # Only the error about an unknown option has these, and typer has no public name for it.
        if (name := getattr(error, "option_name", None)) is not None and hasattr(error, "possibilities"):
            error.possibilities = _similar(name, command)
        raise


def _similar(name: str, command: TyperCommand | TyperGroup) -> list[str]:
    from difflib import get_close_matches  # noqa: PLC0415 - rarely needed

    options = {"--context", *(option for each in command.params for option in each.opts if option.startswith("--"))}
    return get_close_matches(name, options, n=1, cutoff=_SIMILARITY) or get_close_matches(name, options)


def _typer(**settings: Any) -> typer.Typer:
    # No markup: importing rich takes as long as the other imports together.
    return typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, **settings)


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
