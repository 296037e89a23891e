"""SQL on what listeners say of themselves, part by part, for the replicas that did not hear it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from sqlalchemy import BigInteger, String, Text, bindparam, delete, select
from sqlalchemy.engine import Connection

from app.store.tables import listeners, reports
from app.store.topic_versions import current_version

OF_REGISTRATION: Final = (
    listeners.c.id == bindparam("own"),
    listeners.c.session == bindparam("of"),
    listeners.c.since_ms == bindparam("since"),
    listeners.c.lapsed_ms.is_(None),
)
"""Of a listener only while it is this registration, and has not lapsed."""


class ReportPart(NamedTuple):
    """A part of what a registration of a listener says of itself, as JSON, said last at `at` (Unix ms)."""

    listener: str
    session: str
    since: int
    part: str
    at: int
    text: str


def since(connection: Connection, version: int) -> list[ReportPart]:
    """The parts that were written after a version."""
    columns = reports.c.listener, listeners.c.session, listeners.c.since_ms, reports.c.part, reports.c.at_ms
    joined = reports.join(listeners, listeners.c.id == reports.c.listener)
    query = select(*columns, reports.c.said).select_from(joined).where(reports.c.version > version)
    return [ReportPart(*row) for row in connection.execute(query)]


def save(connection: Connection, parts: Iterable[ReportPart]) -> None:
    """Keep what was said, unless something later is there, or another registration, or one that has lapsed.

    Only on PostgreSQL: where there are no other replicas nobody asks.
    """
    from sqlalchemy.dialects import postgresql  # noqa: PLC0415 - only who uses PostgreSQL loads it

    part, at, text = bindparam("part", type_=String), bindparam("at", type_=BigInteger), bindparam("text", type_=Text)
    current = select(listeners.c.id, part, at, text, current_version()).where(*OF_REGISTRATION)
    put = postgresql.insert(reports).from_select(["listener", "part", "at_ms", "said", "version"], current)
    statement = put.on_conflict_do_update(
        index_elements=[reports.c.listener, reports.c.part],
        set_={name: put.excluded[name] for name in ("at_ms", "said", "version")},
        where=reports.c.at_ms < put.excluded.at_ms,
    )
    rows = [
        {"own": own.listener, "of": own.session, "since": own.since, "part": own.part, "at": own.at, "text": own.text}
        for own in parts
    ]
    connection.execute(statement, rows)


def remove(connection: Connection, listener_ids: Collection[str]) -> None:
    """Forget what these listeners said."""
    if listener_ids:
        connection.execute(delete(reports).where(reports.c.listener.in_(listener_ids)))
