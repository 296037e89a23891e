"""Output: tables, JSON, JSON lines and names on stdout, messages on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Generic, NoReturn, TypeVar

from blocklist.cli import table

T = TypeVar("T")
Json = dict[str, Any]
Columns = Mapping[str, Callable[[T], str]]
EXIT_BROKEN_PIPE: Final = 141
"""The exit code if stdout was closed: a shell's code for SIGPIPE."""
EXIT_UNWRITABLE: Final = 3
"""The exit code if stdout cannot be written. Not 1: a script would take that for the answer of `is-blocked`."""


class OutputFormat(StrEnum):
    """The values of -o."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    JSONL = "jsonl"
    NAME = "name"


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceView(Generic[T]):
    """How the items of one kind are shown: table columns (with more for -o wide), JSON and name.

    `last_columns` come last in both tables: they may contain spaces. `json_document` wraps the items as the service
    does in its response. `empty_message` replaces an empty table.
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
    """The values of -o and --no-headers."""

    format: OutputFormat
    headers: bool = True

    @property
    def is_table(self) -> bool:
        return self.format in (OutputFormat.TABLE, OutputFormat.WIDE)


def print_items(view: ResourceView[T], items: Sequence[T], options: OutputOptions) -> None:
    """Print the items to stdout; instead of an empty table, a message to stderr."""
    if options.format is OutputFormat.JSON:
        print_document(view.json_document([view.json(item) for item in items]))
    elif options.format is OutputFormat.JSONL:
        print_lines(*(format_json(view.json(item)) for item in items))
    elif options.format is OutputFormat.NAME:
        print_lines(*dict.fromkeys(table.escape_unprintable(view.name(item)) for item in items))
    elif items:
        print_lines(*RowFormatter(view, options).lines(items))
    else:
        print_stderr(view.empty_message)


class RowFormatter(Generic[T]):
    """Formats items as rows of a table; `lines` can be called again with more items."""

    def __init__(self, view: ResourceView[T], options: OutputOptions) -> None:
        columns = {
            **view.columns,
            **(view.wide_columns if options.format is OutputFormat.WIDE else {}),
            **view.last_columns,
        }
        self._cells = list(columns.values())
        self._table = table.Table(list(columns), show_header=options.headers, colour=use_colour())

    def lines(self, items: Sequence[T]) -> list[str]:
        """The lines of these items, with the header before the first ones."""
        return self._table.lines([[cell(item) for cell in self._cells] for item in items])


def format_json(value: object, *, indent: int | None = None) -> str:
    """JSON in one line, or indented."""
    import json  # noqa: PLC0415 - not for --version and --help

    return json.dumps(value, ensure_ascii=False, indent=indent)


def print_document(document: Json) -> None:
    """Print one JSON value to stdout, indented."""
    print_lines(format_json(document, indent=2))


def print_lines(*lines: str) -> None:
    """Print lines to stdout and flush: a program may be waiting for them."""
    _write(lines)


def print_message(text: str) -> None:
    """Print a message to stdout, with control characters escaped."""
    _write([table.escape_unprintable(text)])


def print_stderr(*texts: str) -> None:
    """Print messages to stderr, with control characters escaped."""
    # If stderr cannot be written either, the exit code is all that is left.
    with suppress(OSError):
        sys.stderr.write("".join(f"{table.escape_unprintable(text)}\n" for text in texts))
        sys.stderr.flush()


def use_colour() -> bool:
    """Whether stdout is a terminal with colours, and NO_COLOR is not set (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def clear_screen() -> None:
    """Clear the terminal before the same view is printed again; if stdout is no terminal, print an empty line."""
    _write(["\x1b[2J\x1b[3J\x1b[H"] if sys.stdout.isatty() else [""])


def flush() -> None:
    """Flush stdout. Raises SystemExit if that fails: without a message if it was closed."""
    _write([])


def exit_unwritable(error: OSError) -> NoReturn:
    """Report that stdout cannot be written, for example because the disk is full. Raises SystemExit."""
    _discard_stdout()
    print_stderr(f"Error: the output cannot be written: {error.strerror or error}.")
    raise SystemExit(EXIT_UNWRITABLE)


def _write(lines: Iterable[str]) -> None:
    try:
        for line in lines:
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
        raise SystemExit(EXIT_BROKEN_PIPE) from None
    except OSError as error:
        exit_unwritable(error)


def _discard_stdout() -> None:
    # Python flushes stdout again at exit, and would print an error.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
