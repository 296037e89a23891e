"""SQL on the reports of listeners, part by part: replicas share them through the database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import ARRAY, BigInteger, ColumnElement, FromClause, String, Text, bindparam, delete, func, select
from sqlalchemy.engine import Connection
from sqlalchemy.types import TypeEngine

from app.store.queries import current_version
from app.store.tables import listeners, reports

REGISTRATION: Final[Mapping[str, TypeEngine[Any]]] = {
    "listener_id": String(),
    "of_session": String(),
    "registered_at": BigInteger(),
}
_PART: Final[Mapping[str, TypeEngine[Any]]] = {**REGISTRATION, "part": String(), "at": BigInteger(), "text": Text()}


def of_registration(given: Callable[[str], Any]) -> tuple[ColumnElement[bool], ...]:
    """Selects a listener if it still has the given registration, and its lease has not expired."""
    return (
        listeners.c.id == given("listener_id"),
        listeners.c.session == given("of_session"),
        listeners.c.since_ms == given("registered_at"),
        listeners.c.lapsed_ms.is_(None),
    )


def given_rows(rows: Sequence[Mapping[str, Any]], types: Mapping[str, TypeEngine[Any]]) -> FromClause:
    """Rows as a table of one statement, for PostgreSQL.

    For several statements the driver uses a pipeline. A replica that stalls within one holds its locks for as long:
    `idle_in_transaction_session_timeout` does not end its session.
    """
    columns = [bindparam(f"given_{name}", [row[name] for row in rows], ARRAY(types[name])) for name in types]
    return func.unnest(*columns).table_valued(*types).render_derived(name="given")


class ReportPart(NamedTuple):
    """A part of a report as JSON, by a registration of a listener; both times are Unix ms."""

    listener: str
    session: str
    registered_at: int
    part: str
    reported_at: int
    text: str


def since_version(connection: Connection, version: int) -> list[ReportPart]:
    """The parts written after a version."""
    columns = reports.c.listener, listeners.c.session, listeners.c.since_ms, reports.c.part, reports.c.at_ms
    joined = reports.join(listeners, listeners.c.id == reports.c.listener)
    query = select(*columns, reports.c.said).select_from(joined).where(reports.c.version > version)
    return [ReportPart(*row) for row in connection.execute(query)]


def save(connection: Connection, parts: Iterable[ReportPart]) -> None:
    """Store parts, unless a later one is stored. Skips registrations that were replaced or have expired.

    Only on PostgreSQL: with SQLite there are no other replicas.
    """
    from sqlalchemy.dialects import postgresql  # noqa: PLC0415 - loaded only for PostgreSQL

    rows = [
        {
            "listener_id": report.listener,
            "of_session": report.session,
            "registered_at": report.registered_at,
            "part": report.part,
            "at": report.reported_at,
            "text": report.text,
        }
        for report in parts
    ]
    given = given_rows(rows, _PART).c
    columns = listeners.c.id, given.part, given.at, given.text, current_version()
    current = select(*columns).where(*of_registration(given.__getitem__))
    put = postgresql.insert(reports).from_select(["listener", "part", "at_ms", "said", "version"], current)
    statement = put.on_conflict_do_update(
        index_elements=[reports.c.listener, reports.c.part],
        set_={name: put.excluded[name] for name in ("at_ms", "said", "version")},
        where=reports.c.at_ms < put.excluded.at_ms,
    )
    connection.execute(statement)


def remove(connection: Connection, listener_ids: Collection[str]) -> None:
    """Remove the reports of these listeners."""
    if listener_ids:
        connection.execute(delete(reports).where(reports.c.listener.in_(listener_ids)))
