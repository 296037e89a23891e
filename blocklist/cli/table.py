"""Plain-text tables: two spaces between columns, cells never truncated, the same on a terminal and in a pipe."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Final

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
