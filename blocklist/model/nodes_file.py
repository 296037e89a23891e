"""The file of nodes: CSV with the header `id,names,addresses,labels`. Pure.

Several names, addresses or labels `key=value` are separated by spaces or `;`. Empty lines, and lines that begin with
`#`, are skipped. Columns may be in any order; `id` is required.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from typing import Final

from blocklist.model.errors import InvalidError
from blocklist.model.host_matching import normalize_name
from blocklist.model.reported_node import ReportedNode, make_reported_node

MAX_NODES: Final = 100_000
"""Maximum number of nodes in the file."""
MAX_FAULTS: Final = 10
"""Maximum number of faults that an error names."""
COLUMNS: Final = ("id", "names", "addresses", "labels")
_SEPARATOR: Final = re.compile(r"[\s;]+")


class _FaultError(Exception):
    """What is wrong with the value of a column."""

    def __init__(self, column: str, message: str) -> None:
        super().__init__(message)
        self.column = column


def parse_nodes_file(text: str) -> list[ReportedNode]:
    """The nodes in the file. Raises InvalidError with line and column of each fault, both counted from 1."""
    rows = _rows(text.removeprefix("\ufeff"))
    number, header = next(rows, (1, []))
    columns = [name.strip().lower() for name in header]
    if "id" not in columns or len(set(columns)) < len(columns) or not set(columns) <= set(COLUMNS):
        raise InvalidError(f"line {number}: the header must be {','.join(COLUMNS)}, without others; id is required.")
    nodes: dict[str, tuple[int, ReportedNode]] = {}
    faults: list[str] = []
    for number, row in rows:
        if len(faults) >= MAX_FAULTS or len(nodes) > MAX_NODES:
            break
        try:
            node = _node(columns, row)
        except _FaultError as fault:
            faults.append(_fault_line(number, columns, fault))
            continue
        earlier, _ = nodes.setdefault(normalize_name(node.id), (number, node))
        if earlier != number:
            faults.append(_fault_line(number, columns, _FaultError("id", f"{node.id} is also in line {earlier}.")))
    if len(nodes) > MAX_NODES:
        faults.append(f"there are more than {MAX_NODES:,} nodes.")
    if faults:
        raise InvalidError(faults[0], faults)
    return [node for _, node in nodes.values()]


def _fault_line(number: int, columns: Sequence[str], fault: _FaultError) -> str:
    return f"line {number}, column {columns.index(fault.column) + 1} ({fault.column}): {fault}"


def _rows(text: str) -> Iterator[tuple[int, Sequence[str]]]:
    """The rows that are not empty and no comments, with the numbers of their lines."""
    reader = csv.reader(text.splitlines(), strict=True)
    try:
        for row in reader:
            if any(row) and not row[0].lstrip().startswith("#"):
                yield reader.line_num, row
    except csv.Error as error:
        raise InvalidError(f"line {reader.line_num}: {error}.") from None


def _node(columns: Sequence[str], row: Sequence[str]) -> ReportedNode:
    if len(row) > len(columns):
        raise _FaultError(columns[-1], f"there are {len(row)} values, but {len(columns)} columns.")
    values = dict(zip(columns, [value.strip() for value in row], strict=False))
    node_id = values.get("id", "")
    names, addresses = _split(values.get("names", "")), _split(values.get("addresses", ""))
    labels = _labels(_split(values.get("labels", "")))
    try:
        return make_reported_node(node_id, names, addresses, labels)
    except InvalidError as error:
        raise _FaultError(_faulty_column(node_id, names, addresses), error.detail) from None


def _faulty_column(node_id: str, names: Sequence[str], addresses: Sequence[str]) -> str:
    """The first column that is not valid; the others are valid up to the labels."""
    for column, given in (("id", ([], [])), ("names", (names, [])), ("addresses", (names, addresses))):
        try:
            make_reported_node(node_id, *given)
        except InvalidError:
            return column
    return "labels"


def _labels(texts: Sequence[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise _FaultError("labels", f"write {text[:80]!a} as key=value.")
        if key in labels:
            raise _FaultError("labels", f"the label {key[:80]!a} is given twice.")
        labels[key] = value
    return labels


def _split(text: str) -> list[str]:
    return [part for part in _SEPARATOR.split(text) if part]
