"""Options and arguments that several commands have, and their parsers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from blocklist.cli.environment import blocked_node_ids, known_node_ids
from blocklist.cli.messages import ChangeOutput
from blocklist.cli.output import OutputFormat, print_stderr
from blocklist.model import node
from blocklist.model.errors import NotFoundError, UnknownNodeError
from blocklist.model.node import (
    ALL_LISTENERS,
    MAX_CAUSE_LENGTH,
    MAX_NODES,
    AppliedBy,
    check_node_id,
    check_text,
    parse_duration,
    parse_duration_or_forever,
)
from blocklist.model.text import read_stdin

if TYPE_CHECKING:
    from blocklist.client.client import BlocklistClient

_CLOCKS_DIFFER: Final = 60_000
_DAYS: Final = {"yesterday": -1, "today": 0, "tomorrow": 1}
_LIKE_DURATION: Final = re.compile(
    r"([0-9.]+(ms|s(ecs?|econds?)?|m(ins?|inutes?)?|h(rs?|ours?)?|d(ays?)?|w(eeks?)?))+", re.IGNORECASE
)
"""Also in spellings that no option takes."""
_LIKE_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T|$)")
_DAY: Final = re.compile(r"(?:(yesterday|today|tomorrow)(?: |$))?(?:([01]?[0-9]|2[0-3]):([0-5][0-9]))?", re.ASCII)


def parse_timestamp(text: str, now: int | None = None) -> int:
    """Unix milliseconds of a time; `15m`, `-15m` and `15m ago` are before `now` (Unix ms, by default the clock's).

    `18:00` is the last one, which may be yesterday's. Raises ValueError with a sentence, also for an absolute time
    without a time zone.
    """
    moment = time.time_ns() // 1_000_000 if now is None else now
    if text == "now":
        return moment
    if (day := _parse_day(text, moment)) is not None:
        return _parse_day(f"yesterday {text}", moment) or day if day > moment and text[0].isdecimal() else day
    if text[:1].isdecimal() or text[:1] == "-":
        try:
            return moment - parse_duration(text.removesuffix(" ago").removeprefix("-"))
        except ValueError:
            pass
    return _parse_absolute(text, "15m or yesterday 18:00")


def parse_end(text: str, now: int | None = None) -> int:
    """As parse_timestamp, but for an end: `18:00` is the next one, and a duration is refused, as it would be ago."""
    try:
        parse_duration(text.removeprefix("-"))
    except ValueError:
        pass
    else:
        raise ValueError(f"{text[:64]!a} is a duration: give it as -d {text.removeprefix('-')[:64]}.")
    moment = time.time_ns() // 1_000_000 if now is None else now
    if (end := _parse_day(text, moment)) is None:
        return moment if text == "now" else _parse_absolute(text, "18:00 or tomorrow 08:00")
    return _parse_day(f"tomorrow {text}", moment) or end if end <= moment and text[0].isdecimal() else end


def parse_past(text: str, now: int | None = None) -> int:
    """As parse_timestamp; raises ValueError if it is more than a minute ahead, as clocks differ."""
    moment = time.time_ns() // 1_000_000 if now is None else now
    if (at := parse_timestamp(text, moment)) > moment + _CLOCKS_DIFFER:
        raise ValueError(f"{text[:64]!a} is in the future: give a time that has passed.")
    return at


def _parse_day(text: str, now: int) -> int | None:
    """`yesterday`, `today 09:00`, `18:00`: in local time; None for anything else."""
    match = _DAY.fullmatch(text)
    if not text or match is None:
        return None
    day, hour, minute = match.groups()
    local = datetime.fromtimestamp(now / 1000).astimezone()
    date = local.date() + timedelta(days=_DAYS.get(day or "today", 0))
    # A naive time is local: the offset of that day counts, which may differ from today's.
    naive = datetime(date.year, date.month, date.day, int(hour or 0), int(minute or 0))  # noqa: DTZ001
    return round(naive.timestamp() * 1000)


def _parse_absolute(text: str, others: str) -> int:
    """`others` are examples of other forms that are allowed."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text[:64]!a} is not a time: give one such as 2026-11-21T18:00:00Z, {others}.") from None
    if parsed.tzinfo is None:
        example = parsed.isoformat()
        raise ValueError(f"{text[:64]!a} has no time zone: write {example}Z for UTC, or {example}+01:00.")
    return round(parsed.timestamp() * 1000)


T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
MAX_WAIT: Final = 60_000
"""Maximum that the service waits for listeners, in milliseconds."""


def expand_nodes(words: Sequence[str]) -> list[str]:
    """The node ids of the arguments; `-` stands for the words of standard input. Raises a usage error."""
    expanded: list[str] = []
    for word in words:
        expanded += _words_of_stdin() if word == "-" else [word]
    return _parser(lambda _: node.expand_nodes(expanded))("")


def _words_of_stdin() -> list[str]:
    try:
        return read_stdin().split()
    except UnicodeDecodeError:
        raise typer.BadParameter("standard input is not UTF-8 text.") from None


def _parser(convert: Callable[[str], T]) -> Callable[[str], T]:
    """The conversion as the parser of an option: the message of a ValueError becomes a usage error."""

    def parse(text: str) -> T:
        try:
            return convert(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parse


def _parse_node(text: str) -> str:
    """One node id; an IPv6 address may be in brackets, as in a URL and in the other commands."""
    if text == "-":
        raise ValueError("this command takes one node, not standard input.")
    _refuse_option(text)
    return check_node_id(text)


def is_duration(text: str) -> bool:
    """Whether it is a duration, such as `2h`, and so is no name and no reason: an option before it lacks its value."""
    try:
        parse_duration_or_forever(text)
    except ValueError:
        return False
    return True


def _parse_text(text: str) -> str:
    if is_duration(text):
        raise ValueError(f"{text} is a duration: give it as -d {text}.")
    return text


ALL: Final = 0
"""The value of -n for all."""
LAST_ON_TERMINAL: Final = 100
"""Number of changes or records that are shown on a terminal, where nobody asks for another one."""


def _parse_last(text: str) -> int:
    if text == "all":
        return ALL
    if not (text.isascii() and text.isdecimal() and int(text[:9]) > 0):
        raise ValueError(f"{text[:64]!a} is not a number: give one, or all.")
    return int(text[:9])


def _parse_record_id(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise ValueError(f"{text[:64]!a} is not the id of a record: see -o wide.")
    return int(text)


def _parse_reason(text: str) -> str:
    _parse_text(text)
    if not text.strip() or len(check_text(text)) > MAX_CAUSE_LENGTH:
        raise ValueError(f"give 1 to {MAX_CAUSE_LENGTH:,} characters that are not all spaces.")
    return text


def _parse_wait(text: str) -> int:
    """Seconds, rounded up."""
    millis = parse_duration(text)
    if millis > MAX_WAIT:
        raise ValueError("the maximum is 60s.")
    return -(-millis // 1000)


def _complete_node(incomplete: str) -> list[str]:
    return [node_id for node_id in blocked_node_ids() if node_id.startswith(incomplete)]


def _timestamp_option(text: str, *names: str, parse: Callable[[str], int] = parse_past) -> Any:
    help_text = f"{text} 15m (ago), yesterday 18:00 (local time), or 2026-11-21T18:00:00Z."
    return typer.Option(*names, metavar="TIME", help=help_text, parser=_parser(parse))


def choice_parser(values: type[E]) -> Callable[[str], E]:
    """The parser of an option or argument with a few values; its error names them."""

    def parse(text: str) -> E:
        try:
            return values(text)
        except ValueError:
            raise ValueError(f"{text[:64]!a} is not one of {', '.join(values)}.") from None

    return _parser(parse)


def choice_completion(values: type[E]) -> Callable[[str], list[str]]:
    """Completes one of a few values."""

    def complete(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return complete


def choice_option(values: type[E], *names: str, help_text: str) -> Any:
    """An option with a few values."""
    return typer.Option(
        *names,
        metavar=f"[{'|'.join(values)}]",
        help=help_text,
        parser=choice_parser(values),
        autocompletion=choice_completion(values),
    )


def _parse_timeout(text: str) -> int:
    """Milliseconds; a number without a unit is in seconds, as for timeout(1)."""
    return parse_duration(f"{text}s" if text.isdecimal() else text)


_NODES_HELP: Final = "Node ids, also worker-[01-12] or r[1-2]n[a,b,07-09]; - reads them from standard input."
_REASON_PARSER: Final = _parser(_parse_reason)
_DURATION_PARSER: Final = _parser(parse_duration_or_forever)
_NODE_PARSER: Final = _parser(_parse_node)
_NODES: Final = typer.Argument(metavar="[NODE]...", help=_NODES_HELP, show_default=False, autocompletion=known_node_ids)
_BLOCKED_NODES: Final = typer.Argument(
    metavar="[NODE]...", help=_NODES_HELP, show_default=False, autocompletion=_complete_node
)
Nodes = Annotated[list[str] | None, _NODES]
BlockedNodes = Annotated[list[str] | None, _BLOCKED_NODES]
Selector = Annotated[
    str | None,
    typer.Option("--selector", "-l", metavar="SELECTOR", help="Nodes with these labels, as in kubectl: rack=r12."),
]
Node = Annotated[
    str, typer.Argument(metavar="NODE", help="Node id.", parser=_NODE_PARSER, autocompletion=_complete_node)
]
Reason = Annotated[
    str, typer.Option("--reason", "-r", metavar="TEXT", help="Reason, shown to everybody.", parser=_REASON_PARSER)
]
Force = Annotated[bool, typer.Option("--force", help="Bypass limits (role admin).")]
ForceReason = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="Bypass limits for this reason, which the change log keeps. [default: --reason]",
        parser=_REASON_PARSER,
    ),
]
Duration = Annotated[
    int | None,
    typer.Option(
        "--duration",
        "-d",
        metavar="DURATION",
        help="90s, 2h, 7d or forever. [default: BLOCKLIST_DEFAULT_DURATION, else that of the service]",
        parser=_DURATION_PARSER,
    ),
]
TokenDuration = Annotated[
    int | None,
    typer.Option(
        "--duration",
        "-d",
        metavar="DURATION",
        help="90d or forever. [default: forever]",
        parser=_DURATION_PARSER,
    ),
]
Wait = Annotated[
    int | None,
    typer.Option(
        metavar="DURATION",
        help="Wait until all listeners have applied the change, at most this long (maximum 60s).",
        parser=_parser(_parse_wait),
    ),
]
WaitFor = Annotated[
    AppliedBy | None,
    typer.Option(
        metavar="SHARE",
        help="With --wait: 95% of the listeners, or managers, are enough; drain asks no more of jobs without tasks.",
        parser=_parser(AppliedBy.parse),
    ),
]
Until = Annotated[
    int | None,
    typer.Option(
        metavar="TIME",
        help="End of the block: tomorrow 08:00 (local time), or 2026-11-21T18:00:00Z.",
        parser=_parser(parse_end),
    ),
]
DrainTimeout = Annotated[
    int | None,
    typer.Option(
        "--timeout",
        metavar="DURATION",
        help="How long to wait until the nodes are drained; they stay blocked. [default: 30m]",
        parser=_parser(_parse_timeout),
    ),
]
IgnoreLapsed = Annotated[
    bool, typer.Option("--ignore-lapsed", help="Take jobs that have stopped reporting (lapsed) for ended.")
]
OptionalReason = Annotated[
    str | None,
    typer.Option(
        "--reason", "-r", metavar="TEXT", help="Reason, shown to everybody. [default: Drain]", parser=_REASON_PARSER
    ),
]
Forever = Annotated[bool, typer.Option("--forever", help="Block until unblocked.")]
Evacuate = Annotated[
    bool, typer.Option("--evacuate", help="Also stop running tasks, so that they restart on other nodes.")
]
Merge = Annotated[bool, typer.Option("--merge", help="Merge with an existing block.")]
Replace = Annotated[
    bool,
    typer.Option("--replace", help="Replace your own claim, also by a shorter or weaker one; those of others stay."),
]
ReplaceEnd = Annotated[
    bool, typer.Option("--replace", help="Give your own claim this end, also an earlier one; those of others stay.")
]
ChangeFormat = Annotated[
    ChangeOutput,
    choice_option(ChangeOutput, "--output", "-o", help_text="Sentences, or one JSON document at the end."),
]
Strict = Annotated[bool, typer.Option("--strict", help="Refuse nodes that are not known.")]
AsOf = Annotated[int | None, _timestamp_option("Show the list at this time.")]
ChangesFrom = Annotated[int | None, _timestamp_option("Changes at or after this time.", "--from", "--since")]
AfterRecord = Annotated[
    int | None,
    typer.Option("--after", metavar="ID", help="Records after the one with this id.", parser=_parser(_parse_record_id)),
]
RecordsFrom = Annotated[int | None, _timestamp_option("Records at or after this time.", "--from", "--since")]
RecordsUntil = Annotated[int | None, _timestamp_option("Records before this time.", "--until", parse=parse_timestamp)]
ChangesUntil = Annotated[int | None, _timestamp_option("Changes before this time.", "--until", parse=parse_timestamp)]
_TEXT_PARSER: Final = _parser(_parse_text)
parse_token_name: Final = _TEXT_PARSER
BlockedBy = Annotated[
    str | None,
    typer.Option("--by", metavar="NAME", help="Blocks whose last change is by this author.", parser=_TEXT_PARSER),
]
BlockOwner = Annotated[
    str | None,
    typer.Option(
        "--owner",
        metavar="NAME",
        help="Blocks with a claim of this owner; a final * stands for any end.",
        parser=_TEXT_PARSER,
    ),
]
ReasonPart = Annotated[
    str | None,
    typer.Option(
        "--reason", "-r", metavar="TEXT", help="Blocks whose reason contains this, in any case.", parser=_TEXT_PARSER
    ),
]
Author = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Changes by this author.", parser=_TEXT_PARSER)
]
Last = Annotated[
    int | None,
    typer.Option(
        "-n",
        "--last",
        metavar="COUNT",
        help="Only the last COUNT, or all. [default: 100 on a terminal, else all]",
        parser=_parser(_parse_last),
    ),
]
Output = Annotated[OutputFormat, choice_option(OutputFormat, "--output", "-o", help_text="Output format.")]
NoHeaders = Annotated[bool, typer.Option("--no-headers", help="Leave out the header of a table.")]
Pending = Annotated[
    bool, typer.Option("--pending", help="Only listeners that have not applied it: they are pending, or refuse it.")
]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show it again after each change, until Ctrl-C.")]
AllOwners = Annotated[
    bool, typer.Option("--all-owners", help="Remove the claims of all owners, not only your own, and free the node.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the effect and change nothing.")]


def waited_for(wait: int | None, wait_for: AppliedBy | None) -> AppliedBy:
    """Who must have applied the change. Raises a usage error for --wait-for without --wait."""
    if wait_for is not None and wait is None:
        raise typer.BadParameter("--wait-for needs --wait: say how long, such as --wait 10s.")
    return wait_for or ALL_LISTENERS


def reason_to_force(force: bool, force_reason: str | None, reason: str | None = None) -> str | None:
    """Why limits are bypassed; None if they are not. Raises a usage error for --force without any reason."""
    if force and force_reason is None and reason is None:
        raise typer.BadParameter("--force: say why with --force-reason, which the change log keeps.")
    return force_reason or (reason if force else None)


# The nodes that a command names, by ranges or by a selector of labels (-l).


def known_nodes(client: BlocklistClient, words: Sequence[str] | None, selector: str | None) -> list[str]:
    """The named nodes, or the known ones that the selector selects, blocked or not.

    Raises a usage error unless exactly one of both is given, NotFoundError if no node is selected, UnknownNodeError for
    a label that no node has: `rak!=r12` would select every node.
    """
    if selector is None:
        return _named(words)
    _refuse_both(words)
    _refuse_empty(selector)
    known = client.known_nodes(selector=selector)
    _refuse_unknown_labels(known.warnings)
    return _checked([node.id for node in known.nodes], selector)


def blocked_nodes(client: BlocklistClient, words: Sequence[str] | None, selector: str | None) -> list[str]:
    """As known_nodes, but of the selected nodes only those that are blocked."""
    if selector is None:
        return _named(words)
    _refuse_both(words)
    _refuse_empty(selector)
    listing = client.listing(selector=selector)
    _refuse_unknown_labels(listing.warnings)
    if not listing.nodes:
        print_stderr(f"No node that {selector} selects is blocked.")
        raise typer.Exit(0)
    return _checked([entry.node.id for entry in listing.nodes], selector)


def _named(words: Sequence[str] | None) -> list[str]:
    if not words:
        raise typer.BadParameter("name at least one node, or select nodes with -l.")
    typed = [word for word in words if word != "-"]
    for word in [*typed, *(expand_nodes(typed) if typed else ())]:
        _refuse_option(word)
    return expand_nodes(words)


def _refuse_option(word: str) -> None:
    """A duration, a time or an option is no node. One with such a name can be read from standard input."""
    if is_duration(word) or _LIKE_DURATION.fullmatch(word):
        raise typer.BadParameter(f"{word} looks like a duration: give it as -d {word}.")
    if _DAY.fullmatch(word) or _LIKE_DATE.match(word):
        raise typer.BadParameter(f"{word} looks like a time: give it with an option, such as --until {word}.")
    if word.startswith("-") and word != "-":
        raise typer.BadParameter(f"{word[:64]} looks like an option. If it is the name of a node, pass it on stdin: -")


def _refuse_both(words: Sequence[str] | None) -> None:
    if words:
        raise typer.BadParameter("give either node names or -l, not both.")


def _refuse_empty(selector: str) -> None:
    """An unset variable of a script must not select every node."""
    if not selector.strip():
        raise typer.BadParameter("The selector is empty, which would select every node.", param_hint="-l")


def _refuse_unknown_labels(warnings: Sequence[str]) -> None:
    if warnings:
        raise UnknownNodeError(" ".join(warnings))


def _checked(node_ids: list[str], selector: str) -> list[str]:
    if not node_ids:
        raise NotFoundError(f"No node has the labels {selector}.")
    if len(node_ids) > MAX_NODES:
        raise typer.BadParameter(f"-l: {len(node_ids):,} nodes are selected; the maximum is {MAX_NODES:,}.")
    return node_ids
