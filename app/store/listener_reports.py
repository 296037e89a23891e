"""SQL on the reports of listeners, part by part: replicas share them through the database."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from sqlalchemy import BigInteger, String, Text, bindparam, delete, select
from sqlalchemy.engine import Connection

from app.store.queries import current_version
from app.store.tables import listeners, reports

OF_REGISTRATION: Final = (
    listeners.c.id == bindparam("listener_id"),
    listeners.c.session == bindparam("of_session"),
    listeners.c.since_ms == bindparam("registered_at"),
    listeners.c.lapsed_ms.is_(None),
)
"""Selects a listener if it still has this registration, and its lease has not expired."""


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

    part, at, text = bindparam("part", type_=String), bindparam("at", type_=BigInteger), bindparam("text", type_=Text)
    current = select(listeners.c.id, part, at, text, current_version()).where(*OF_REGISTRATION)
    put = postgresql.insert(reports).from_select(["listener", "part", "at_ms", "said", "version"], current)
    statement = put.on_conflict_do_update(
        index_elements=[reports.c.listener, reports.c.part],
        set_={name: put.excluded[name] for name in ("at_ms", "said", "version")},
        where=reports.c.at_ms < put.excluded.at_ms,
    )
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
    connection.execute(statement, rows)


def remove(connection: Connection, listener_ids: Collection[str]) -> None:
    """Remove the reports of these listeners."""
    if listener_ids:
        connection.execute(delete(reports).where(reports.c.listener.in_(listener_ids)))
