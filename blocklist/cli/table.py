"""Tables of plain text: two spaces between columns, nothing cut off, the same on a terminal and in a pipe."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Final

_GAP: Final = "  "
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_BOLD: Final = "1"
_COLOURS: Final = {"evacuate": "31", "lapsed": "31", "mark": "33", "no": "33", "yes": "32", "live": "32"}


class Table:
    """A table that may grow. `head`: begin with the headers; `colour`: for terminals only.

    An empty cell is a dash, so that every line has as many words as there are columns; the last may hold spaces.
    """

    def __init__(self, headers: Sequence[str], *, head: bool, colour: bool) -> None:
        self._head = [list(headers)] if head else []
        self._widths = [_width(name) for name in headers]
        self._colour = colour

    def lines(self, rows: Sequence[Sequence[str]]) -> list[str]:
        """The lines of these rows, below the headers if they are the first. Columns become wider, never narrower."""
        head, self._head = self._head, []
        cells = [[visible(cell) or "-" for cell in row] for row in rows]
        for row in (*head, *cells):
            self._widths = [max(width, _width(cell)) for width, cell in zip(self._widths, row, strict=True)]
        return [_painted(_BOLD, self._line(row)) if self._colour else self._line(row) for row in head] + [
            self._line(row, coloured=self._colour) for row in cells
        ]

    def _line(self, row: Sequence[str], *, coloured: bool = False) -> str:
        shown = [_painted(_COLOURS[cell], cell) if coloured and cell in _COLOURS else cell for cell in row]
        gaps = [" " * (width - _width(cell)) + _GAP for cell, width in zip(row[:-1], self._widths, strict=False)]
        return "".join(cell + gap for cell, gap in zip(shown, [*gaps, ""], strict=True))


def visible(text: str) -> str:
    r"""The text with what a terminal would not show or would obey, as Python writes it: `\x1b` for an escape."""
    if text.isprintable():
        return text
    return "".join(_escaped(sign) if unicodedata.category(sign) in _UNSEEN else sign for sign in text)


def _painted(colour: str, text: str) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m"


def _width(cell: str) -> int:
    """Columns that a terminal needs for it."""
    if cell.isascii():
        return len(cell)
    from rich.cells import cell_len  # noqa: PLC0415 - rarely needed

    return cell_len(cell)


def _escaped(sign: str) -> str:
    return sign.encode("unicode_escape").decode()
