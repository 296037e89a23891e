"""Options and arguments that several commands take, and how they are read."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, TypeVar

import typer

from blocklist.cli import times
from blocklist.cli.output import OutputFormat
from blocklist.model import durations
from blocklist.model import node_ranges as ranges
from blocklist.model.changes import ChangeType
from blocklist.model.errors import InvalidError
from blocklist.model.node import MAX_CAUSE_LENGTH, PERMANENT, check_node_id, check_text

T = TypeVar("T")
MAX_WAIT: Final = 60_000
"""Milliseconds that the service waits for listeners at most."""
DEFAULT_DURATION: Final = "4h"


def _parser(convert: Callable[[str], T]) -> Callable[[str], T]:
    """The conversion as an option's parser: its sentence becomes the usage error."""

    def parse(text: str) -> T:
        try:
            return convert(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parse


def _parse_reason(text: str) -> str:
    if not 1 <= len(check_text(text)) <= MAX_CAUSE_LENGTH:
        raise ValueError(f"give 1 to {MAX_CAUSE_LENGTH:,} characters.")
    return text


def _parse_duration_or_forever(text: str) -> int:
    return PERMANENT if text == durations.FOREVER else durations.parse_duration(text)


def _parse_wait(text: str) -> int:
    millis = durations.parse_duration(text)
    if millis > MAX_WAIT:
        raise ValueError("the service waits at most 60s.")
    return -(-millis // 1000)


def _complete_node(incomplete: str) -> list[str]:
    """Names of blocked nodes; none when the service is away or slow, and never a word about that."""
    from blocklist.cli.service import blocked_node_ids  # noqa: PLC0415 - only for completion

    return [name for name in blocked_node_ids() if name.startswith(incomplete)]


def _timestamp_option(text: str, *names: str) -> Any:
    sentence = f"{text} A time such as 2026-11-21T18:00:00Z."
    return typer.Option(*names, metavar="RFC3339", help=sentence, parser=_parser(times.parse_timestamp))


_NODES_HELP: Final = "Nodes, also as worker-[01-12], r[1-2]n[a,b,07-09]; - reads them from standard input."
Nodes = Annotated[list[str], typer.Argument(metavar="NODE", help=_NODES_HELP)]
BlockedNodes = Annotated[list[str], typer.Argument(metavar="NODE", help=_NODES_HELP, autocompletion=_complete_node)]
Node = Annotated[
    str,
    typer.Argument(metavar="NODE", help="A node's id.", parser=_parser(check_node_id), autocompletion=_complete_node),
]
OptionalNode = Annotated[
    str | None, typer.Argument(metavar="[NODE]", help="Of this node alone.", parser=_parser(check_node_id))
]
Reason = Annotated[
    str,
    typer.Option(
        "--reason", "-r", metavar="TEXT", help="Why: the next one on call reads it.", parser=_parser(_parse_reason)
    ),
]
Force = Annotated[
    str | None,
    typer.Option(
        metavar="REASON", help="Go beyond a limit, as an admin; the log keeps why.", parser=_parser(_parse_reason)
    ),
]
Duration = Annotated[
    int | None,
    typer.Option(
        "--duration",
        "-d",
        metavar="DURATION",
        help=f"For so long: 90s, 2h, 7d, forever. [default: BLOCKLIST_DEFAULT_DURATION, else {DEFAULT_DURATION}]",
        parser=_parser(_parse_duration_or_forever),
    ),
]
TokenDuration = Annotated[
    int | None,
    typer.Option(
        "--duration",
        "-d",
        metavar="DURATION",
        help="For so long: 90d, forever.",
        parser=_parser(_parse_duration_or_forever),
    ),
]
Wait = Annotated[
    int | None,
    typer.Option(
        metavar="DURATION",
        help="Wait until all listeners have applied it, at most so long (60s).",
        parser=_parser(_parse_wait),
    ),
]
Until = Annotated[int | None, _timestamp_option("Until then.")]
Forever = Annotated[bool, typer.Option("--forever", help="Until somebody unblocks it.")]
Evacuate = Annotated[bool, typer.Option("--evacuate", help="Tasks that run there are to restart elsewhere, too.")]
Merge = Annotated[bool, typer.Option("--merge", help="Join with a block that is there.")]
AsOf = Annotated[int | None, _timestamp_option("The list as it was then.")]
ChangesFrom = Annotated[int | None, _timestamp_option("Changes from then on.", "--from")]
ChangesUntil = Annotated[int | None, _timestamp_option("Changes before then.", "--until")]
Author = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Changes by this author.")]
Types = Annotated[list[ChangeType] | None, typer.Option("--type", help="Changes of this kind; may be given again.")]
Output = Annotated[OutputFormat, typer.Option("--output", "-o", help="How to show it.")]
NoHeaders = Annotated[bool, typer.Option("--no-headers", help="A table without its first line.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show it again whenever it changes, until Ctrl-C.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what it would do, and do nothing.")]


def expand_nodes(words: Sequence[str]) -> list[str]:
    """The nodes that the arguments name; `-` stands for the words of standard input."""
    expanded: list[str] = []
    for word in words:
        expanded += sys.stdin.read().split() if word == "-" else [word]
    return _parser(lambda _: ranges.expand_nodes(expanded))("")


def default_duration() -> int:
    """Milliseconds that a block lasts unless told, PERMANENT for ever."""
    text = os.environ.get("BLOCKLIST_DEFAULT_DURATION") or DEFAULT_DURATION
    try:
        return _parse_duration_or_forever(text)
    except ValueError as error:
        raise InvalidError(f"BLOCKLIST_DEFAULT_DURATION: {error}") from None
