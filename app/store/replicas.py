"""SQL on replicas: which live, and to which listeners each of them pushes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from sqlalchemy import BigInteger, cast, delete, extract, func, or_, select, text, update
from sqlalchemy.engine import Connection

from app.store.tables import listeners, replicas
from app.store.topic_versions import current_version

_DATABASE_CLOCK: Final = cast(extract("epoch", func.clock_timestamp()) * 1000, BigInteger)
"""PostgreSQL's clock, Unix milliseconds: the same for all replicas."""

# An update and an insert would collide with those of before, if their answer was lost.
_RENEW_LEASE: Final = text(
    "INSERT INTO replicas (id, end_ms) VALUES (:id, CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint) + :ms)"
    " ON CONFLICT (id) DO UPDATE SET end_ms = excluded.end_ms"
)


def live_replicas(connection: Connection) -> set[str]:
    """All replicas that live."""
    return set(connection.execute(select(replicas.c.id).where(replicas.c.end_ms > _DATABASE_CLOCK)).scalars())


def renew_lease(connection: Connection, replica: str, milliseconds: int) -> set[str]:
    """The replica lives for so long; returns all that do."""
    connection.execute(delete(replicas).where(replicas.c.id != replica, replicas.c.end_ms < _DATABASE_CLOCK))
    connection.execute(_RENEW_LEASE, {"id": replica, "ms": milliseconds})
    return set(connection.execute(select(replicas.c.id)).scalars())


def claim_listeners(connection: Connection, replica: str, orphans: Collection[str]) -> None:
    """The replica pushes to these from now on, unless one that lives does already."""
    living = select(replicas.c.id).where(replicas.c.end_ms > _DATABASE_CLOCK)
    unowned = or_(listeners.c.owner.is_(None), listeners.c.owner.not_in(living))
    statement = update(listeners).where(listeners.c.id.in_(orphans), unowned)
    connection.execute(statement.values(owner=replica, version=current_version()))


def remove_replica(connection: Connection, replica: str) -> None:
    """The replica pushes to nobody any more, and is gone."""
    statement = update(listeners).where(listeners.c.owner == replica)
    connection.execute(statement.values(owner=None, version=current_version()))
    connection.execute(delete(replicas).where(replicas.c.id == replica))
