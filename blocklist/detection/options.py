"""Command line options."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

from blocklist.client import DEFAULT_URL
from blocklist.detection import rule_set
from blocklist.detection.heuristics import Rules
from blocklist.model.errors import InvalidError

_DEFAULT = Rules()


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m blocklist.detection",
        description="Reads event logs of many Spark applications and proposes to block nodes that are slow or fail.",
        epilog="`python -m blocklist.detection backtest --help`: what rules would have blocked in the past.",
    )
    add_input(parser)
    do = parser.add_mutually_exclusive_group()
    do.add_argument("--apply", action="store_true", help="block the proposed nodes")
    do.add_argument(
        "--dry-run",
        action="store_true",
        help="propose only (default); reads the history of nodes if a service is configured",
    )
    about = "keep running and analyse new events; excludes --since, --until, --parquet and --html"
    parser.add_argument("--follow", action="store_true", help=about)
    parser.add_argument(
        "--checkpoint", metavar="FOLDER", help="folder for the state of --follow, which it continues from"
    )
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="write the proposals as JSON lines; - writes them to standard output instead of the table",
    )
    parser.add_argument("--parquet", metavar="FOLDER", help="write the DataFrames nodes, host_stages and failures")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a report with plots")
    add_rules(parser.add_argument_group("rules"))
    return parser


def add_input(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what is read."""
    parser.add_argument(
        "--event-logs", nargs="+", required=True, metavar="PATH", help="files and folders of event logs, also hdfs://…"
    )
    parser.add_argument(
        "--since",
        type=_timestamp,
        metavar="TIME",
        help="ignore earlier events; ISO 8601, UTC unless it has a zone (2026-11-21T12:00)",
    )
    parser.add_argument("--until", type=_timestamp, metavar="TIME", help="ignore events from this time on")
    parser.add_argument("--url", help=f"URL of the service (default: BLOCKLIST_URL, else {DEFAULT_URL})")


def add_rules(group: argparse._ArgumentGroup) -> None:
    """Add the options that rule_set() reads. None: as the file of rules says, or its default."""
    about = "TOML file with the options below as names and values; options take precedence"
    group.add_argument("--rules", type=Path, metavar="FILE", help=about)
    about = f"maximum probability that a run over healthy nodes blames one (default: {_DEFAULT.alarm_rate:g})"
    group.add_argument("--alarm-rate", type=rule_set.fraction, metavar="RATE", help=about)
    about = f"maximum share of the nodes to block in one run; one is always allowed (default: {_DEFAULT.max_share:g})"
    group.add_argument("--max-share", type=rule_set.fraction, metavar="SHARE", help=about)
    about = f"minimum number of applications with evidence (default: {_DEFAULT.min_applications})"
    group.add_argument("--applications", type=rule_set.count, metavar="N", help=about)
    about = "minimum minutes from the first to the last evidence, so that what passes blocks nothing (default: 6)"
    group.add_argument("--minutes", type=rule_set.minutes, metavar="MINUTES", help=about)
    about = "kind of machine, as KIND=HOST[,HOST...] with wildcards; hosts are compared with those of their kind"
    group.add_argument("--group", action="append", type=rule_set.group, metavar="KIND=HOSTS", help=about)
    about = "label of the service's inventory whose value is the kind of machine"
    group.add_argument("--group-label", metavar="LABEL", help=about)
    about = "length of a first block; each earlier block doubles it, up to a week (default: 1)"
    group.add_argument("--hours", type=rule_set.hours, metavar="HOURS", help=about)
    about = "leave one executor of each application on nodes that are slow and do not fail, to see when they recover"
    group.add_argument("--canary", action=argparse.BooleanOptionalAction, help=about)


def _timestamp(text: str) -> int:
    """Parse an ISO 8601 time to Unix ms; UTC if it has no time zone."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; write it as 2026-11-21T12:00") from None
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def local_paths(paths: Sequence[str]) -> list[str]:
    """The paths without `file:`, for --follow. Raises InvalidError for other file systems."""
    return [_local_path(path) for path in paths]


def _local_path(path: str) -> str:
    scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", path)
    if scheme is None:
        return path
    if scheme[0].lower() != "file:":
        raise InvalidError(f"--follow reads folders of this machine, not {path}.")
    return unquote(urlsplit(path).path)


def validate(args: argparse.Namespace) -> None:
    """Raise InvalidError for options that exclude each other."""
    if args.follow and not args.checkpoint:
        raise InvalidError("--follow requires --checkpoint FOLDER.")
    if args.checkpoint and not args.follow:
        raise InvalidError("--checkpoint requires --follow.")
    if args.follow and (args.since or args.until or args.parquet or args.html):
        raise InvalidError("--follow cannot be combined with --since, --until, --parquet or --html.")
