"""SQL on listeners: functions of a connection and values, inside somebody's transaction."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sqlalchemy import Row, bindparam, case, delete, func, insert, or_, select, update
from sqlalchemy.engine import Connection

from app.store import listener_reports, queries
from app.store.listener_reports import Said
from app.store.tables import listeners
from app.store.topic_versions import present_version
from blocklist.model.listener import Listener, Role


@dataclass(frozen=True, kw_only=True, slots=True)
class Secret:
    """What pushes are signed with; after a rotation with the `old` one as well, until `old_until` (Unix ms)."""

    present: str
    old: str | None = None
    old_until: int = 0

    def valid(self, now: int) -> list[str]:
        """The secrets to sign with now."""
        return [self.present, self.old] if self.old is not None and now < self.old_until else [self.present]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredListener:
    """A listener as it is kept. Its lease end is one that some replica knew, 0 where none says so.

    `lapsed_at` is None if it was live; `owner` is the replica that pushes to it.
    """

    listener: Listener
    secret: Secret
    lapsed_at: int | None = None
    owner: str | None = None


class News(NamedTuple):
    """What has changed since a version: the version now, how many listeners there are, and what is new of them.

    Cursors are of the `history`.
    """

    version: int
    history: str
    number: int
    changed: list[StoredListener]
    said: list[Said]


def news(connection: Connection, since: int) -> News:
    """What was written after version `since`; -1 is everything."""
    version = int(connection.execute(select(present_version())).scalar_one())
    count = connection.execute(select(func.count()).select_from(listeners)).scalar_one()
    rows = connection.execute(select(listeners).where(listeners.c.version > since))
    changed = [_stored(row) for row in rows]
    return News(version, queries.history(connection), count, changed, listener_reports.since(connection, since))


def ids(connection: Connection) -> set[str]:
    """Who is registered."""
    return set(connection.execute(select(listeners.c.id)).scalars())


def get(connection: Connection, listener_id: str) -> StoredListener | None:
    """One of them."""
    row = connection.execute(select(listeners).where(listeners.c.id == listener_id)).one_or_none()
    return None if row is None else _stored(row)


def save(
    connection: Connection, stored: StoredListener, instead: StoredListener | None, history: str
) -> StoredListener | None:
    """Keep a listener in the place of what was there, as it is returned; None, with nothing done, if that is another.

    Its cursor counts only if it is of the present history.
    """
    present = get(connection, stored.listener.id)
    if _who(present) != _who(instead):
        return None
    if queries.history(connection) != history:
        stored = replace(stored, listener=replace(stored.listener, acked=None))
    if present is None:
        connection.execute(insert(listeners).values(_row(stored)))
        return stored
    stored = replace(stored, listener=stored.listener.with_latest(present.listener))
    connection.execute(update(listeners).where(listeners.c.id == stored.listener.id).values(_row(stored)))
    if stored.listener.registration != present.listener.registration:
        listener_reports.remove(connection, [stored.listener.id])
    return stored


def _who(stored: StoredListener | None) -> tuple[str, int, str] | None:
    return None if stored is None else (*stored.listener.registration, stored.secret.present)


def remove(connection: Connection, gone: Collection[str], before: int | None = None) -> None:
    """Forget listeners; with `before` only those whose lease, as all replicas know it, has ended before that."""
    ended = [] if before is None else [func.coalesce(listeners.c.lease_end_ms, 0) < before]
    statement = delete(listeners).where(listeners.c.id.in_(gone), *ended).returning(listeners.c.id)
    listener_reports.remove(connection, connection.execute(statement).scalars().all())


def save_heard(connection: Connection, heard: Iterable[Listener], history: str) -> None:
    """Keep cursors and leases, which only move on, unless it is another registration by now, or one that has lapsed.

    Cursors count only if they are of the present history.
    """
    same_history = queries.history(connection) == history
    columns = listeners.c
    to: Any = bindparam("to")
    end: Any = bindparam("end")
    later = case((or_(columns.acked.is_(None), columns.acked < to), to), else_=columns.acked)
    longer = case((or_(columns.lease_end_ms.is_(None), columns.lease_end_ms < end), end), else_=columns.lease_end_ms)
    moved = {"acked": later, "lease_end_ms": longer, "version": present_version()}
    statement = update(listeners).where(*listener_reports.OF_REGISTRATION).values(moved)
    rows = [
        {
            "own": listener.id,
            "of": listener.session,
            "since": listener.since,
            "to": listener.acked if same_history else None,
            "end": listener.lease_end,
        }
        for listener in heard
    ]
    connection.execute(statement, rows)


def save_lapsed(connection: Connection, ended: Sequence[str], now: int, before: int) -> set[str]:
    """Keep that these leases have lapsed `now`, if they ended until `before` as all replicas know it; which did."""
    lapsing = (
        listeners.c.id.in_(ended),
        listeners.c.lapsed_ms.is_(None),
        func.coalesce(listeners.c.lease_end_ms, 0) <= before,
    )
    statement = update(listeners).where(*lapsing).values(lapsed_ms=now, version=present_version())
    return set(connection.execute(statement.returning(listeners.c.id)).scalars())


def _row(stored: StoredListener) -> dict[str, Any]:
    listener, secret = stored.listener, stored.secret
    return {
        "id": listener.id,
        "role": listener.role.value,
        "session": listener.session,
        "since_ms": listener.since,
        "former": json.dumps(listener.former),
        "callback_url": listener.callback_url,
        "lease_ms": listener.lease,
        "lease_end_ms": listener.lease_end,
        "acked": listener.acked,
        "lapsed_ms": stored.lapsed_at,
        "secret": secret.present,
        "old_secret": secret.old,
        "old_secret_until_ms": secret.old_until,
        "min_nodes": listener.min_nodes,
        "owner": stored.owner,
        "version": present_version(),
    }


def _stored(row: Row[Any]) -> StoredListener:
    listener = Listener(
        id=row.id,
        role=Role(row.role),
        session=row.session,
        since=row.since_ms,
        former=tuple(json.loads(row.former)),
        callback_url=row.callback_url,
        lease=row.lease_ms,
        lease_end=row.lease_end_ms or row.lapsed_ms or 0,
        acked=row.acked,
        min_nodes=row.min_nodes,
    )
    secret = Secret(present=row.secret, old=row.old_secret, old_until=row.old_secret_until_ms or 0)
    return StoredListener(listener=listener, secret=secret, lapsed_at=row.lapsed_ms, owner=row.owner)
