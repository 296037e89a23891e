"""Command line options."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from blocklist.client.client import DEFAULT_URL
from blocklist.detection.heuristics import HOUR_MS, Rules
from blocklist.model.errors import InvalidError

_DEFAULT = Rules()


def parser() -> argparse.ArgumentParser:
    """Create the argument parser."""
    parser = argparse.ArgumentParser(
        prog="python -m blocklist.detection",
        description="Reads event logs of many Spark applications and proposes to block nodes that are slow or fail.",
    )
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
    _rules(parser.add_argument_group("thresholds"))
    return parser


def _rules(group: argparse._ArgumentGroup) -> None:
    about = f"maximum probability that a run over healthy nodes blames one (default: {_DEFAULT.alarm_rate:g})"
    group.add_argument("--alarm-rate", type=_fraction, default=_DEFAULT.alarm_rate, metavar="RATE", help=about)
    about = f"maximum share of the nodes to block in one run; one is always allowed (default: {_DEFAULT.max_share:g})"
    group.add_argument("--max-share", type=_fraction, default=_DEFAULT.max_share, metavar="SHARE", help=about)
    about = f"minimum number of applications with evidence (default: {_DEFAULT.min_applications})"
    group.add_argument("--applications", type=_count, default=_DEFAULT.min_applications, metavar="N", help=about)
    about = "minimum minutes from the first to the last evidence, so that what passes blocks nothing (default: 6)"
    group.add_argument("--minutes", type=_minutes, default=_DEFAULT.min_span_ms, metavar="MINUTES", help=about)
    about = "kind of machine, as KIND=HOST[,HOST...] with wildcards; hosts are compared with those of their kind"
    group.add_argument("--group", action="append", default=[], type=_group, metavar="KIND=HOSTS", help=about)
    about = "label of the service's inventory whose value is the kind of machine"
    group.add_argument("--group-label", metavar="LABEL", help=about)
    about = "length of a first block; each earlier block doubles it, up to a week (default: 1)"
    group.add_argument("--hours", type=_hours, default=_DEFAULT.block_ms, metavar="HOURS", help=about)


def parse_rules(args: argparse.Namespace) -> Rules:
    """Return the rules that the options set."""
    return Rules(
        alarm_rate=args.alarm_rate,
        max_share=args.max_share,
        min_applications=args.applications,
        min_span_ms=args.minutes,
        block_ms=args.hours,
    )


def _timestamp(text: str) -> int:
    """Parse an ISO 8601 time to Unix ms; UTC if it has no time zone."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; write it as 2026-11-21T12:00") from None
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def _number(text: str, sentence: str, low: float, high: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = low
    if not low < number <= high:
        raise argparse.ArgumentTypeError(sentence)
    return number


def _fraction(text: str) -> float:
    return _number(text, "must be a number above 0 and at most 1", 0, 1)


def _hours(text: str) -> int:
    return round(_number(text, "must be hours, above 0 and at most 168", 0, 168) * HOUR_MS)


def _minutes(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text[:9]) <= 10_080):
        raise argparse.ArgumentTypeError("must be an integer from 0 to 10080")
    return int(text) * 60_000


def _group(text: str) -> tuple[str, list[str]]:
    kind, _, hosts = text.partition("=")
    patterns = [pattern for pattern in hosts.split(",") if pattern]
    if not kind or not patterns:
        raise argparse.ArgumentTypeError(f"{text!r} is not KIND=HOST[,HOST...]")
    return kind, patterns


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= 1000):
        raise argparse.ArgumentTypeError("must be an integer from 1 to 1000")
    return int(text)


def validate(args: argparse.Namespace) -> None:
    """Raises InvalidError for options that exclude each other."""
    if args.follow and not args.checkpoint:
        raise InvalidError("--follow requires --checkpoint FOLDER.")
    if args.checkpoint and not args.follow:
        raise InvalidError("--checkpoint requires --follow.")
    if args.follow and (args.since or args.until or args.parquet or args.html):
        raise InvalidError("--follow cannot be combined with --since, --until, --parquet or --html.")
