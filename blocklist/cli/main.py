"""The commands, of which only the one that is called is imported, and their exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

import blocklist
from blocklist.cli import environment, output
from blocklist.cli.environment import load_contexts
from blocklist.client.credentials import TokenFileError
from blocklist.model.errors import (
    BlocklistError,
    ConflictError,
    InvalidError,
    UnavailableError,
    UnknownNodeError,
)

if TYPE_CHECKING:
    from typer.core import TyperGroup

# httpx does without its own command line if that cannot be imported: with it come click, rich and pygments.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]

EXIT_REJECTED, EXIT_USAGE, EXIT_UNREACHABLE = 1, 2, 3
COMMANDS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "": {
        "block": ("block.block", "Block nodes: no new tasks start there."),
        "drain": ("drain.drain", "Block nodes, evacuate their tasks, and wait until nothing runs there."),
        "extend": (
            "block.extend",
            "Extend blocks: they end a DURATION from now, or at a time; without --replace, never earlier than before.",
        ),
        "unblock": ("unblock.unblock", "Unblock nodes before their end, one after the other."),
        "list": ("read.list_", "Show the blocked nodes."),
        "get": ("read.get", "Show one blocked node."),
        "is-blocked": ("read.is_blocked", "Exit code 0 if the node is blocked, 1 if not."),
        "history": ("read.history", "Show changes, the oldest first."),
        "status": ("read.status", "Show where a node's last change is applied."),
        "watch": ("read.watch", "Show changes as they happen, until Ctrl-C."),
        "listeners": ("read.listeners", "Show the listeners, and how far each is behind."),
        "jobs": ("read.jobs", "Show the jobs that run; those without an agent, which do not obey the list, first."),
        "evidence": ("read.evidence", "Show what applications report about nodes."),
        "nodes": (
            "read.nodes",
            "Show the nodes that anybody reports, blocked or not, with their labels and running tasks.",
        ),
        "claims": (
            "read.claims",
            "Show who claims which node, until when and why; a node is free when its last claim ends.",
        ),
        "login": ("login.login", "Log in at the issuer of the service, in a browser on any machine."),
        "logout": ("login.logout", "Forget the log-in at this service, and end it at its issuer."),
        "whoami": (
            "admin.whoami",
            "Show whom the service takes you for: name, role, and the owners whose claims you may change.",
        ),
        "version": ("admin.version", "Show the versions of this command and of the service."),
        "audit": ("admin.audit", "Show log-ins, changes of tokens, forced changes, and the settings at each start."),
        "drift": (
            "read.drift",
            "Show where listeners report something else than the list says: tasks on evacuated nodes, for example.",
        ),
        "manager": (
            "admin.manager",
            "Keep a yarn, slurm, kubernetes, standalone or exec manager in line with the list: `manager KIND --help`.",
        ),
        "flink": (
            "admin.flink",
            "Make a Flink cluster follow the list: runs beside its JobManager until it is stopped.",
        ),
        "open": ("admin.open_", "Open the page in a browser, and print its address."),
        "completion": (
            "admin.completion",
            "Print the completion for a shell: source <(blocklist completion bash).",
        ),
        "serve": ("admin.service", "Run the service, which needs the extra packages of blocklist[service]."),
        "migrate": ("admin.service", "Create the database of the service, or upgrade it to this version."),
        "new-history": ("admin.service", "After a restore from a backup: make every watch begin with a snapshot."),
        "check-settings": ("admin.service", "Check the settings of the service without starting it."),
        "settings": ("admin.service", "Print all settings of the service."),
        "openapi": ("admin.service", "Print the API document of the service."),
        "config": ("", "Choose and set contexts, and check the configuration."),
        "token": ("", "Manage tokens."),
        "spark": ("", "Load the agent into Spark drivers."),
    },
    "config": {
        "use": ("admin.config_use", "Make a context the current one: commands then talk to its service."),
        "list": ("admin.config_list", "Show the contexts; * marks the one that commands use now."),
        "get": ("admin.config_get", "Show the settings of a context, or one of them."),
        "set": ("admin.config_set", "Set one setting of a context."),
        "delete": ("admin.config_delete", "Delete a context."),
        "check": ("admin.config_check", "Show the settings, whether the service is reachable, and your role."),
    },
    "token": {
        "create": ("admin.token_create", "Create a token."),
        "list": ("admin.token_list", "Show all tokens, without their secrets."),
        "revoke": ("admin.token_revoke", "Revoke a token, with immediate effect."),
    },
    "spark": {
        "jar": ("admin.spark_jar", "Print the path of the agent's jar in this installation."),
        "defaults": (
            "admin.spark_defaults",
            "Print the lines for spark-defaults.conf with which all applications use the agent and this service.",
        ),
    },
}
"""The commands of each group, whose name is empty for the command itself: the function, and its summary for --help and
TAB. A group has its commands instead of a function."""
_MANAGER: Final = "manager"
_SERVICE: Final = frozenset({"serve", "migrate", "new-history", "check-settings", "settings", "openapi"})
_HANDED_OVER: Final = _SERVICE | {_MANAGER, "flink"}
"""These commands hand all their arguments over to another program, also --help."""
_SIMILARITY: Final = 0.8
"""An option at least this similar is the one that was meant: others, which share a few letters, are not named."""


def run(arguments: list[str]) -> int:
    """Run the command and return its exit code. Errors are sentences on stderr."""
    try:
        if os.environ.get(COMPLETE) in REQUESTS:
            complete(command_tree())
            return 0
        use_scripts_for(arguments)
        own, others = _split_manager(arguments)
        command_tree()([*environment.take_context(own), *others], prog_name="blocklist")
    except BlocklistError as error:
        return _report_error(error)
    except OSError as error:
        if not _is_of_typer_output(error):
            raise
        output.exit_unwritable(error)
    finally:
        output.flush()
    return 0


def _is_of_typer_output(error: OSError) -> bool:
    """Whether it is from typer's own output, such as --help. That of the commands is handled where it is written."""
    from traceback import walk_tb  # noqa: PLC0415 - only with an error

    return any(frame.f_code.co_name == "echo" for frame, _ in walk_tb(error.__traceback__))


def _report_error(error: BlocklistError) -> int:
    from blocklist.cli import messages  # noqa: PLC0415 - only with an error

    output.print_stderr(*messages.error_lines(error), *_advice(error))
    match error:
        case UnavailableError() if isinstance(error.__cause__, TokenFileError):
            return EXIT_USAGE
        case UnavailableError():
            return EXIT_UNREACHABLE
        case InvalidError(title=None):
            # No error of the service: an argument or a variable is invalid.
            return EXIT_USAGE
        case _:
            return EXIT_REJECTED


def _advice(error: BlocklistError) -> list[str]:
    """What follows from the error, or what to do."""
    match error:
        case ConflictError() if error.blocked:
            return ["Nothing was changed. Use --merge to merge the blocks, or --replace to change your own claim."]
        case UnknownNodeError(title=None):
            # Labels that no node has: nothing was sent.
            return ["Nothing was changed."]
        case UnknownNodeError():
            return ["Nothing was changed. Leave out --strict to block them anyway."]
        case UnavailableError(title=None) if not isinstance(error.__cause__, TokenFileError):
            return environment.url_source()
        case _:
            return []


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
        _refuse_swallowed(self, args)
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


def _refuse_swallowed(command: TyperCommand, arguments: list[str]) -> None:
    """Raise a usage error if an option would take the next option for its value: `-r --evacuate` evacuates nothing.

    After `=` a value may begin with a dash. `-` and `-15m` are no options.
    """
    takes_value = {
        name: max(each.opts, key=len)
        for each in command.params
        for name in each.opts
        if name.startswith("-") and not getattr(each, "is_flag", False)
    }
    words = iter(arguments)
    for word in words:
        if word == "--":
            return
        option = takes_value.get(word) or _last_of_cluster(word, takes_value)
        value = next(words, "") if option is not None else ""
        if value[:1] == "-" and value[1:2].isalpha() | value.startswith("--"):
            raise typer.BadParameter(
                f"{option} needs a value before {value[:64]}. If that is the value: {option}={value[:64]}"
            )


def _last_of_cluster(word: str, takes_value: Mapping[str, str]) -> str | None:
    """The option that takes the next word as its value, of several in one word: of `-yr` the last."""
    if word.startswith("--") or not word.startswith("-"):
        return None
    letters = [f"-{letter}" for letter in word[1:]]
    first = next((place for place, letter in enumerate(letters) if letter in takes_value), None)
    return takes_value[letters[first]] if first is not None and first == len(letters) - 1 else None


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


# TAB: the command line as a shell passes it, what may come next, and the scripts that make a shell ask.

COMPLETE: Final = "_BLOCKLIST_COMPLETE"
"""The variable with which the scripts of `blocklist completion` ask for completions."""
REQUESTS: Final = frozenset({"complete_bash", "complete_zsh", "complete_fish"})
"""What the scripts ask for; typer serves others, such as PowerShell."""
EXIT_FILES: Final = 1
"""Exit code that asks the shell for the files of the folder instead; scripts of typer do so for fish."""
_CONTEXT: Final = "--context="
_QUOTES: Final = frozenset("\"'\\")
_BREAKS: Final = frozenset(":=")
"""Characters that bash makes words of their own, and of which only what follows them is replaced by a completion."""

SCRIPTS: Final[Mapping[str, str]] = {
    # The order is kept, as free nodes come first. Bash before 4.4 has no nosort.
    "bash": """\
_blocklist_completion() {
    local IFS=$'\\n'
    COMPREPLY=( $( env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD \\
                   _BLOCKLIST_COMPLETE=complete_bash "$1" 2>/dev/null ) ) && compopt +o default
    return 0
}

complete -o default -o nosort -F _blocklist_completion blocklist 2>/dev/null ||
    complete -o default -F _blocklist_completion blocklist""",
    # As a file in fpath it is itself the function that is called; sourced, it has to name one.
    "zsh": """\
#compdef blocklist

_blocklist_completion() {
    eval "$(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" _BLOCKLIST_COMPLETE=complete_zsh blocklist 2>/dev/null)"
}

if [[ $funcstack[1] == _blocklist ]]; then
    _blocklist_completion "$@"
else
    compdef _blocklist_completion blocklist
fi""",
    "fish": """\
function __blocklist_completion
    env _BLOCKLIST_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args \\
        _TYPER_COMPLETE_ARGS=(commandline -cp | string collect) blocklist 2>/dev/null
    or __fish_complete_path (commandline -ct)
end

complete --command blocklist --no-files --keep-order --arguments "(__blocklist_completion)\"""",
}
"""By shell."""


def use_scripts_for(arguments: Sequence[str]) -> None:
    """Have --install-completion and --show-completion use these scripts, too."""
    if {"--install-completion", "--show-completion"}.isdisjoint(arguments):
        return
    from typer import _completion_shared  # noqa: PLC0415

    _completion_shared._completion_scripts.update(SCRIPTS)  # noqa: SLF001


def complete(command: TyperGroup) -> None:
    """Print the completions of the line in the environment; none if it is invalid: an error would be printed into it.

    Nodes are those of the service that the line will use.
    """
    line = read_line()
    if (names := _contexts(line)) is not None:
        print_completions(names, kept=line.kept)
        return
    try:
        words = environment.take_context(line.words)
        found, files = _found(command, words, line.incomplete)
    except BlocklistError:
        found, files = {}, False
    print_completions(found, kept=line.kept, files=files)


def _contexts(line: CompletedLine) -> list[str] | None:
    """The values of --context; None if another word is completed."""
    if line.words[-1:] == ["--context"]:
        return complete_context(line.incomplete)
    if line.incomplete.startswith(_CONTEXT):
        return [_CONTEXT + name for name in complete_context(line.incomplete.removeprefix(_CONTEXT))]
    return None


def complete_context(incomplete: str) -> list[str]:
    """The contexts that begin so; none if their file cannot be read."""
    with suppress(BlocklistError):
        return [name for name in load_contexts().contexts if name.startswith(incomplete)]
    return []


def _found(command: TyperGroup, words: list[str], incomplete: str) -> tuple[dict[str, str], bool]:
    """What the commands offer, each with its help; and whether it may be a file."""
    # Private: if a later typer has moved them, all but this goes on working.
    from typer._click.shell_completion import _resolve_context, _resolve_incomplete  # noqa: PLC0415

    context = _resolve_context(command, {}, "blocklist", words)
    completed, value = _resolve_incomplete(context, words, incomplete)
    # `--action=m`: the word begins with the name of the option.
    before = incomplete.removesuffix(value)
    found = {before + item.value: item.help or "" for item in completed.shell_complete(context, value)}
    return found, _may_be_file(completed)


def _may_be_file(completed: object) -> bool:
    """Whether the value may be the name of a file: no command or option, and nothing that is known here."""
    is_group = hasattr(completed, "commands")
    return not is_group and getattr(completed, "_custom_shell_complete", None) is None


class CompletedLine(NamedTuple):
    """The words before the one that is completed, without the command's name, and the beginning of that word.

    The shell keeps the first `kept` characters of the word; a completion replaces the others.
    """

    words: list[str]
    incomplete: str
    kept: int = 0


def read_line() -> CompletedLine:
    """The line, from the environment. Quotes are removed, also one that is still open."""
    if os.environ[COMPLETE] == "complete_bash":
        return _of_bash(_unquoted(os.environ.get("COMP_WORDS", "")), int(os.environ.get("COMP_CWORD", "0")))
    line = os.environ.get("_TYPER_COMPLETE_ARGS", "")
    words = _unquoted(line)[1:]
    # Without the space, a word that is not finished; an open quote may contain the space.
    is_new_word = line.endswith(" ") and not (words and words[-1].endswith(" "))
    return CompletedLine(words, "") if not words or is_new_word else CompletedLine(words[:-1], words[-1])


def _of_bash(words: list[str], place: int) -> CompletedLine:
    """`fe80::1` and `--context=lab` are three words for bash, unless COMP_WORDBREAKS is another one."""
    joined: list[str] = []
    is_break, kept = True, 0
    for word in words[1 : place + 1]:
        was_break, is_break = is_break, _BREAKS.issuperset(word)
        if joined and (is_break or was_break):
            kept = len(joined[-1]) + len(word) * is_break
            joined[-1] += word
        else:
            kept = len(word) * is_break
            joined.append(word)
    return CompletedLine(joined[:-1], joined[-1], kept) if 0 < place < len(words) else CompletedLine(joined, "")


def _unquoted(line: str) -> list[str]:
    if _QUOTES.isdisjoint(line):
        return line.split()
    import shlex  # noqa: PLC0415 - rarely needed

    parser = shlex.shlex(line, posix=True)
    parser.whitespace_split, parser.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(parser)
    except ValueError:
        # A quote is still open.
        words.append(parser.token)
    return words


def print_completions(found: Sequence[str] | Mapping[str, str], *, kept: int = 0, files: bool = False) -> None:
    """Print the words, in this order, each with its help if it has one.

    The shell keeps the first `kept` characters of the word. With `files`, files are offered if no words are found.
    """
    texts = found if isinstance(found, Mapping) else dict.fromkeys(found, "")
    match os.environ[COMPLETE]:
        case "complete_zsh" if texts:
            items = " ".join(_for_zsh(word, text) for word, text in texts.items())
            output.print_lines(f"local -a blocklist_words=({items}); _describe -V blocklist blocklist_words")
        case "complete_zsh":
            output.print_lines("_files" if files else "")
        case "complete_fish" if os.environ.get("_TYPER_COMPLETE_FISH_ACTION") != "is-args":
            output.print_lines(*("\t".join(filter(None, item)) for item in texts.items()))
        case "complete_bash":
            output.print_lines(*(word[kept:] for word in texts))
    if files and not texts:
        sys.exit(EXIT_FILES)


def _for_zsh(word: str, text: str) -> str:
    """An item of _describe, quoted for eval."""
    item = word.replace("\\", "\\\\").replace(":", "\\:") + (f":{text}" if text else "")
    return "'" + item.replace("'", "'\\''") + "'"
