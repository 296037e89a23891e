"""Reads rows into values. SQLite stores any value in any column, and an operator may edit a row by hand."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any, Final, TypeVar

import structlog
from sqlalchemy import Row, Table
from sqlalchemy.sql.schema import Column

from app.store.tables import blocked_nodes, changes, listeners, log_base, sessions, tokens
from blocklist.model.changes import ChangeType, Source
from blocklist.model.errors import InvalidError, UnavailableError
from blocklist.model.listener import ListenerRole
from blocklist.model.node import BlockAction
from blocklist.model.roles import Role

log = structlog.get_logger(__name__)
T = TypeVar("T")

_CHOICES: Final[Mapping[Column[Any], Container[object]]] = {
    blocked_nodes.c.action: BlockAction.__members__,
    log_base.c.action: BlockAction.__members__,
    changes.c.action: BlockAction.__members__,
    changes.c.type: set(ChangeType),
    changes.c.source: set(Source),
    listeners.c.role: set(ListenerRole),
    tokens.c.role: set(Role),
    sessions.c.role: set(Role),
}


class UnreadableRowError(UnavailableError):
    """A row has a value that cannot be read. The message names table, row and column, and says what to do."""


def read_row(table: Table, row: Row[Any], make: Callable[[Row[Any]], T]) -> T:
    """What `make` makes of a row with the columns of `table`. Raises UnreadableRowError."""
    if not all(map(isinstance, row, _types(table))):
        raise UnreadableRowError(_describe(table, row))
    try:
        return make(row)
    except (KeyError, ValueError, TypeError) as error:
        raise UnreadableRowError(_describe(table, row, error)) from error


def read_rows(table: Table, rows: Iterable[Row[Any]], make: Callable[[Row[Any]], T]) -> list[T]:
    """The same for rows. Raises UnreadableRowError at the first that cannot be read."""
    return [read_row(table, row, make) for row in rows]


def readable_rows(table: Table, rows: Iterable[Row[Any]], make: Callable[[Row[Any]], T]) -> Iterator[T]:
    """The same for those rows that can be read; each of the others is logged once."""
    for row in rows:
        try:
            yield read_row(table, row, make)
        except UnreadableRowError as error:
            log_once(error.detail)


@lru_cache(1000)
def log_once(detail: str) -> None:
    """Log a row that is skipped, not each time that it is read."""
    log.error("a row of the database is skipped", reason=detail)


def missing_row(table: Table) -> UnreadableRowError:
    """The error for a table that has lost its row."""
    return UnreadableRowError(f"The table {table.name} of the database lacks a row: restore a backup.")


@cache
def _types(table: Table) -> tuple[tuple[type, ...], ...]:
    return tuple(_types_of(column) for column in table.c)


def _types_of(column: Column[Any]) -> tuple[type, ...]:
    kind = column.type.python_type
    return (kind, type(None)) if column.nullable else (kind,)


def _describe(table: Table, row: Row[Any], error: Exception | None = None) -> str:
    values = dict(zip(table.c.keys(), row, strict=True))
    key = ", ".join(f"{column.name} {values[column.name]!r}" for column in table.primary_key)
    wrong = next((column for column in table.c if not _is_valid(column, values[column.name])), None)
    where = f" in column {wrong.name}" if wrong is not None else ""
    why = f" ({error.detail.rstrip('.')})" if isinstance(error, InvalidError) and wrong is None else ""
    return (
        f"The table {table.name} of the database has a row ({key}) with an invalid value{where}{why}: correct the"
        " value, or delete the row, or restore a backup."
    )


def _is_valid(column: Column[Any], value: object) -> bool:
    choices = _CHOICES.get(column)
    return isinstance(value, _types_of(column)) and (value is None or choices is None or value in choices)
