"""What an operator can say on the command line, and the manager that comes of it."""

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
from blocklist.model.errors import InvalidError


def build_parser() -> argparse.ArgumentParser:
    """The command line. `make` of what it parses makes the manager; it raises InvalidError with a sentence."""
    parser = argparse.ArgumentParser(
        prog="python -m blocklist.managers",
        description="Keeps a cluster manager in line with the blocklist until it is ended: plan, apply, acknowledge.",
    )
    kinds = parser.add_subparsers(dest="manager", required=True, metavar="yarn|slurm|exec")
    _add_yarn(_add_subparser(kinds, "yarn", "YARN: the exclude file, and rmadmin -refreshNodes."))
    _add_slurm(_add_subparser(kinds, "slurm", "Slurm: nodes are drained and resumed with scontrol."))
    _add_exec(_add_subparser(kinds, "exec", "Any command, given the plan as JSON on its standard input."))
    return parser


def _add_subparser(kinds: Any, name: str, help_text: str) -> argparse.ArgumentParser:
    subparser: argparse.ArgumentParser = kinds.add_parser(name, help=help_text, description=help_text)
    subparser.set_defaults(print=False, min_nodes=0)
    subparser.add_argument("--url", help=f"the service (BLOCKLIST_URL, else {DEFAULT_URL})")
    subparser.add_argument("--id", help="what this listener is called (the manager's and this host's name)")
    help_text = f"look at the cluster manager so often, though nothing was heard ({DEFAULT_INTERVAL:g})"
    subparser.add_argument(
        "--every", type=_positive_seconds, default=DEFAULT_INTERVAL, metavar="SECONDS", help=help_text
    )
    help_text = "end a command that takes longer (60)"
    subparser.add_argument("--timeout", type=_positive_seconds, default=60.0, metavar="SECONDS", help=help_text)
    modes = subparser.add_mutually_exclusive_group()
    modes.add_argument("--once", action="store_true", help="apply the list of this moment and end, without registering")
    modes.add_argument("--dry-run", action="store_true", help="print what there is to do, do nothing, and end")
    return subparser


def _add_yarn(subparser: argparse.ArgumentParser) -> None:
    subparser.add_argument("--exclude-file", type=Path, metavar="FILE", help="yarn.resourcemanager.nodes.exclude-path")
    help_text = "the file's form (xml if its name ends in .xml, as YARN has it)"
    subparser.add_argument("--format", choices=["plain", "xml"], help=help_text)
    help_text = "XML: so long containers on a node to be evacuated may go on; 'end' is as long as its block lasts (0)"
    subparser.add_argument(
        "--evacuate-after", type=_seconds_or_block_end, default=0, metavar="SECONDS|end", help=help_text
    )
    help_text = "so long they may go on where the file says nothing: on all nodes of a plain file (-1: without end)"
    subparser.add_argument(
        "--graceful", type=_seconds_or_unlimited, default=NO_TIMEOUT, metavar="SECONDS", help=help_text
    )
    help_text = "what has the file read ('yarn rmadmin -refreshNodes'); '-g [SECONDS] -server' is added"
    subparser.add_argument("--command", default="yarn rmadmin -refreshNodes", metavar="COMMAND", help=help_text)
    subparser.add_argument("--print", action="store_true", help="print spark.yarn.exclude.nodes=… for a submit and end")
    subparser.set_defaults(make=_make_yarn)


def _add_slurm(subparser: argparse.ArgumentParser) -> None:
    subparser.add_argument("--command", default="scontrol", metavar="COMMAND", help="Slurm's scontrol ('scontrol')")
    help_text = "have the service refuse blocks that would leave fewer nodes usable (0)"
    subparser.add_argument("--min-nodes", type=_count, default=0, metavar="NODES", help=help_text)
    subparser.set_defaults(make=lambda given: SlurmManager(_require_command(shlex.split(given.command)), given.timeout))


def _add_exec(subparser: argparse.ArgumentParser) -> None:
    help_text = "where it is written down what the command has carried out"
    subparser.add_argument("--state", type=Path, required=True, metavar="FILE", help=help_text)
    subparser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND …", help="the command and its arguments")
    subparser.set_defaults(make=_make_exec)


def _make_yarn(args: argparse.Namespace) -> Manager[Any]:
    if args.exclude_file is None:
        raise InvalidError("Name YARN's exclude file: --exclude-file FILE.")
    path = _require_folder(args.exclude_file)
    xml = args.format == "xml" if args.format else path.name.lower().endswith(".xml")
    timeouts = DecommissionTimeouts(per_node=xml, evacuate=args.evacuate_after, default=args.graceful)
    command = refresh_command(_require_command(shlex.split(args.command)), args.graceful)
    return YarnManager(path, xml=xml, timeouts=timeouts, command=command, timeout=args.timeout)


def _make_exec(args: argparse.Namespace) -> Manager[Any]:
    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    return ExecManager(_require_command(words), _require_folder(args.state), args.timeout)


def _require_command(command: Sequence[str]) -> Sequence[str]:
    if not command:
        raise InvalidError("Name the command that is to be run.")
    if shutil.which(command[0]) is None:
        raise InvalidError(f"There is no command {command[0]} here that could be run.")
    return command


def _require_folder(path: Path) -> Path:
    if not path.parent.is_dir():
        raise InvalidError(f"There is no folder {path.parent}.")
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
        raise argparse.ArgumentTypeError("give whole seconds, or -1 for without end")
    return int(text)


def _seconds_or_block_end(text: str) -> int | None:
    return None if text == "end" else _seconds_or_unlimited(text)
