"""SQL on listeners: functions that run in the caller's transaction."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Row,
    Update,
    bindparam,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.engine import Connection
from sqlalchemy.types import TypeEngine

from app.store import listener_reports, queries
from app.store.listener_reports import ReportPart
from app.store.queries import current_version
from app.store.rows import missing_row, read_row, read_rows, readable_rows
from app.store.tables import listeners, versions
from blocklist.model.listener import Listener, ListenerRole

_HEARTBEAT: Final[Mapping[str, TypeEngine[Any]]] = {
    **listener_reports.REGISTRATION,
    "new_cursor": BigInteger(),
    "new_end": BigInteger(),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Secret:
    """What pushes are signed with; after a rotation also with `previous`, until `previous_until` (Unix ms)."""

    current: str
    previous: str | None = None
    previous_until: int = 0

    def valid_secrets(self, now: int) -> list[str]:
        """The secrets to sign with at `now` (Unix ms)."""
        return (
            [self.current, self.previous] if self.previous is not None and now < self.previous_until else [self.current]
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredListener:
    """A listener in the database. Its lease end is the latest that a replica stored, 0 if none did.

    `expired_at` (Unix ms) is None while the lease is live; `owner` is the replica that pushes to it.
    """

    listener: Listener
    secret: Secret
    expired_at: int | None = None
    owner: str | None = None


class ListenerUpdates(NamedTuple):
    """Changes since a version; `version` is the current one, `total` the number of listeners.

    Cursors belong to `history`.
    """

    version: int
    history: str
    total: int
    changed: list[StoredListener]
    reports: list[ReportPart]


def updates_since(connection: Connection, since: int) -> ListenerUpdates:
    """What was written after version `since`; -1 is everything."""
    version = connection.execute(select(current_version())).scalar_one()
    if version is None:
        raise missing_row(versions)
    count = connection.execute(select(func.count()).select_from(listeners)).scalar_one()
    rows = connection.execute(select(listeners).where(listeners.c.version > since))
    changed = list(readable_rows(listeners, rows, _stored))
    return ListenerUpdates(
        int(version),
        queries.current_history(connection),
        count,
        changed,
        listener_reports.since_version(connection, since),
    )


def ids(connection: Connection) -> set[str]:
    """The ids of all registered listeners."""
    return set(connection.execute(select(listeners.c.id)).scalars())


def get(connection: Connection, listener_id: str) -> StoredListener | None:
    """One listener; None if it is not registered. Raises UnreadableRowError."""
    row = connection.execute(select(listeners).where(listeners.c.id == listener_id)).one_or_none()
    return None if row is None else read_row(listeners, row, _stored)


def check(connection: Connection) -> None:
    """Raises UnreadableRowError if there is a listener that cannot be read."""
    read_rows(listeners, connection.execute(select(listeners)), _stored)


def save(
    connection: Connection, stored: StoredListener, expected: StoredListener | None, history: str
) -> StoredListener | None:
    """Replace the `expected` listener (None: there is none), and return what was stored.

    Returns None and changes nothing if the stored one is another registration. The cursor is stored only if it belongs
    to the current history.
    """
    current = get(connection, stored.listener.id)
    if _identity(current) != _identity(expected):
        return None
    if queries.current_history(connection) != history:
        stored = replace(stored, listener=replace(stored.listener, acked=None))
    if current is None:
        connection.execute(insert(listeners).values(_row(stored)))
        return stored
    stored = replace(stored, listener=stored.listener.with_latest(current.listener))
    connection.execute(update(listeners).where(listeners.c.id == stored.listener.id).values(_row(stored)))
    if stored.listener.registration_key != current.listener.registration_key:
        listener_reports.remove(connection, [stored.listener.id])
    return stored


def _identity(stored: StoredListener | None) -> tuple[str, int, str] | None:
    return None if stored is None else (*stored.listener.registration_key, stored.secret.current)


def remove(
    connection: Connection,
    listener_ids: Collection[str],
    lease_ended_before: int | None = None,
    session: str | None = None,
) -> set[str]:
    """Remove listeners and return their ids; with `lease_ended_before` (Unix ms) only those whose stored lease ended
    before that, with `session` only those with this session.
    """
    conditions: list[ColumnElement[bool]] = [listeners.c.id.in_(listener_ids)]
    if lease_ended_before is not None:
        conditions.append(func.coalesce(listeners.c.lease_end_ms, 0) < lease_ended_before)
    if session is not None:
        conditions.append(listeners.c.session == session)
    statement = delete(listeners).where(*conditions).returning(listeners.c.id)
    removed = connection.execute(statement).scalars().all()
    listener_reports.remove(connection, removed)
    return set(removed)


def save_heartbeats(connection: Connection, updated: Iterable[Listener], history: str) -> None:
    """Advance cursors and leases; both never go back. Skips registrations that were replaced or have expired.

    Cursors are stored only if they belong to the current history.
    """
    same_history = queries.current_history(connection) == history
    rows = [
        {
            "listener_id": listener.id,
            "of_session": listener.session,
            "registered_at": listener.registered_at,
            "new_cursor": listener.acked if same_history else None,
            "new_end": listener.lease_end,
        }
        for listener in updated
    ]
    if connection.dialect.name == "postgresql":
        connection.execute(_advance(listener_reports.given_rows(rows, _HEARTBEAT).c.__getitem__))
    else:
        connection.execute(_advance(bindparam), rows)


def _advance(given: Callable[[str], Any]) -> Update:
    columns, cursor, end = listeners.c, given("new_cursor"), given("new_end")
    acked = case((or_(columns.acked.is_(None), columns.acked < cursor), cursor), else_=columns.acked)
    lease_end = case((or_(columns.lease_end_ms.is_(None), columns.lease_end_ms < end), end), else_=columns.lease_end_ms)
    advanced = {"acked": acked, "lease_end_ms": lease_end, "version": current_version()}
    return update(listeners).where(*listener_reports.of_registration(given)).values(advanced)


def save_expired(connection: Connection, listener_ids: Sequence[str], now: int, lease_ended_before: int) -> set[str]:
    """Mark as expired at `now` those whose stored lease ended until then (both Unix ms); return their ids."""
    live_with_ended_lease = (
        listeners.c.id.in_(listener_ids),
        listeners.c.lapsed_ms.is_(None),
        func.coalesce(listeners.c.lease_end_ms, 0) <= lease_ended_before,
    )
    statement = update(listeners).where(*live_with_ended_lease).values(lapsed_ms=now, version=current_version())
    return set(connection.execute(statement.returning(listeners.c.id)).scalars())


def _row(stored: StoredListener) -> dict[str, Any]:
    listener, secret = stored.listener, stored.secret
    return {
        "id": listener.id,
        "role": listener.role.value,
        "session": listener.session,
        "since_ms": listener.registered_at,
        "former": json.dumps(listener.former_sessions),
        "callback_url": listener.callback_url,
        "lease_ms": listener.lease,
        "lease_end_ms": listener.lease_end,
        "acked": listener.acked,
        "lapsed_ms": stored.expired_at,
        "secret": secret.current,
        "old_secret": secret.previous,
        "old_secret_until_ms": secret.previous_until,
        "min_nodes": listener.min_nodes,
        "owner": stored.owner,
        "version": current_version(),
        "principal": listener.principal,
    }


def _stored(row: Row[Any]) -> StoredListener:
    listener = Listener(
        id=row.id,
        role=ListenerRole(row.role),
        session=row.session,
        registered_at=row.since_ms,
        former_sessions=_former_sessions(row.former),
        callback_url=row.callback_url,
        lease=row.lease_ms,
        lease_end=row.lease_end_ms or row.lapsed_ms or 0,
        acked=row.acked,
        min_nodes=row.min_nodes,
        principal=row.principal,
    )
    secret = Secret(current=row.secret, previous=row.old_secret, previous_until=row.old_secret_until_ms or 0)
    return StoredListener(listener=listener, secret=secret, expired_at=row.lapsed_ms, owner=row.owner)


def _former_sessions(text: str) -> tuple[str, ...]:
    sessions = json.loads(text)
    if not isinstance(sessions, list) or not all(isinstance(session, str) for session in sessions):
        raise TypeError
    return tuple(sessions)
