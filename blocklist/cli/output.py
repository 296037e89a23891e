"""What the command says: a table, JSON, JSON lines or names on stdout; sentences for people on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from blocklist.cli import table

T = TypeVar("T")
Json = dict[str, Any]
Columns = Mapping[str, Callable[[T], str]]
CLOSED: Final = 141
"""The exit code when nobody reads stdout any more: as a shell has it for SIGPIPE."""


class Form(StrEnum):
    """What -o takes."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    JSONL = "jsonl"
    NAME = "name"


@dataclass(frozen=True, kw_only=True, slots=True)
class Noun(Generic[T]):
    """How things of a kind are shown: the columns of their table, those that -o wide adds, JSON and name.

    `last` is the column that comes last in both, for it may hold spaces. `document` makes the whole of the JSON of
    all of them, as the service answers it.
    """

    columns: Columns[T]
    json: Callable[[T], Json]
    name: Callable[[T], str]
    document: Callable[[Sequence[Json]], Json]
    wide: Columns[T] = field(default_factory=dict)
    last: Columns[T] = field(default_factory=dict)
    none: str


@dataclass(frozen=True, slots=True)
class Look:
    """How the user wants to see it."""

    form: Form
    headers: bool = True

    @property
    def tabular(self) -> bool:
        return self.form in (Form.TABLE, Form.WIDE)


def show(noun: Noun[T], things: Sequence[T], look: Look) -> None:
    """Write them to stdout. Where people read and there are none, a sentence says so on stderr."""
    if look.form is Form.JSON:
        say(dumped(noun.document([noun.json(thing) for thing in things]), indent=2))
    elif look.form is Form.JSONL:
        say(*(dumped(noun.json(thing)) for thing in things))
    elif look.form is Form.NAME:
        say(*dict.fromkeys(table.visible(noun.name(thing)) for thing in things))
    elif things:
        say(*Rows(noun, look).lines(things))
    else:
        note(noun.none)


class Rows(Generic[T]):
    """Things as rows of a table that may grow."""

    def __init__(self, noun: Noun[T], look: Look) -> None:
        columns = {**noun.columns, **(noun.wide if look.form is Form.WIDE else {}), **noun.last}
        self._cells = list(columns.values())
        self._table = table.Table(list(columns), head=look.headers, colour=colours())

    def lines(self, things: Sequence[T]) -> list[str]:
        """The lines of these things, below the headers if they are the first."""
        return self._table.lines([[cell(thing) for cell in self._cells] for thing in things])


def dumped(value: object, *, indent: int | None = None) -> str:
    """JSON, in one line unless indented."""
    import json  # noqa: PLC0415 - not for --version and --help

    return json.dumps(value, ensure_ascii=False, indent=indent)


def say(*lines: str) -> None:
    """Write lines to stdout, at once: whoever reads may be a program that waits for them."""
    _write(lines)


def sentence(text: str) -> None:
    """Write a line for people to stdout."""
    _write([table.visible(text)])


def note(*texts: str) -> None:
    """Write lines for people to stderr."""
    sys.stderr.write("".join(f"{table.visible(text)}\n" for text in texts))
    sys.stderr.flush()


def colours() -> bool:
    """Whether stdout is a terminal that shows colours, and its owner wants them (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def clear() -> None:
    """Before a view is drawn again: an empty terminal; elsewhere an empty line between the two."""
    _write(["\x1b[2J\x1b[3J\x1b[H"] if sys.stdout.isatty() else [""])


def flush() -> None:
    """Write out what is still held. Raises SystemExit, silently, when nobody reads it."""
    _write([])


def _write(lines: Iterable[str]) -> None:
    try:
        for line in lines:
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would try once more on its way out, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(CLOSED) from None
