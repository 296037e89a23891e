"""What an operator can say on the command line."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from blocklist.client.client import DEFAULT_URL
from blocklist.detection.heuristics import HOUR_MS, Rules
from blocklist.model.errors import InvalidError

_DEFAULT = Rules()


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m blocklist.detection",
        description="Reads event logs of many Spark applications and proposes to block nodes that are slow or fail.",
    )
    parser.add_argument(
        "--event-logs", nargs="+", required=True, metavar="PATH", help="files and folders, also hdfs://…"
    )
    parser.add_argument(
        "--since", type=_timestamp, metavar="TIME", help="only what happened from then on (2026-11-21T12:00)"
    )
    parser.add_argument("--until", type=_timestamp, metavar="TIME", help="only what happened before")
    parser.add_argument("--url", help=f"the service, for its history (BLOCKLIST_URL, else {DEFAULT_URL})")
    do = parser.add_mutually_exclusive_group()
    do.add_argument("--apply", action="store_true", help="block what is proposed")
    do.add_argument("--dry-run", action="store_true", help="propose only (the default); without --url nobody is asked")
    about = "go on judging what is written meanwhile; --since and --until, --parquet and --html do not go with it"
    parser.add_argument("--follow", action="store_true", help=about)
    parser.add_argument("--checkpoint", metavar="FOLDER", help="where --follow keeps what it knows, for its next start")
    parser.add_argument(
        "--json", metavar="FILE", help="the proposals as JSON lines; - for standard output, not a table"
    )
    parser.add_argument("--parquet", metavar="FOLDER", help="the DataFrames nodes, host_stages and failures")
    parser.add_argument("--html", type=Path, metavar="FILE", help="a report with plots")
    _rules(parser.add_argument_group("what a verdict takes"))
    return parser


def _rules(group: argparse._ArgumentGroup) -> None:
    about = f"probability that a run over healthy nodes blames one ({_DEFAULT.alarm_rate:g})"
    group.add_argument("--alarm-rate", type=_fraction, default=_DEFAULT.alarm_rate, metavar="RATE", help=about)
    about = f"block at most this part of the nodes in one run, but always one ({_DEFAULT.max_share:g})"
    group.add_argument("--max-share", type=_fraction, default=_DEFAULT.max_share, metavar="SHARE", help=about)
    about = f"applications that must agree ({_DEFAULT.min_applications})"
    group.add_argument("--applications", type=_count, default=_DEFAULT.min_applications, metavar="N", help=about)
    about = "length of a first block (1); each one before doubles it, up to a week"
    group.add_argument("--hours", type=_hours, default=_DEFAULT.block_ms, metavar="HOURS", help=about)


def parse_rules(args: argparse.Namespace) -> Rules:
    """The rules that were asked for."""
    return Rules(
        alarm_rate=args.alarm_rate,
        max_share=args.max_share,
        min_applications=args.applications,
        block_ms=args.hours,
    )


def _timestamp(text: str) -> int:
    """Unix milliseconds; without a time zone it is UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write it as 2026-11-21T12:00") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _number(text: str, sentence: str, low: float, high: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = low
    if not low < number <= high:
        raise argparse.ArgumentTypeError(sentence)
    return number


def _fraction(text: str) -> float:
    return _number(text, "give a number above 0, at most 1", 0, 1)


def _hours(text: str) -> int:
    return round(_number(text, "give hours, above 0 and at most 168", 0, 168) * HOUR_MS)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= 1000):
        raise argparse.ArgumentTypeError("give a whole number from 1 to 1000")
    return int(text)


def validate(args: argparse.Namespace) -> None:
    """Raises InvalidError for what does not go together."""
    if args.follow and not args.checkpoint:
        raise InvalidError("--follow needs --checkpoint FOLDER.")
    if args.checkpoint and not args.follow:
        raise InvalidError("--checkpoint belongs to --follow.")
    if args.follow and (args.since or args.until or args.parquet or args.html):
        raise InvalidError("--since, --until, --parquet and --html do not go with --follow.")
