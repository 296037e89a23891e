"""The command line of the managers."""

from __future__ import annotations

import argparse
import math
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from blocklist.client import DEFAULT_URL
from blocklist.client.credentials import without_credentials
from blocklist.managers.plan import DEFAULT_INTERVAL, Manager
from blocklist.model.errors import InvalidError
from blocklist.model.listener import check_cluster


def build_parser(prog: str, arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of these arguments: only the manager that they name is imported, and has its options.

    `make(args)` on the parsed arguments creates the manager; it raises InvalidError for invalid ones. A manager that
    needs more than the loop of all managers has `run(args, stopping)`.
    """
    called = next((word for word in arguments if not word.startswith("-")), None)
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Keeps a cluster manager in line with the blocklist: plans, applies and acknowledges each change.",
    )
    kinds = parser.add_subparsers(dest="manager", required=True, metavar="|".join(_KINDS))
    for name, (about, add_options) in _KINDS.items():
        subparser = kinds.add_parser(name, help=about, description=about)
        if name == called:
            add_options(subparser)
    return parser


def _add_yarn(subparser: argparse.ArgumentParser) -> None:
    from blocklist.managers.yarn.manager import YARN_INTERVAL, add_yarn_options  # noqa: PLC0415 - see build_parser

    _add_common(subparser, every=YARN_INTERVAL)
    _add_min_nodes(subparser, "minimum number of nodes in service: neither the service nor the manager goes below it")
    add_yarn_options(subparser)


def _add_kubernetes(subparser: argparse.ArgumentParser) -> None:
    from blocklist.managers.kubernetes.running import add_kubernetes  # noqa: PLC0415 - see build_parser

    _add_common(subparser, "kubernetes")
    _add_min_nodes(subparser)
    add_kubernetes(subparser)


def _add_common(
    subparser: argparse.ArgumentParser,
    default_id: str = "the manager's and this host's name",
    every: float = DEFAULT_INTERVAL,
) -> None:
    subparser.set_defaults(print=False, min_nodes=0, run=None)
    subparser.add_argument("--url", help=f"URL of the service (default: BLOCKLIST_URL, else {DEFAULT_URL})")
    subparser.add_argument("--id", help=f"id of this listener (default: {default_id})")
    subparser.add_argument(
        "--cluster",
        type=checked(check_cluster),
        metavar="NAME",
        help="what the service calls the cluster of these nodes (default: the kind of this manager and its id)",
    )
    subparser.add_argument(
        "--every",
        type=positive_seconds,
        default=every,
        metavar="SECONDS",
        help=f"interval between reconciliations while the list does not change (default: {every:g})",
    )
    subparser.add_argument(
        "--timeout",
        type=positive_seconds,
        default=60.0,
        metavar="SECONDS",
        help="end a command, or a request to YARN, that takes longer (default: 60)",
    )
    modes = subparser.add_mutually_exclusive_group()
    modes.add_argument("--once", action="store_true", help="apply the current list and exit, without registering")
    modes.add_argument(
        "--observe",
        action="store_true",
        help="register and report what would be done, but change nothing, whatever mode the service wants",
    )
    modes.add_argument("--dry-run", action="store_true", help="print the plan and exit; change nothing")


def _add_slurm(subparser: argparse.ArgumentParser) -> None:
    from blocklist.managers.slurm import SlurmManager  # noqa: PLC0415 - see build_parser

    _add_common(subparser)
    subparser.add_argument("--command", default="scontrol", metavar="COMMAND", help="scontrol (default: scontrol)")
    _add_min_nodes(subparser)
    subparser.set_defaults(make=lambda args: SlurmManager(require_command(shlex.split(args.command)), args.timeout))


def _add_min_nodes(
    subparser: argparse.ArgumentParser,
    about: str = "minimum number of usable nodes; the service rejects blocks that would leave fewer",
) -> None:
    subparser.add_argument(
        "--min-nodes",
        type=count,
        default=0,
        metavar="NODES",
        help=f"{about} (default: 0)",
    )


def _add_standalone(subparser: argparse.ArgumentParser) -> None:
    from blocklist.managers.standalone import add_standalone_options  # noqa: PLC0415 - see build_parser

    _add_common(subparser)
    add_standalone_options(subparser)


def _add_exec(subparser: argparse.ArgumentParser) -> None:
    _add_common(subparser)
    subparser.add_argument(
        "--state", type=Path, required=True, metavar="FILE", help="stores what the command has carried out"
    )
    subparser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND …", help="the command and its arguments")
    subparser.set_defaults(make=_make_exec)


def _make_exec(args: argparse.Namespace) -> Manager[Any]:
    from blocklist.managers.exec import ExecManager  # noqa: PLC0415 - see build_parser

    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    return ExecManager(require_command(words), require_folder(args.state), args.timeout)


_KINDS: Final[Mapping[str, tuple[str, Callable[[argparse.ArgumentParser], None]]]] = {
    "yarn": ("YARN: node labels and resources by its REST API.", _add_yarn),
    "slurm": ("Slurm: drains and resumes nodes with scontrol.", _add_slurm),
    "kubernetes": ("Kubernetes: taints nodes, and may evict pods.", _add_kubernetes),
    "standalone": ("Spark's standalone master: reports its workers and jobs, and changes nothing.", _add_standalone),
    "exec": ("Any command: it receives the plan as JSON on standard input.", _add_exec),
}
"""By name what it is, and what adds its options."""


# Types of command line arguments that several managers have.


def require_command(command: Sequence[str]) -> Sequence[str]:
    """The command, if its program is there. Raises InvalidError."""
    if not command:
        raise InvalidError("Name the command to run.")
    if shutil.which(command[0]) is None:
        raise InvalidError(f"Command {command[0]} was not found.")
    return command


def require_folder(path: Path) -> Path:
    """The path of a file, if its folder is there. Raises InvalidError."""
    if not path.parent.is_dir():
        raise InvalidError(f"Folder {path.parent} does not exist.")
    if path.is_dir():
        raise InvalidError(f"{path} is a folder; name a file.")
    return path


def checked(check: Callable[[str], str], wrong: str = "") -> Callable[[str], str]:
    """The type of what `check` accepts. `wrong` takes the place of its error, behind the text."""

    def parse(text: str) -> str:
        try:
            return check(text)
        except InvalidError as error:
            message = f"{without_credentials(text)[:64]!a} {wrong}" if wrong else str(error)
            raise argparse.ArgumentTypeError(message) from None

    return parse


def positive_seconds(text: str) -> float:
    """Seconds, above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError("give a number of seconds above 0")
    return value


def count(text: str) -> int:
    """A whole number from 0 on."""
    if not re.fullmatch("[0-9]{1,9}", text, re.ASCII):
        raise argparse.ArgumentTypeError("give a whole number")
    return int(text)
