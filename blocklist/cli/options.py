"""Options and arguments that several commands take, and how they are read."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, TypeVar

import typer

from blocklist.cli import durations, ranges, times
from blocklist.cli.output import Form
from blocklist.model.changes import ChangeType
from blocklist.model.errors import InvalidError
from blocklist.model.node import MAX_CAUSE, PERMANENT, check_node_id, check_text

T = TypeVar("T")
LONGEST_WAIT: Final = 60_000
"""Milliseconds that the service waits for listeners at most."""
DEFAULT_DURATION: Final = "4h"


def _read(convert: Callable[[str], T]) -> Callable[[str], T]:
    """The conversion as an option's parser: its sentence becomes the usage error."""

    def read(text: str) -> T:
        try:
            return convert(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return read


def _reason(text: str) -> str:
    if not 1 <= len(check_text(text)) <= MAX_CAUSE:
        raise ValueError(f"give 1 to {MAX_CAUSE:,} characters.")
    return text


def _length(text: str) -> int:
    return PERMANENT if text == durations.FOREVER else durations.duration(text)


def _wait(text: str) -> int:
    millis = durations.duration(text)
    if millis > LONGEST_WAIT:
        raise ValueError("the service waits at most 60s.")
    return -(-millis // 1000)


def _complete(incomplete: str) -> list[str]:
    """Names of blocked nodes; none when the service is away or slow, and never a word about that."""
    from blocklist.cli.service import blocked_names  # noqa: PLC0415 - only for completion

    return [name for name in blocked_names() if name.startswith(incomplete)]


def _moment(meaning: str, *names: str) -> Any:
    sentence = f"{meaning} A time such as 2026-11-21T18:00:00Z."
    return typer.Option(*names, metavar="RFC3339", help=sentence, parser=_read(times.moment))


_NODES: Final = "Nodes, also as worker-[01-12], r[1-2]n[a,b,07-09]; - reads them from standard input."
Nodes = Annotated[list[str], typer.Argument(metavar="NODE", help=_NODES)]
BlockedNodes = Annotated[list[str], typer.Argument(metavar="NODE", help=_NODES, autocompletion=_complete)]
Node = Annotated[
    str, typer.Argument(metavar="NODE", help="A node's id.", parser=_read(check_node_id), autocompletion=_complete)
]
AnyNode = Annotated[
    str | None, typer.Argument(metavar="[NODE]", help="Of this node alone.", parser=_read(check_node_id))
]
Reason = Annotated[
    str,
    typer.Option("--reason", "-r", metavar="TEXT", help="Why: the next one on call reads it.", parser=_read(_reason)),
]
Force = Annotated[
    str | None,
    typer.Option(metavar="REASON", help="Go beyond a limit, as an admin; the log keeps why.", parser=_read(_reason)),
]
Length = Annotated[
    int | None,
    typer.Option(
        "--duration",
        "-d",
        metavar="DURATION",
        help=f"For so long: 90s, 2h, 7d, forever. [default: BLOCKLIST_DEFAULT_DURATION, else {DEFAULT_DURATION}]",
        parser=_read(_length),
    ),
]
TokenLength = Annotated[
    int | None,
    typer.Option("--duration", "-d", metavar="DURATION", help="For so long: 90d, forever.", parser=_read(_length)),
]
Wait = Annotated[
    int | None,
    typer.Option(
        metavar="DURATION", help="Wait until all listeners have applied it, at most so long (60s).", parser=_read(_wait)
    ),
]
Until = Annotated[int | None, _moment("Until then.")]
Forever = Annotated[bool, typer.Option("--forever", help="Until somebody unblocks it.")]
Evacuate = Annotated[bool, typer.Option("--evacuate", help="Tasks that run there are to restart elsewhere, too.")]
Merge = Annotated[bool, typer.Option("--merge", help="Join with a block that is there.")]
At = Annotated[int | None, _moment("The list as it was then.")]
Begin = Annotated[int | None, _moment("Changes from then on.", "--from")]
End = Annotated[int | None, _moment("Changes before then.", "--until")]
By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Changes by this author.")]
Types = Annotated[list[ChangeType] | None, typer.Option("--type", help="Changes of this kind; may be given again.")]
Output = Annotated[Form, typer.Option("--output", "-o", help="How to show it.")]
NoHeaders = Annotated[bool, typer.Option("--no-headers", help="A table without its first line.")]
Watching = Annotated[bool, typer.Option("--watch", "-w", help="Show it again whenever it changes, until Ctrl-C.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what it would do, and do nothing.")]


def chosen(words: Sequence[str]) -> list[str]:
    """The nodes that the arguments name; `-` stands for the words of standard input."""
    given: list[str] = []
    for word in words:
        given += sys.stdin.read().split() if word == "-" else [word]
    return _read(lambda _: ranges.nodes(given))("")


def default_length() -> int:
    """Milliseconds that a block lasts unless told, PERMANENT for ever."""
    text = os.environ.get("BLOCKLIST_DEFAULT_DURATION") or DEFAULT_DURATION
    try:
        return _length(text)
    except ValueError as error:
        raise InvalidError(f"BLOCKLIST_DEFAULT_DURATION: {error}") from None
