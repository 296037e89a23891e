"""Command line options."""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from blocklist.client import DEFAULT_URL
from blocklist.detection.slowness import HOUR_MS, Rules
from blocklist.model.errors import InvalidError
from blocklist.model.text import read_text

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
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--event-logs", nargs="+", metavar="PATH", help="files and folders of event logs, also hdfs://…")
    about = "files and folders of tables of tasks (.parquet, .csv, .jsonl), of this machine, instead of event logs"
    given.add_argument("--tasks", nargs="+", metavar="PATH", help=about)
    parser.add_argument(
        "--since",
        type=_timestamp,
        metavar="TIME",
        help="ignore earlier events; ISO 8601, UTC unless it has a zone (2026-11-21T12:00)",
    )
    parser.add_argument("--until", type=_timestamp, metavar="TIME", help="ignore events from this time on")
    parser.add_argument("--url", help=f"URL of the service (default: BLOCKLIST_URL, else {DEFAULT_URL})")


def add_rules(section: argparse._ArgumentGroup) -> None:
    """Add the options that rule_set() reads. None: as the file of rules says, or its default."""
    about = "TOML file with the options below as names and values; options take precedence"
    section.add_argument("--rules", type=Path, metavar="FILE", help=about)
    about = f"maximum probability that a run over healthy nodes blames one (default: {_DEFAULT.alarm_rate:g})"
    section.add_argument("--alarm-rate", type=fraction, metavar="RATE", help=about)
    about = f"maximum share of the nodes to block in one run; one is always allowed (default: {_DEFAULT.max_share:g})"
    section.add_argument("--max-share", type=fraction, metavar="SHARE", help=about)
    about = f"minimum number of applications with evidence (default: {_DEFAULT.min_applications})"
    section.add_argument("--applications", type=count, metavar="N", help=about)
    about = "minimum minutes from the first to the last evidence, so that what passes blocks nothing (default: 6)"
    section.add_argument("--minutes", type=minutes, metavar="MINUTES", help=about)
    about = "kind of machine, as KIND=HOST[,HOST...] with wildcards; hosts are compared with those of their kind"
    section.add_argument("--group", action="append", type=group, metavar="KIND=HOSTS", help=about)
    about = "label of the service's inventory whose value is the kind of machine"
    section.add_argument("--group-label", metavar="LABEL", help=about)
    about = "length of a first block; each earlier block doubles it, up to a week (default: 1)"
    section.add_argument("--hours", type=hours, metavar="HOURS", help=about)
    about = (
        "let logs of one file owner be sufficient; otherwise, a node is blocked only if logs of two owners show it, "
        "because the writer of a log can invent anything"
    )
    section.add_argument("--trust-logs", action=argparse.BooleanOptionalAction, help=about)
    about = "leave one executor of each application on nodes that are slow and do not fail, to see when they recover"
    section.add_argument("--canary", action=argparse.BooleanOptionalAction, help=about)


def _timestamp(text: str) -> int:
    """Parse an ISO 8601 time to Unix ms; UTC if it has no time zone."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; write it as 2026-11-21T12:00") from None
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def local_paths(paths: Sequence[str], option: str) -> list[str]:
    """The paths without `file:`, for this option. Raises InvalidError for other file systems."""
    return [_local_path(path, option) for path in paths]


def _local_path(path: str, option: str) -> str:
    scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", path)
    if scheme is None:
        return path
    if scheme[0].lower() != "file:":
        raise InvalidError(f"{option} reads folders of this machine, not {path}.")
    return unquote(urlsplit(path).path)


def validate(args: argparse.Namespace) -> None:
    """Raise InvalidError for options that exclude each other."""
    if args.follow and not args.checkpoint:
        raise InvalidError("--follow requires --checkpoint FOLDER.")
    if args.checkpoint and not args.follow:
        raise InvalidError("--checkpoint requires --follow.")
    if args.follow and args.tasks:
        raise InvalidError("--follow reads event logs: it cannot be combined with --tasks.")
    if args.follow and (args.since or args.until or args.parquet or args.html):
        raise InvalidError("--follow cannot be combined with --since, --until, --parquet or --html.")


# The rules of a run: from options of the command, else from a TOML file in which they have the same names.

Groups = Sequence[tuple[str, Sequence[str]]]
"""Kinds of machines, each with the patterns of its hosts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleSet:
    """Thresholds, how hosts are grouped into kinds (by patterns, and by a label of the service's inventory), and
    whether evidence in logs of one file owner is sufficient.
    """

    rules: Rules = field(default_factory=Rules)
    groups: Groups = ()
    group_label: str | None = None
    trust_logs: bool = False


def fraction(text: str) -> float:
    """Parse a number above 0 and at most 1."""
    return _number(text, "must be a number above 0 and at most 1", 0, 1)


def hours(text: str) -> int:
    """Parse hours to milliseconds."""
    return round(_number(text, "must be hours, above 0 and at most 168", 0, 168) * HOUR_MS)


def minutes(text: str) -> int:
    """Parse minutes to milliseconds."""
    return _integer(text, 0, 10_080) * 60_000


def count(text: str) -> int:
    """Parse a number of applications."""
    return _integer(text, 1, 1000)


def group(text: str) -> tuple[str, list[str]]:
    """Parse KIND=HOST[,HOST...]."""
    kind, _, hosts = text.partition("=")
    patterns = [pattern for pattern in hosts.split(",") if pattern]
    if not kind or not patterns:
        raise argparse.ArgumentTypeError(f"{text!r} is not KIND=HOST[,HOST...]")
    return kind, patterns


def _number(text: str, sentence: str, low: float, high: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = low
    if not low < number <= high:
        raise argparse.ArgumentTypeError(sentence)
    return number


def _integer(text: str, low: int, high: int) -> int:
    if not (text.isascii() and text.isdecimal() and low <= int(text[:9]) <= high):
        raise argparse.ArgumentTypeError(f"must be an integer from {low} to {high}")
    return int(text)


_THRESHOLDS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "alarm-rate": ("alarm_rate", fraction),
    "max-share": ("max_share", fraction),
    "applications": ("min_applications", count),
    "minutes": ("min_span_ms", minutes),
    "hours": ("block_ms", hours),
}
"""The field of Rules, and the parser, of each option."""
_NAMES: Final = (*_THRESHOLDS, "group", "group-label", "canary", "trust-logs")


def rule_set(args: argparse.Namespace) -> RuleSet:
    """Return the rules: options take precedence over the file. Raises InvalidError, and OSError for the file."""
    options = {name: getattr(args, name.replace("-", "_")) for name in _NAMES}
    found = _read(args.rules) if args.rules else {}
    return _rule_set(found | {name: value for name, value in options.items() if value is not None})


def read_rules(path: Path) -> RuleSet:
    """Read a file of rules. Raises InvalidError for what it must not contain, and OSError."""
    return _rule_set(_read(path))


def _rule_set(values: Mapping[str, Any]) -> RuleSet:
    thresholds = {name: values[option] for option, (name, _) in _THRESHOLDS.items() if option in values}
    rules = Rules(**thresholds, canary=values.get("canary", False))
    return RuleSet(
        rules=rules,
        groups=values.get("group", ()),
        group_label=values.get("group-label"),
        trust_logs=values.get("trust-logs", False),
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(read_text(path))
        return {name: _parse(name, value) for name, value in values.items()}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidError(f"{path} is not TOML: {error}.") from None
    except argparse.ArgumentTypeError as error:
        raise InvalidError(f"{path}: {error}.") from None


def _parse(name: str, value: Any) -> Any:
    """Raises ArgumentTypeError."""
    if name == "group":
        return _groups(value)
    if name == "group-label":
        return _label(value)
    if name in {"canary", "trust-logs"}:
        return _flag(name, value)
    if name not in _THRESHOLDS:
        raise argparse.ArgumentTypeError(_unknown(name))
    _, parse = _THRESHOLDS[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        return parse(str(value) if is_number else "")
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{name} {error}, not {value!r}") from None


def _unknown(name: str) -> str:
    similar = get_close_matches(name, _NAMES, 1)
    hint = f"perhaps {similar[0]}" if similar else f"the rules are {', '.join(_NAMES)}"
    return f"there is no rule {name!r}; {hint}"


def _groups(value: Any) -> Groups:
    groups: dict[str, Any] = value if isinstance(value, dict) else {"": None}
    for kind, hosts in groups.items():
        if not (kind and isinstance(hosts, list) and hosts and all(isinstance(it, str) and it for it in hosts)):
            raise argparse.ArgumentTypeError("group must have a list of hosts for each kind: small = ['w-1?', 'w-20']")
    return list(groups.items())


def _label(value: Any) -> str:
    if not (isinstance(value, str) and value):
        raise argparse.ArgumentTypeError(f"group-label must be the name of a label, not {value!r}")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise argparse.ArgumentTypeError(f"{name} must be true or false, not {value!r}")
    return value
