"""The rules of a run: from options of the command, else from a TOML file in which they have the same names."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from blocklist.detection.heuristics import HOUR_MS, Rules
from blocklist.model.errors import InvalidError

Groups = Sequence[tuple[str, Sequence[str]]]
"""Kinds of machines, each with the patterns of its hosts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleSet:
    """Thresholds, and how hosts are grouped into kinds: by patterns, and by a label of the service's inventory."""

    rules: Rules = field(default_factory=Rules)
    groups: Groups = ()
    group_label: str | None = None


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
_NAMES: Final = (*_THRESHOLDS, "group", "group-label", "canary")


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
    return RuleSet(rules=rules, groups=values.get("group", ()), group_label=values.get("group-label"))


def _read(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
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
    if name == "canary":
        return _flag(value)
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


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise argparse.ArgumentTypeError(f"canary must be true or false, not {value!r}")
    return value
