"""The command line of the managers."""

from __future__ import annotations

import argparse
import math
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blocklist.client.client import DEFAULT_URL
from blocklist.managers.exec import ExecManager
from blocklist.managers.plan import Manager
from blocklist.managers.reconcile import DEFAULT_INTERVAL
from blocklist.managers.slurm import SlurmManager
from blocklist.managers.yarn import NO_TIMEOUT, DecommissionTimeouts, YarnManager, refresh_command
from blocklist.managers.yarn_nodes import YarnNodes
from blocklist.model.errors import InvalidError


def build_parser() -> argparse.ArgumentParser:
    """The parser. `make(args)` on the parsed arguments creates the manager; it raises InvalidError for invalid ones."""
    parser = argparse.ArgumentParser(
        prog="python -m blocklist.managers",
        description="Keeps a cluster manager in line with the blocklist: plans, applies and acknowledges each change.",
    )
    kinds = parser.add_subparsers(dest="manager", required=True, metavar="yarn|slurm|exec")
    _add_yarn(_add_subparser(kinds, "yarn", "YARN: writes the exclude file and runs rmadmin -refreshNodes."))
    _add_slurm(_add_subparser(kinds, "slurm", "Slurm: drains and resumes nodes with scontrol."))
    _add_exec(_add_subparser(kinds, "exec", "Any command: it receives the plan as JSON on standard input."))
    return parser


def _add_subparser(kinds: Any, name: str, description: str) -> argparse.ArgumentParser:
    subparser: argparse.ArgumentParser = kinds.add_parser(name, help=description, description=description)
    subparser.set_defaults(print=False, min_nodes=0)
    subparser.add_argument("--url", help=f"URL of the service (default: BLOCKLIST_URL, else {DEFAULT_URL})")
    subparser.add_argument("--id", help="id of this listener (default: the manager's and this host's name)")
    subparser.add_argument(
        "--every",
        type=_positive_seconds,
        default=DEFAULT_INTERVAL,
        metavar="SECONDS",
        help=f"interval between reconciliations while the list does not change (default: {DEFAULT_INTERVAL:g})",
    )
    subparser.add_argument(
        "--timeout",
        type=_positive_seconds,
        default=60.0,
        metavar="SECONDS",
        help="kill a command that runs longer (default: 60)",
    )
    modes = subparser.add_mutually_exclusive_group()
    modes.add_argument("--once", action="store_true", help="apply the current list and exit, without registering")
    modes.add_argument("--dry-run", action="store_true", help="print the plan and exit; change nothing")
    return subparser


def _add_yarn(subparser: argparse.ArgumentParser) -> None:
    subparser.add_argument("--exclude-file", type=Path, metavar="FILE", help="yarn.resourcemanager.nodes.exclude-path")
    subparser.add_argument(
        "--format", choices=["plain", "xml"], help="format of the file (default: xml if its name ends in .xml)"
    )
    subparser.add_argument(
        "--evacuate-after",
        type=_seconds_or_block_end,
        default=0,
        metavar="SECONDS|end",
        help="XML: timeout of running containers on an evacuated node; 'end': when the block ends (default: 0)",
    )
    subparser.add_argument(
        "--graceful",
        type=_seconds_or_unlimited,
        default=NO_TIMEOUT,
        metavar="SECONDS",
        help="timeout of running containers on nodes without one in the file: in a plain file, all (default: -1, none)",
    )
    subparser.add_argument(
        "--command",
        default="yarn rmadmin -refreshNodes",
        metavar="COMMAND",
        help="makes YARN read the file (default: 'yarn rmadmin -refreshNodes'); '-g [SECONDS] -server' is appended",
    )
    subparser.add_argument(
        "--resourcemanager",
        metavar="URL",
        help="such as http://rm:8088: report the nodes and their racks, read there (default: report no nodes)",
    )
    subparser.add_argument("--print", action="store_true", help="print spark.yarn.exclude.nodes=… and exit")
    subparser.set_defaults(make=_make_yarn)


def _add_slurm(subparser: argparse.ArgumentParser) -> None:
    subparser.add_argument("--command", default="scontrol", metavar="COMMAND", help="scontrol (default: scontrol)")
    subparser.add_argument(
        "--min-nodes",
        type=_count,
        default=0,
        metavar="NODES",
        help="minimum number of usable nodes; the service rejects blocks that would leave fewer (default: 0)",
    )
    subparser.set_defaults(make=lambda args: SlurmManager(_require_command(shlex.split(args.command)), args.timeout))


def _add_exec(subparser: argparse.ArgumentParser) -> None:
    subparser.add_argument(
        "--state", type=Path, required=True, metavar="FILE", help="stores what the command has carried out"
    )
    subparser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND …", help="the command and its arguments")
    subparser.set_defaults(make=_make_exec)


def _make_yarn(args: argparse.Namespace) -> Manager[Any]:
    if args.exclude_file is None:
        raise InvalidError("Name YARN's exclude file: --exclude-file FILE.")
    path = _require_folder(args.exclude_file)
    xml = args.format == "xml" if args.format else path.name.lower().endswith(".xml")
    timeouts = DecommissionTimeouts(per_node=xml, evacuate=args.evacuate_after, default=args.graceful)
    command = refresh_command(_require_command(shlex.split(args.command)), args.graceful)
    nodes = None if args.resourcemanager is None else YarnNodes(args.resourcemanager)
    return YarnManager(path, xml=xml, timeouts=timeouts, command=command, timeout=args.timeout, nodes=nodes)


def _make_exec(args: argparse.Namespace) -> Manager[Any]:
    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    return ExecManager(_require_command(words), _require_folder(args.state), args.timeout)


def _require_command(command: Sequence[str]) -> Sequence[str]:
    if not command:
        raise InvalidError("Name the command to run.")
    if shutil.which(command[0]) is None:
        raise InvalidError(f"Command {command[0]} was not found.")
    return command


def _require_folder(path: Path) -> Path:
    if not path.parent.is_dir():
        raise InvalidError(f"Folder {path.parent} does not exist.")
    if path.is_dir():
        raise InvalidError(f"{path} is a folder; name a file.")
    return path


def _positive_seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError("give a number of seconds above 0")
    return value


def _count(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text, re.ASCII):
        raise argparse.ArgumentTypeError("give a whole number")
    return int(text)


def _seconds_or_unlimited(text: str) -> int:
    if not re.fullmatch("-1|[0-9]{1,9}", text, re.ASCII):
        raise argparse.ArgumentTypeError("give whole seconds, or -1 for no timeout")
    return int(text)


def _seconds_or_block_end(text: str) -> int | None:
    return None if text == "end" else _seconds_or_unlimited(text)
