"""Output: tables, JSON, JSON lines and names on stdout, messages on stderr."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Generic, NoReturn, TypeVar

_SEPARATOR: Final = "  "
_UNPRINTABLE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_BOLD: Final = "1"
_COLOURS: Final = {"evacuate": "31", "lapsed": "31", "mark": "33", "no": "33", "yes": "32", "live": "32"}


class Table:
    """A table to which rows can be added. `colour` is for terminals only.

    An empty cell is shown as a dash, so that each line has one word for each column; only the last may contain spaces.
    """

    def __init__(self, headers: Sequence[str], *, show_header: bool, colour: bool) -> None:
        self._pending_header = [list(headers)] if show_header else []
        self._widths = [_width(name) for name in headers]
        self._colour = colour

    def lines(self, rows: Sequence[Sequence[str]]) -> list[str]:
        """The lines of these rows, with the header before the first ones. Columns widen, but never narrow."""
        head, self._pending_header = self._pending_header, []
        cells = [[escape_unprintable(cell) or "-" for cell in row] for row in rows]
        for row in (*head, *cells):
            self._widths = [max(width, _width(cell)) for width, cell in zip(self._widths, row, strict=True)]
        return [_coloured(_BOLD, self._line(row)) if self._colour else self._line(row) for row in head] + [
            self._line(row, coloured=self._colour) for row in cells
        ]

    def _line(self, row: Sequence[str], *, coloured: bool = False) -> str:
        shown = [_coloured(_COLOURS[cell], cell) if coloured and cell in _COLOURS else cell for cell in row]
        gaps = [" " * (width - _width(cell)) + _SEPARATOR for cell, width in zip(row[:-1], self._widths, strict=False)]
        return "".join(cell + gap for cell, gap in zip(shown, [*gaps, ""], strict=True))


def escape_unprintable(text: str) -> str:
    r"""The text with control and invisible characters escaped as in Python: `\x1b` for an escape."""
    if text.isprintable():
        return text
    return "".join(_escape(char) if unicodedata.category(char) in _UNPRINTABLE else char for char in text)


def _coloured(colour: str, text: str) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m"


def _width(cell: str) -> int:
    """The number of terminal columns."""
    if cell.isascii():
        return len(cell)
    from rich.cells import cell_len  # noqa: PLC0415 - rarely needed

    return cell_len(cell)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode()


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
        print_lines(*dict.fromkeys(escape_unprintable(view.name(item)) for item in items))
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
        self._table = Table(list(columns), show_header=options.headers, colour=use_colour())

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
    _write([escape_unprintable(text)])


def print_stderr(*texts: str) -> None:
    """Print messages to stderr, with control characters escaped."""
    # If stderr cannot be written either, the exit code is all that is left.
    with suppress(OSError):
        sys.stderr.write("".join(f"{escape_unprintable(text)}\n" for text in texts))
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
