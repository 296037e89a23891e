"""The command line of the managers."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from blocklist.client import DEFAULT_URL
from blocklist.managers.arguments import count, positive_seconds, require_command, require_folder
from blocklist.managers.exec import ExecManager
from blocklist.managers.kubernetes.options import add_kubernetes
from blocklist.managers.plan import Manager
from blocklist.managers.reconcile import DEFAULT_INTERVAL
from blocklist.managers.slurm import SlurmManager
from blocklist.managers.yarn.options import YARN_INTERVAL, add_yarn_options


def build_parser(prog: str) -> argparse.ArgumentParser:
    """The parser. `make(args)` on the parsed arguments creates the manager; it raises InvalidError for invalid ones.

    A manager that needs more than the loop of all managers has `run(args, stopping)`.
    """
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Keeps a cluster manager in line with the blocklist: plans, applies and acknowledges each change.",
    )
    kinds = parser.add_subparsers(dest="manager", required=True, metavar="yarn|slurm|kubernetes|exec")
    about = "YARN: node labels and resources by its REST API."
    add_yarn_options(_add_subparser(kinds, "yarn", about, every=YARN_INTERVAL))
    _add_slurm(_add_subparser(kinds, "slurm", "Slurm: drains and resumes nodes with scontrol."))
    kubernetes = _add_subparser(kinds, "kubernetes", "Kubernetes: taints nodes, and may evict pods.", "kubernetes")
    _add_min_nodes(kubernetes)
    add_kubernetes(kubernetes)
    _add_exec(_add_subparser(kinds, "exec", "Any command: it receives the plan as JSON on standard input."))
    return parser


def _add_subparser(
    kinds: Any,
    name: str,
    description: str,
    default_id: str = "the manager's and this host's name",
    every: float = DEFAULT_INTERVAL,
) -> argparse.ArgumentParser:
    subparser: argparse.ArgumentParser = kinds.add_parser(name, help=description, description=description)
    subparser.set_defaults(print=False, min_nodes=0, run=None)
    subparser.add_argument("--url", help=f"URL of the service (default: BLOCKLIST_URL, else {DEFAULT_URL})")
    subparser.add_argument("--id", help=f"id of this listener (default: {default_id})")
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
    modes.add_argument("--dry-run", action="store_true", help="print the plan and exit; change nothing")
    return subparser


def _add_slurm(subparser: argparse.ArgumentParser) -> None:
    subparser.add_argument("--command", default="scontrol", metavar="COMMAND", help="scontrol (default: scontrol)")
    _add_min_nodes(subparser)
    subparser.set_defaults(make=lambda args: SlurmManager(require_command(shlex.split(args.command)), args.timeout))


def _add_min_nodes(subparser: argparse.ArgumentParser) -> None:
    subparser.add_argument(
        "--min-nodes",
        type=count,
        default=0,
        metavar="NODES",
        help="minimum number of usable nodes; the service rejects blocks that would leave fewer (default: 0)",
    )


def _add_exec(subparser: argparse.ArgumentParser) -> None:
    subparser.add_argument(
        "--state", type=Path, required=True, metavar="FILE", help="stores what the command has carried out"
    )
    subparser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND …", help="the command and its arguments")
    subparser.set_defaults(make=_make_exec)


def _make_exec(args: argparse.Namespace) -> Manager[Any]:
    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    return ExecManager(require_command(words), require_folder(args.state), args.timeout)
