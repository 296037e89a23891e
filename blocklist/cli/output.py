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
EXIT_BROKEN_PIPE: Final = 141
"""The exit code when nobody reads stdout any more: as a shell has it for SIGPIPE."""


class OutputFormat(StrEnum):
    """What -o takes."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    JSONL = "jsonl"
    NAME = "name"


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceView(Generic[T]):
    """How things of a kind are shown: the columns of their table, those that -o wide adds, JSON and name.

    `last` is the column that comes last in both, for it may hold spaces. `document` makes the whole of the JSON of
    all of them, as the service answers it.
    """

    columns: Columns[T]
    json: Callable[[T], Json]
    name: Callable[[T], str]
    json_document: Callable[[Sequence[Json]], Json]
    wide_columns: Columns[T] = field(default_factory=dict)
    last_columns: Columns[T] = field(default_factory=dict)
    empty_message: str


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """How the user wants to see it."""

    format: OutputFormat
    headers: bool = True

    @property
    def is_table(self) -> bool:
        return self.format in (OutputFormat.TABLE, OutputFormat.WIDE)


def print_items(view: ResourceView[T], items: Sequence[T], options: OutputOptions) -> None:
    """Write them to stdout. Where people read and there are none, a sentence says so on stderr."""
    if options.format is OutputFormat.JSON:
        print_lines(format_json(view.json_document([view.json(thing) for thing in items]), indent=2))
    elif options.format is OutputFormat.JSONL:
        print_lines(*(format_json(view.json(thing)) for thing in items))
    elif options.format is OutputFormat.NAME:
        print_lines(*dict.fromkeys(table.escape_unprintable(view.name(thing)) for thing in items))
    elif items:
        print_lines(*RowFormatter(view, options).lines(items))
    else:
        print_stderr(view.empty_message)


class RowFormatter(Generic[T]):
    """Things as rows of a table that may grow."""

    def __init__(self, view: ResourceView[T], options: OutputOptions) -> None:
        columns = {
            **view.columns,
            **(view.wide_columns if options.format is OutputFormat.WIDE else {}),
            **view.last_columns,
        }
        self._cells = list(columns.values())
        self._table = table.Table(list(columns), show_header=options.headers, colour=use_colour())

    def lines(self, items: Sequence[T]) -> list[str]:
        """The lines of these things, below the headers if they are the first."""
        return self._table.lines([[cell(thing) for cell in self._cells] for thing in items])


def format_json(value: object, *, indent: int | None = None) -> str:
    """JSON, in one line unless indented."""
    import json  # noqa: PLC0415 - not for --version and --help

    return json.dumps(value, ensure_ascii=False, indent=indent)


def print_lines(*lines: str) -> None:
    """Write lines to stdout, at once: whoever reads may be a program that waits for them."""
    _write(lines)


def print_message(text: str) -> None:
    """Write a line for people to stdout."""
    _write([table.escape_unprintable(text)])


def print_stderr(*texts: str) -> None:
    """Write lines for people to stderr."""
    sys.stderr.write("".join(f"{table.escape_unprintable(text)}\n" for text in texts))
    sys.stderr.flush()


def use_colour() -> bool:
    """Whether stdout is a terminal that shows colours, and its owner wants them (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def clear_screen() -> None:
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
        raise SystemExit(EXIT_BROKEN_PIPE) from None
