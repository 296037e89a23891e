"""open, completion, spark, flink, manager and serve: what prepares other programs, or hands over to them."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import blocklist
from blocklist.cli import options
from blocklist.cli.completion import SCRIPTS
from blocklist.cli.environment import connect, current_context, default_duration, hand_over_context, request_timeout
from blocklist.cli.output import Table, flush, print_lines, print_stderr
from blocklist.model.errors import InvalidError
from blocklist.model.node import PERMANENT
from blocklist.model.time import FOREVER, format_duration
from blocklist.spark.jar import JAR_NAME, LISTENER_CLASS, jar_path

if TYPE_CHECKING:
    from blocklist.cli.contexts import Context
    from blocklist.client.client import BlocklistClient


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


def jar() -> None:
    """Print the path of the agent's jar in this installation."""
    print_lines(str(_jar_path()))


def defaults() -> None:
    """Print the lines for spark-defaults.conf with which all applications use the agent and this service."""
    with connect() as client:
        url = client.url
    token_file = os.environ.get("BLOCKLIST_TOKEN_FILE")
    lines = {
        "spark.driver.extraClassPath": str(_jar_path()),
        "spark.extraListeners": LISTENER_CLASS,
        "spark.blocklist.url": url,
        **({"spark.blocklist.tokenFile": str(Path(token_file).absolute())} if token_file else {}),
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
        raise InvalidError(
            f"This installation has no jar at {error}: reinstall blocklist, or download it from the service"
            f" (/spark/{JAR_NAME})."
        ) from None


def flink(context: typer.Context) -> None:
    """Make a Flink cluster follow the list: runs beside its JobManager until it is stopped."""
    # An invalid URL is an error here, because only this command knows which context it is from.
    connect().close()
    hand_over_context()
    command = [sys.executable, "-m", "blocklist.flink", *context.args]
    flush()
    os.execv(command[0], command)  # noqa: S606 - the bridge replaces this process


def manager(context: typer.Context) -> None:
    """Keep a cluster manager in line with the list: yarn, slurm, kubernetes or exec; see `manager KIND --help`."""
    hand_over_context()
    from blocklist.managers.__main__ import main  # noqa: PLC0415 - rarely needed

    raise typer.Exit(main(context.args, prog="blocklist manager"))


def serve() -> None:
    """Run the service; only in a checkout. Migrates the database first."""
    root = _find_checkout()
    if root is None:
        raise InvalidError("serve needs a checkout of blocklist: the installed package does not contain the service.")
    command, environment = _app_command(root)
    migrated = subprocess.run([*command, "migrate"], env=environment, check=False)
    if migrated.returncode:
        raise SystemExit(migrated.returncode)
    os.execve(command[0], command, environment)  # noqa: S606 - the service replaces this process


def check() -> None:
    """Show the settings, whether the service is reachable, and your role. Exit code 1 or 3 if something is wrong."""
    table = Table(("", ""), show_header=False, colour=False)
    with connect() as client:
        print_lines(*table.lines(_settings(client.url, current_context())))
        snapshot = client.snapshot()
        answers = f"answers: {len(snapshot.nodes)} nodes blocked at revision {snapshot.revision}"
        print_lines(*table.lines([("SERVICE", answers), ("ROLE", _role(client)), ("DURATION", _duration(client))]))
    if (root := _find_checkout()) is not None:
        valid, output = _check_service_settings(root)
        print_lines(*table.lines([("CHECKOUT", f"{root}: {output}")]))
        if not valid:
            raise typer.Exit(1)


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


def _find_checkout() -> Path | None:
    """The checkout that contains this package; None if only the package is installed."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "app" / "__main__.py").is_file() and (root / "migrations").is_dir() else None


def _app_command(root: Path) -> tuple[list[str], dict[str, str]]:
    """The command that runs the service of the checkout in the current folder, and its environment."""
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    return [sys.executable, "-P", "-m", "app"], {**os.environ, "PYTHONPATH": path}


def _check_service_settings(root: Path) -> tuple[bool, str]:
    """Whether the settings of the checkout's service are valid, and the last line of the check's output."""
    command, environment = _app_command(root)
    done = subprocess.run(
        [*command, "check-settings"], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    lines = (done.stdout or done.stderr).strip().splitlines()
    return done.returncode == 0, lines[-1] if lines else f"exit code {done.returncode}"
