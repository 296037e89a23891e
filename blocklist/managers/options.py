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
from blocklist.managers.exec import Exec
from blocklist.managers.plan import Manager
from blocklist.managers.reconcile import EVERY
from blocklist.managers.slurm import Slurm
from blocklist.managers.yarn import WITHOUT_END, Timeouts, Yarn, refresh
from blocklist.model.errors import InvalidError


def parser() -> argparse.ArgumentParser:
    """The command line. `make` of what it parses makes the manager; it raises InvalidError with a sentence."""
    parser = argparse.ArgumentParser(
        prog="python -m blocklist.managers",
        description="Keeps a cluster manager in line with the blocklist until it is ended: plan, apply, acknowledge.",
    )
    kinds = parser.add_subparsers(dest="manager", required=True, metavar="yarn|slurm|exec")
    _yarn(_kind(kinds, "yarn", "YARN: the exclude file, and rmadmin -refreshNodes."))
    _slurm(_kind(kinds, "slurm", "Slurm: nodes are drained and resumed with scontrol."))
    _exec(_kind(kinds, "exec", "Any command, given the plan as JSON on its standard input."))
    return parser


def _kind(kinds: Any, name: str, about: str) -> argparse.ArgumentParser:
    kind: argparse.ArgumentParser = kinds.add_parser(name, help=about, description=about)
    kind.set_defaults(print=False, min_nodes=0)
    kind.add_argument("--url", help=f"the service (BLOCKLIST_URL, else {DEFAULT_URL})")
    kind.add_argument("--id", help="what this listener is called (the manager's and this host's name)")
    about = f"look at the cluster manager so often, though nothing was heard ({EVERY:g})"
    kind.add_argument("--every", type=_seconds, default=EVERY, metavar="SECONDS", help=about)
    about = "end a command that takes longer (60)"
    kind.add_argument("--timeout", type=_seconds, default=60.0, metavar="SECONDS", help=about)
    once = kind.add_mutually_exclusive_group()
    once.add_argument("--once", action="store_true", help="apply the list of this moment and end, without registering")
    once.add_argument("--dry-run", action="store_true", help="print what there is to do, do nothing, and end")
    return kind


def _yarn(kind: argparse.ArgumentParser) -> None:
    kind.add_argument("--exclude-file", type=Path, metavar="FILE", help="yarn.resourcemanager.nodes.exclude-path")
    about = "the file's form (xml if its name ends in .xml, as YARN has it)"
    kind.add_argument("--format", choices=["plain", "xml"], help=about)
    about = "XML: so long containers on a node to be evacuated may go on; 'end' is as long as its block lasts (0)"
    kind.add_argument("--evacuate-after", type=_whole_or_end, default=0, metavar="SECONDS|end", help=about)
    about = "so long they may go on where the file says nothing: on all nodes of a plain file (-1: without end)"
    kind.add_argument("--graceful", type=_whole, default=WITHOUT_END, metavar="SECONDS", help=about)
    about = "what has the file read ('yarn rmadmin -refreshNodes'); '-g [SECONDS] -server' is added"
    kind.add_argument("--command", default="yarn rmadmin -refreshNodes", metavar="COMMAND", help=about)
    kind.add_argument("--print", action="store_true", help="print spark.yarn.exclude.nodes=… for a submit and end")
    kind.set_defaults(make=_make_yarn)


def _slurm(kind: argparse.ArgumentParser) -> None:
    kind.add_argument("--command", default="scontrol", metavar="COMMAND", help="Slurm's scontrol ('scontrol')")
    about = "have the service refuse blocks that would leave fewer nodes usable (0)"
    kind.add_argument("--min-nodes", type=_count, default=0, metavar="NODES", help=about)
    kind.set_defaults(make=lambda given: Slurm(_found(shlex.split(given.command)), given.timeout))


def _exec(kind: argparse.ArgumentParser) -> None:
    about = "where it is written down what the command has carried out"
    kind.add_argument("--state", type=Path, required=True, metavar="FILE", help=about)
    kind.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND …", help="the command and its arguments")
    kind.set_defaults(make=_make_exec)


def _make_yarn(given: argparse.Namespace) -> Manager[Any]:
    if given.exclude_file is None:
        raise InvalidError("Name YARN's exclude file: --exclude-file FILE.")
    path = _writable(given.exclude_file)
    xml = given.format == "xml" if given.format else path.name.lower().endswith(".xml")
    timeouts = Timeouts(each=xml, evacuate=given.evacuate_after, others=given.graceful)
    command = refresh(_found(shlex.split(given.command)), given.graceful)
    return Yarn(path, xml=xml, timeouts=timeouts, command=command, limit=given.timeout)


def _make_exec(given: argparse.Namespace) -> Manager[Any]:
    words = given.words[1:] if given.words[:1] == ["--"] else given.words
    return Exec(_found(words), _writable(given.state), given.timeout)


def _found(command: Sequence[str]) -> Sequence[str]:
    if not command:
        raise InvalidError("Name the command that is to be run.")
    if shutil.which(command[0]) is None:
        raise InvalidError(f"There is no command {command[0]} here that could be run.")
    return command


def _writable(path: Path) -> Path:
    if not path.parent.is_dir():
        raise InvalidError(f"There is no folder {path.parent}.")
    if path.is_dir():
        raise InvalidError(f"{path} is a folder; name a file.")
    return path


def _seconds(text: str) -> float:
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


def _whole(text: str) -> int:
    if not re.fullmatch("-1|[0-9]{1,9}", text, re.ASCII):
        raise argparse.ArgumentTypeError("give whole seconds, or -1 for without end")
    return int(text)


def _whole_or_end(text: str) -> int | None:
    return None if text == "end" else _whole(text)
