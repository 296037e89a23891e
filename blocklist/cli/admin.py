"""open, completion, spark, flink, manager and the service: what prepares other programs, or hands over to them."""

from __future__ import annotations

import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

import blocklist
from blocklist.cli import options
from blocklist.cli.environment import (
    CONTEXT_KEYS,
    check_key,
    connect,
    contexts_path,
    current_context,
    default_duration,
    hand_over_context,
    load_contexts,
    print_context,
    request_timeout,
    save_contexts,
    service_now,
    service_now_for_change,
    similar_context,
)
from blocklist.cli.main import SCRIPTS, complete_context
from blocklist.cli.messages import format_end, outcome_unknown
from blocklist.cli.options import NoHeaders
from blocklist.cli.output import (
    AUDIT,
    TOKENS,
    OutputFormat,
    OutputOptions,
    RowFormatter,
    Table,
    flush,
    print_items,
    print_lines,
    print_message,
    print_stderr,
    use_colour,
)
from blocklist.client.credentials import without_credentials
from blocklist.model.claims import Role
from blocklist.model.errors import BlocklistError, InvalidError, NotFoundError, UnavailableError
from blocklist.model.node import FOREVER, PERMANENT, format_duration, parse_duration, parse_duration_or_forever
from blocklist.model.text import json_text
from blocklist.spark.jar import JAR_NAME, PLUGIN_CLASS, jar_path
from blocklist.wire.audit import AuditKind

if TYPE_CHECKING:
    from blocklist.cli.environment import Context
    from blocklist.client.client import BlocklistClient
    from blocklist.model.claims import NewToken
    from blocklist.wire.audit import AuditRecord


HELP: Final = frozenset({"-h", "--help"})


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


def spark_jar() -> None:
    """Print the path of the agent's jar in this installation."""
    print_lines(str(_jar_path()))


def spark_defaults() -> None:
    """Print the lines for spark-defaults.conf with which all applications use the agent and this service."""
    with connect() as client:
        url = client.url
    token_file = os.environ.get("BLOCKLIST_TOKEN_FILE")
    try:
        properties = {"spark.blocklist.tokenFile": str(Path(token_file).absolute())} if token_file else {}
    except FileNotFoundError:
        raise InvalidError("The current folder was deleted: change to another one, such as cd /tmp.") from None
    lines = {
        "spark.driver.extraClassPath": str(_jar_path()),
        "spark.plugins.defaultList": PLUGIN_CLASS,
        "spark.blocklist.url": url,
        **properties,
    }
    print_lines(*(f"{name} {value}" for name, value in lines.items()))
    if os.environ.get("BLOCKLIST_TOKEN"):
        print_stderr(
            "BLOCKLIST_TOKEN is not in these lines, because Spark sends properties to all executors: write the token to"
            " a file that only the drivers can read, and add spark.blocklist.tokenFile with its path."
        )


def _jar_path() -> Path:
    try:
        return jar_path()
    except FileNotFoundError as error:
        raise InvalidError(f"{error} Or download it from a service that has it (/spark/{JAR_NAME}).") from None


def flink(context: typer.Context) -> None:
    """Make a Flink cluster follow the list: runs beside its JobManager until it is stopped."""
    if not HELP & {*context.args}:
        # An invalid URL is an error here, because only this command knows which context it is from.
        connect().close()
    hand_over_context()
    from blocklist.flink.__main__ import main  # noqa: PLC0415 - rarely needed

    raise typer.Exit(main(context.args))


def manager(context: typer.Context) -> None:
    """Keep a yarn, slurm, kubernetes, standalone or exec manager in line with the list: `manager KIND --help`."""
    hand_over_context()
    from blocklist.managers.__main__ import main  # noqa: PLC0415 - rarely needed

    raise typer.Exit(main(context.args, prog="blocklist manager"))


def service(context: typer.Context) -> None:
    """Run a command of the service, with its own --help: it replaces this process."""
    path = os.pathsep.join(filter(None, [str(_service_folder()), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-P", "-m", "app", context.info_name or "serve", *context.args]
    flush()
    # Process 1 of a container ignores signals without a handler, as those of the next program are not set yet.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    os.execve(command[0], command, {**os.environ, "PYTHONPATH": path})  # noqa: S606 - see above


def _service_folder() -> Path:
    """The folder that has the service's package `app`: of this installation, or the checkout."""
    installed = Path(__file__).resolve().parents[1] / "_service"
    return installed if installed.is_dir() else installed.parents[1]


def version(output: options.Output = OutputFormat.TABLE) -> None:
    """Show the versions of this command and of the service. Exit code 3 if the service cannot be reached."""
    client_version = {"version": blocklist.__version__, "python": platform.python_version()}
    error: BlocklistError | None = None
    answer: dict[str, str | None] | None = None
    try:
        with connect() as client:
            answer = {"version": client.identity().version, "url": client.url}
    except BlocklistError as failed:
        error = failed
    if output is OutputFormat.TABLE:
        rows = [("CLIENT", f"{blocklist.__version__}, Python {client_version['python']}")]
        shown = "unknown" if answer is None else f"{answer['version'] or 'unknown'}, {answer['url']}"
        print_lines(*Table(("", ""), show_header=False, colour=False).lines([*rows, ("SERVICE", shown)]))
    else:
        detail = None if error is None else error.detail
        print_lines(json_text({"client": client_version, "service": answer, "error": detail}, indent=2))
    if error is not None:
        raise error


def whoami(output: options.Output = OutputFormat.TABLE) -> None:
    """Show whom the service takes you for: name, role, and the owners whose claims you may change."""
    with connect() as client:
        identity = client.identity()
        context = current_context()
    if output is not OutputFormat.TABLE:
        print_lines(json_text(identity.json_value(), indent=2))
        return
    rows = [
        ("NAME", identity.name or "unknown: changes have no author"),
        ("ROLE", identity.role),
        ("OWNER", f"{identity.owner}, of the claims that you make"),
        ("OWNERS", "all" if identity.owners is None else ", ".join(identity.owners)),
        ("URL", f"{client.url}{'' if context is None else f' (context {context.name})'}"),
    ]
    print_lines(*Table(("", ""), show_header=False, colour=False).lines(rows))


def config_check() -> None:
    """Show the settings, whether the service is reachable, and your role. Exit code 1 or 3 if something is wrong."""
    table = Table(("", ""), show_header=False, colour=False)
    with connect() as client:
        print_lines(*table.lines(_settings(client.url, current_context())))
        snapshot = client.snapshot()
        answers = f"answers: {len(snapshot.nodes)} nodes blocked at revision {snapshot.revision}"
        print_lines(*table.lines([("SERVICE", answers), ("ROLE", _role(client)), ("DURATION", _duration(client))]))


def _settings(url: str, context: Context | None) -> list[tuple[str, str]]:
    source = "BLOCKLIST_URL" if os.environ.get("BLOCKLIST_URL") else "default"
    return [
        ("VERSION", f"blocklist {blocklist.__version__}, Python {platform.python_version()}"),
        ("CONTEXT", "none" if context is None else context.name),
        ("URL", f"{url} ({source if context is None else f'context {context.name}'})"),
        ("TOKEN", _token_source(context)),
        ("TIMEOUT", format_duration(round(request_timeout() * 1000))),
    ]


def _token_source(context: Context | None) -> str:
    """Where the token comes from, never the token itself."""
    if context is not None and context.token_file is not None:
        return f"in the file {context.token_file} (context {context.name})"
    if os.environ.get("BLOCKLIST_TOKEN"):
        return "in BLOCKLIST_TOKEN"
    path = os.environ.get("BLOCKLIST_TOKEN_FILE")
    return f"in the file {path} (BLOCKLIST_TOKEN_FILE)" if path else "none"


def _duration(client: BlocklistClient) -> str:
    duration = default_duration(client)
    return FOREVER if duration == PERMANENT else format_duration(duration)


def _role(client: BlocklistClient) -> str:
    name, role = client.whoami()
    return role.value if name is None else f"{role.value}, as {name}"


# config use, config list, config get and config set: the contexts of the command.


def _service_url(text: str) -> object:
    from blocklist.client.transport import service_url  # noqa: PLC0415 - slow to import

    return service_url(text)


Name = Annotated[str, typer.Argument(metavar="CONTEXT", help="Name of the context.", autocompletion=complete_context)]
Key = Annotated[str, typer.Argument(metavar="KEY", help=f"One of {', '.join(CONTEXT_KEYS)}.")]
OptionalKey = Annotated[str | None, typer.Argument(metavar="[KEY]", help="Only this setting.")]
Value = Annotated[str, typer.Argument(metavar="VALUE", help="Its value.")]
_CHECKS: Final[Mapping[str, Callable[[str], object]]] = {
    "url": _service_url,
    "timeout": parse_duration,
    "default_duration": parse_duration_or_forever,
}


def config_use(name: Name) -> None:
    """Make a context the current one: commands then talk to its service."""
    configuration = load_contexts().with_current(name)
    save_contexts(configuration)
    url = configuration.context(name).settings.get("url", "which has no URL yet")
    print_message(f"Current context: {name}, {without_credentials(url)}")
    _warn_of_variables(name)


def _warn_of_variables(name: str) -> None:
    """Say on stderr that the environment decides, if it does."""
    if url := os.environ.get("BLOCKLIST_URL"):
        print_stderr(f"BLOCKLIST_URL is set, so commands still use {without_credentials(url)}: unset it.")
    if (other := os.environ.get("BLOCKLIST_CONTEXT")) and other != name:
        print_stderr(f"BLOCKLIST_CONTEXT is set, so commands still use the context {other}: unset it.")


def config_list(no_headers: NoHeaders = False) -> None:
    """Show the contexts; * marks the one that commands use now."""
    configuration = load_contexts()
    current = current_context()
    rows = [
        ("*" if current is not None and name == current.name else "", name, *_cells(settings))
        for name, settings in sorted(configuration.contexts.items())
    ]
    if not rows:
        print_stderr(f"There are no contexts in {contexts_path()}. Add one: blocklist config set prod url URL")
        return
    table = Table(
        ("CURRENT", "CONTEXT", *(key.upper() for key in CONTEXT_KEYS)), show_header=not no_headers, colour=use_colour()
    )
    print_lines(*table.lines(rows))


def config_get(name: Name, key: OptionalKey = None) -> None:
    """Show the settings of a context, or one of them. Exit code 1 if it is not set."""
    settings = load_contexts().context(name).settings
    if key is None:
        rows = sorted((name, without_credentials(value)) for name, value in settings.items())
        print_lines(*Table(("", ""), show_header=False, colour=False).lines(rows))
    elif check_key(key) in settings:
        print_message(without_credentials(settings[key]))
    else:
        print_stderr(f"{key} is not set in the context {name}.")
        raise typer.Exit(1)


def config_set(name: Name, key: Key, value: Value) -> None:
    """Set one setting of a context. A new one begins with its url; the first one becomes the current one."""
    check_key(key)
    try:
        if key in _CHECKS:
            _CHECKS[key](value)
    except InvalidError:
        raise
    except ValueError as error:
        raise InvalidError(f"{key}: {error}") from None
    before = load_contexts()
    configuration = before.with_setting(name, key, value)
    save_contexts(configuration)
    print_message(f"{name}: {key} = {value}")
    if name not in before.contexts:
        current = ", the current one" if configuration.current == name else ""
        print_stderr(f"New context {name}{current}.{similar_context(name, before.contexts)}")


def config_delete(name: Name) -> None:
    """Delete a context. If it is the current one, there is none afterwards, until config use."""
    before = load_contexts()
    configuration = before.without(name)
    save_contexts(configuration)
    print_message(f"Deleted context {name}")
    if before.current == name and configuration.contexts:
        print_stderr(f"There is no current context now: blocklist config use {next(iter(configuration.contexts))}")


def _cells(settings: Mapping[str, str]) -> list[str]:
    return [without_credentials(settings.get(key, "")) for key in CONTEXT_KEYS]


# token create, token list and token revoke.

TokenName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Author of the changes made with the token.", parser=options.parse_token_name),
]
TokenId = Annotated[str, typer.Argument(metavar="ID", help="Token id; see `token list`.")]
TokenOwners = Annotated[
    list[str] | None,
    typer.Option(
        "--owner", help="Only change claims of this owner, with a final * of those that begin so. Repeatable."
    ),
]
TokenListeners = Annotated[
    list[str] | None,
    typer.Option("--listener", help="Only register under this id, with a final * those that begin so. Repeatable."),
]
TokenRole = Annotated[Role, options.choice_option(Role, "--role", help_text="Each role includes the roles before it.")]


def token_create(
    name: TokenName,
    role: TokenRole,
    duration: options.TokenDuration = None,
    owner: TokenOwners = None,
    listener: TokenListeners = None,
    output: options.Output = OutputFormat.TABLE,
) -> None:
    """Create a token. It is printed to stdout, only once; its id, role and end to stderr."""
    with connect() as client:
        print_context(client)
        end = PERMANENT
        if duration is not None and duration != PERMANENT:
            end = service_now_for_change(client) + duration
        with _report_unknown_token(name):
            created = client.create_token(name, role, end=end, owners=owner, listeners=listener)
        now = service_now(client)
    if output in (OutputFormat.JSON, OutputFormat.JSONL):
        print_lines(json_text(_json(created), indent=2 if output is OutputFormat.JSON else None))
        return
    token = created.token
    print_stderr(
        f"Token {token.id} of {token.name}, {token.role}, valid {format_end(token.end, now)}. It is shown only once:"
    )
    print_lines(created.text)


@contextmanager
def _report_unknown_token(name: str) -> Iterator[None]:
    """Say that a token may exist, if the command ends without its text; the error is raised again."""
    try:
        yield
    except (KeyboardInterrupt, Exception) as error:
        if outcome_unknown(error):
            print_stderr(
                f"A token of {name} may have been created, and nobody has its text: see `blocklist token list`, and"
                " revoke it."
            )
        raise


def token_list(output: options.Output = OutputFormat.TABLE, no_headers: options.NoHeaders = False) -> None:
    """Show all tokens, without their secrets."""
    with connect() as client:
        print_items(TOKENS, client.tokens(), OutputOptions(output, not no_headers))


def token_revoke(token: TokenId) -> None:
    """Revoke a token, with immediate effect."""
    with connect() as client:
        print_context(client)
        try:
            client.revoke_token(token)
        except NotFoundError:
            for known in client.tokens():
                if known.name == token:
                    print_stderr(f"{token} is the name of the token {known.id}: give that id.")
            raise
    print_message(f"{token} revoked")


# audit: the records beside the change log.

Kinds = Annotated[
    list[AuditKind] | None,
    options.choice_option(AuditKind, "--kind", help_text="Records of this kind; can be repeated."),
]
Principal = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Records of what this principal did.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Then show new records as they are made, until Ctrl-C.")]
_FOLLOW_SECONDS: Final = 2.0


def audit(
    kind: Kinds = None,
    by: Principal = None,
    begin: options.RecordsFrom = None,
    end: options.RecordsUntil = None,
    last: options.Last = None,
    after: options.AfterRecord = None,
    follow: Follow = False,
    output: options.Output = OutputFormat.TABLE,
    no_headers: options.NoHeaders = False,
) -> None:
    """Show log-ins, changes of tokens, forced changes, and the settings at each start. The oldest come first."""
    if after is not None and last is not None:
        raise typer.BadParameter("give only one of --after and -n.")
    if follow and end is not None:
        raise typer.BadParameter("give only one of --follow and --until: new records are later than any such time.")
    view_options = OutputOptions(output, not no_headers)
    with connect() as client:
        newest = max((record.id for record in client.audit(last=1)), default=0) if follow else 0
        read = partial(client.audit, kinds=kind or (), principal=by, begin=begin, end=end)
        on_terminal = last is None and after is None and sys.stdout.isatty()
        shown = options.LAST_ON_TERMINAL if on_terminal else last or options.ALL
        # One more says whether there are others.
        found = list(read(last=shown + 1) if shown else read(after=after))
        if on_terminal and len(found) > shown:
            print_stderr(f"These are the last {shown} records; -n all shows all of them.")
        found = found[-shown:] if shown else found
        if not follow:
            print_items(AUDIT, found, view_options)
            return
        rows = RowFormatter(AUDIT, view_options)
        _print_records(found, rows, view_options)
        _follow_audit(read, max([newest, after or 0, *(record.id for record in found)]), rows, view_options)


def _follow_audit(
    read: Callable[..., Iterator[AuditRecord]],
    after: int,
    rows: RowFormatter[AuditRecord],
    view_options: OutputOptions,
) -> None:
    """Show new records for ever; while the service cannot be reached, say so once."""
    reached = True
    while True:
        time.sleep(_FOLLOW_SECONDS)
        try:
            found = list(read(after=after))
            reached = True
        except UnavailableError as error:
            if reached:
                print_stderr(f"{error.detail} Following goes on after record {after}.")
            reached = False
            continue
        _print_records(found, rows, view_options)
        after = max([after, *(record.id for record in found)])


def _print_records(
    records: Sequence[AuditRecord], rows: RowFormatter[AuditRecord], view_options: OutputOptions
) -> None:
    if view_options.format is OutputFormat.NAME:
        print_lines(*(AUDIT.name(record) for record in records))
    elif view_options.is_table:
        print_lines(*rows.lines(records))
    else:
        print_lines(*(json_text(AUDIT.json(record)) for record in records))


def _json(created: NewToken) -> dict[str, object]:
    from blocklist.wire.tokens import new_token_body  # noqa: PLC0415 - not for --version and --help

    return new_token_body(created)
