"""Listeners, their reports, and the replicas that push to them, in the database."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    ColumnElement,
    FromClause,
    Row,
    String,
    Text,
    Update,
    bindparam,
    case,
    cast,
    delete,
    extract,
    func,
    insert,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.engine import Connection
from sqlalchemy.types import TypeEngine

from app.store import audit, queries
from app.store.audit import AuditEvent, Origin
from app.store.queries import StorePart, Topic, bump, current_version, reading, writing
from app.store.tables import (
    UnreadableRowError,
    listener_modes,
    listeners,
    missing_row,
    read_row,
    read_rows,
    readable_rows,
    replace_rows,
    replicas,
    reports,
    versions,
)
from blocklist.model.errors import InvalidError, UnavailableError
from blocklist.model.listener import Listener, ListenerRole, Mode, ModeRecord, Software
from blocklist.wire.audit import AuditKind

MAX_ATTEMPTS: Final = 10
MAX_MODES: Final = 1000
"""Maximum number of patterns with a mode."""
_MODES: Final = "modes"
"""Their row of `versions`: replicas read up to MAX_MODES rows only after a change."""

_DATABASE_CLOCK: Final = cast(extract("epoch", func.clock_timestamp()) * 1000, BigInteger)
"""PostgreSQL's clock in Unix ms: the same for all replicas."""

# One statement: separate INSERT and UPDATE would conflict with earlier ones whose answers were lost.
_RENEW_LEASE: Final = text(
    "INSERT INTO replicas (id, end_ms) VALUES (:id, CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint) + :ms)"
    " ON CONFLICT (id) DO UPDATE SET end_ms = excluded.end_ms"
)
_REGISTRATION: Final[Mapping[str, TypeEngine[Any]]] = {
    "listener_id": String(),
    "of_session": String(),
    "registered_at": BigInteger(),
}
_LISTENER: Final[Mapping[str, TypeEngine[Any]]] = {
    it.name: Text() if isinstance(it.type, String) else it.type for it in listeners.c if it.name != "version"
}
_PART: Final[Mapping[str, TypeEngine[Any]]] = {**_REGISTRATION, "part": String(), "at": BigInteger(), "text": Text()}
_HEARTBEAT: Final[Mapping[str, TypeEngine[Any]]] = {
    **_REGISTRATION,
    "new_cursor": BigInteger(),
    "new_end": BigInteger(),
    "heard": Boolean(),
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


ListenerChange = Callable[[StoredListener | None], StoredListener]
Outcome = StoredListener | Exception
"""What is stored of a listener, or why it is not, or cannot be read."""


class ReportPart(NamedTuple):
    """A part of a report as JSON, by a registration of a listener; both times are Unix ms."""

    listener: str
    session: str
    registered_at: int
    part: str
    reported_at: int
    text: str


ModesVersion = tuple[str, int]


class ListenerUpdates(NamedTuple):
    """Changes since a version; `version` is the current one, `total` the number of listeners.

    Cursors belong to `history`, and so does `modes_version`; `modes` is None if that was known. `changed` is read row
    by row: it may have all listeners.
    """

    version: int
    history: str
    total: int
    changed: Iterable[StoredListener]
    reports: list[ReportPart]
    modes_version: ModesVersion
    modes: list[ModeRecord] | None


class ListenerStore(StorePart):
    """Stored listeners, and the replicas that push to them.

    Every method raises UnavailableError if the database cannot be used.
    """

    @reading
    def updates_since(self, connection: Connection, since: int, known: ModesVersion | None = None) -> ListenerUpdates:
        """What was written after version `since`, -1 is everything, and the modes unless their version is known."""
        version, of_modes = connection.execute(select(current_version(), current_version(_MODES))).one()
        if version is None or of_modes is None:
            raise missing_row(versions)
        modes_version = queries.current_history(connection), int(of_modes)
        count = connection.execute(select(func.count()).select_from(listeners)).scalar_one()
        rows = connection.execute(select(listeners).where(listeners.c.version > since)).all()
        return ListenerUpdates(
            int(version),
            modes_version[0],
            count,
            readable_rows(listeners, rows, _stored),
            _reports_since(connection, since),
            modes_version,
            None if modes_version == known else _modes(connection),
        )

    @reading
    def ids(self, connection: Connection) -> set[str]:
        return set(connection.execute(select(listeners.c.id)).scalars())

    async def update(self, changes: Mapping[str, ListenerChange], history: str) -> dict[str, Outcome]:
        """Store what each change makes of the stored listener with that id (None if it is new), all at once.

        For each, what is stored or why it is not, as what the change raises, also by a bug. A change may run more than
        once. Cursors are stored only if they belong to the current history.
        """
        outcomes: dict[str, Outcome] = {}
        for _ in range(MAX_ATTEMPTS):
            left = {listener_id: changes[listener_id] for listener_id in changes if listener_id not in outcomes}
            if not left:
                break
            try:
                outcomes |= await self._try_update(left, history)
            except UnavailableError as error:
                outcomes |= dict.fromkeys(left, error)
        for listener_id in changes.keys() - outcomes.keys():
            outcomes[listener_id] = UnavailableError(
                f"Listener {listener_id} kept changing its registration at other replicas; try again.", retry_after=1
            )
        return outcomes

    async def _try_update(self, changes: Mapping[str, ListenerChange], history: str) -> dict[str, Outcome]:
        """The outcomes, but of those that others have changed meanwhile. Raises UnavailableError."""
        current = await self._get(changes)
        outcomes: dict[str, Outcome] = {}
        wanted: dict[str, StoredListener] = {}
        for listener_id, change in changes.items():
            if isinstance(stored := current.get(listener_id), Exception):
                outcomes[listener_id] = stored
                continue
            try:
                wanted[listener_id] = change(stored)
            except Exception as error:
                outcomes[listener_id] = error
        return outcomes | (await self._save(wanted, current, history) if wanted else {})

    @reading
    def _get(self, connection: Connection, ids: Collection[str]) -> dict[str, Outcome]:
        return _get(connection, ids)

    @writing(Topic.LISTENERS)
    def _save(
        self,
        connection: Connection,
        wanted: Mapping[str, StoredListener],
        expected: Mapping[str, Outcome],
        history: str,
    ) -> dict[str, StoredListener]:
        """Replace the `expected` listeners (those that are missing: there is none), and return what was stored.

        Left out is each whose stored one is another registration. Cursors are stored only if they belong to the current
        history.
        """
        stored_now = _get(connection, wanted)
        same_history = queries.current_history(connection) == history
        saved: dict[str, StoredListener] = {}
        replaced: list[str] = []
        for listener_id, given in wanted.items():
            current = stored_now.get(listener_id)
            if isinstance(current, Exception) or _identity(current) != _identity(expected.get(listener_id)):
                continue
            listener = given.listener if same_history else replace(given.listener, acked=None)
            if current is not None:
                listener = listener.with_latest(current.listener)
                if listener.registration_key != current.listener.registration_key:
                    replaced.append(listener_id)
            saved[listener_id] = replace(given, listener=listener)
        _put(connection, list(map(_row, saved.values())))
        _remove_reports(connection, replaced)
        return saved

    @writing(Topic.LISTENERS)
    def remove(
        self,
        connection: Connection,
        ids: Collection[str],
        lease_ended_before: int | None = None,
        session: str | None = None,
    ) -> set[str]:
        """Remove listeners and return their ids; with `lease_ended_before` (Unix ms) only those whose stored lease
        ended before that, with `session` only those with this session.
        """
        conditions: list[ColumnElement[bool]] = [listeners.c.id.in_(ids)]
        if lease_ended_before is not None:
            conditions.append(func.coalesce(listeners.c.lease_end_ms, 0) < lease_ended_before)
        if session is not None:
            conditions.append(listeners.c.session == session)
        statement = delete(listeners).where(*conditions).returning(listeners.c.id)
        removed = connection.execute(statement).scalars().all()
        _remove_reports(connection, removed)
        return set(removed)

    @writing(Topic.LISTENERS)
    def save_heartbeats(
        self, connection: Connection, updated: Sequence[Listener], reports: Sequence[ReportPart], history: str
    ) -> None:
        """Advance cursors and leases, which never go back, and store reports.

        Skips registrations that were replaced or have expired. Cursors are stored only if they belong to the current
        history.
        """
        same_history = queries.current_history(connection) == history
        rows = [
            {
                "listener_id": listener.id,
                "of_session": listener.session,
                "registered_at": listener.registered_at,
                "new_cursor": listener.acked if same_history else None,
                "new_end": listener.lease_end,
                "heard": listener.confirmed,
            }
            for listener in updated
        ]
        if connection.dialect.name == "postgresql":
            connection.execute(_advance(_given_rows(rows, _HEARTBEAT).c.__getitem__))
        else:
            connection.execute(_advance(bindparam), rows)
        if reports:
            _save_reports(connection, reports)

    @writing(Topic.LISTENERS)
    def set_mode(self, connection: Connection, record: ModeRecord, origin: Origin) -> None:
        """Store the mode of a pattern, and in the audit log who set it. Raises InvalidError if there are too many."""
        before = _take_mode(connection, record.pattern)
        count = connection.execute(select(func.count()).select_from(listener_modes)).scalar_one()
        if count >= MAX_MODES:
            raise InvalidError(
                f"There are {MAX_MODES} patterns with a mode, as many as are kept: remove those that are no longer"
                " needed (blocklist listeners mode --remove PATTERN), or set one for several with *."
            )
        columns = {"pattern": record.pattern, "mode": record.mode.value, "created_by": record.created_by}
        connection.execute(insert(listener_modes).values({**columns, "at_ms": record.at}))
        _record_mode(connection, record.pattern, before, record.mode, record.at, origin)

    @writing(Topic.LISTENERS)
    def remove_mode(self, connection: Connection, pattern: str, at: int, origin: Origin) -> bool:
        """Remove the record of a pattern, and record that `at` (Unix ms); whether there was one."""
        before = _take_mode(connection, pattern)
        if before is not None:
            _record_mode(connection, pattern, before, None, at, origin)
        return before is not None

    @writing(Topic.LISTENERS)
    def save_expired(
        self, connection: Connection, listener_ids: Sequence[str], now: int, lease_ended_before: int
    ) -> set[str]:
        """Mark as expired at `now` those whose lease ended until `lease_ended_before` (Unix ms); return their ids."""
        live_with_ended_lease = (
            listeners.c.id.in_(listener_ids),
            listeners.c.lapsed_ms.is_(None),
            func.coalesce(listeners.c.lease_end_ms, 0) <= lease_ended_before,
        )
        statement = update(listeners).where(*live_with_ended_lease).values(lapsed_ms=now, version=current_version())
        return set(connection.execute(statement.returning(listeners.c.id)).scalars())

    @reading
    def live_replicas(self, connection: Connection) -> set[str]:
        return set(connection.execute(select(replicas.c.id).where(replicas.c.end_ms > _DATABASE_CLOCK)).scalars())

    @writing(Topic.LISTENERS)
    def take_over(self, connection: Connection, seconds: float, now: int) -> bool:
        """If no other replica is live, become the first one that is; whether that is so.

        None could receive heartbeats, so each live listener gets a whole lease from `now` on (Unix ms). Nor could any
        notice the end of a listener: none is confirmed before its next heartbeat.
        """
        other = select(replicas.c.id).where(replicas.c.end_ms > _DATABASE_CLOCK, replicas.c.id != self.store.replica)
        if connection.execute(other.limit(1)).first() is not None:
            return False
        whole = case((listeners.c.lapsed_ms.is_(None), now + listeners.c.lease_ms), else_=listeners.c.lease_end_ms)
        renewed = update(listeners).values(lease_end_ms=whole, confirmed=False, version=current_version())
        connection.execute(renewed)
        connection.execute(_RENEW_LEASE, {"id": self.store.replica, "ms": round(seconds * 1000)})
        return True

    @writing(None)
    def renew_replica_lease(self, connection: Connection, seconds: float) -> set[str]:
        """Extend this replica's lease to `seconds` from now; return the ids of all live replicas."""
        replica = self.store.replica
        connection.execute(delete(replicas).where(replicas.c.id != replica, replicas.c.end_ms < _DATABASE_CLOCK))
        connection.execute(_RENEW_LEASE, {"id": replica, "ms": round(seconds * 1000)})
        return set(connection.execute(select(replicas.c.id)).scalars())

    @writing(Topic.LISTENERS)
    def claim_listeners(self, connection: Connection, orphans: Collection[str]) -> None:
        """Make this replica the owner of those listeners that no live replica owns."""
        columns = listeners.c
        live = select(replicas.c.id).where(replicas.c.end_ms > _DATABASE_CLOCK)
        unowned = or_(columns.owner.is_(None), columns.owner.not_in(live))
        statement = update(listeners).where(columns.id.in_(orphans), unowned)
        connection.execute(statement.values(owner=self.store.replica, version=current_version()))

    @writing(Topic.LISTENERS)
    def remove_replica(self, connection: Connection) -> None:
        """Remove this replica, and its ownership of listeners."""
        statement = update(listeners).where(listeners.c.owner == self.store.replica)
        connection.execute(statement.values(owner=None, version=current_version()))
        connection.execute(delete(replicas).where(replicas.c.id == self.store.replica))


def _get(connection: Connection, ids: Collection[str]) -> dict[str, Outcome]:
    """Those of these listeners that are registered; of one that cannot be read, the error."""
    found: dict[str, Outcome] = {}
    for row in connection.execute(select(listeners).where(listeners.c.id.in_(ids))):
        try:
            found[row.id] = read_row(listeners, row, _stored)
        except UnreadableRowError as error:
            found[row.id] = error
    return found


def check(connection: Connection) -> None:
    """Raises UnreadableRowError if there is a listener, or a mode, that cannot be read."""
    read_rows(listeners, connection.execute(select(listeners)), _stored)
    read_rows(listener_modes, connection.execute(select(listener_modes)), _mode)


def _identity(stored: Outcome | None) -> tuple[str, int, str] | None:
    if isinstance(stored, StoredListener):
        return *stored.listener.registration_key, stored.secret.current
    return None


def _advance(given: Callable[[str], Any]) -> Update:
    columns, cursor, end = listeners.c, given("new_cursor"), given("new_end")
    acked = case((or_(columns.acked.is_(None), columns.acked < cursor), cursor), else_=columns.acked)
    lease_end = case((or_(columns.lease_end_ms.is_(None), columns.lease_end_ms < end), end), else_=columns.lease_end_ms)
    confirmed = case((cast(given("heard"), Boolean), True), else_=columns.confirmed)
    advanced = {"acked": acked, "lease_end_ms": lease_end, "confirmed": confirmed, "version": current_version()}
    return update(listeners).where(*_of_registration(given)).values(advanced)


def _of_registration(given: Callable[[str], Any]) -> tuple[ColumnElement[bool], ...]:
    """Selects a listener if it still has the given registration, and its lease has not expired."""
    return (
        listeners.c.id == given("listener_id"),
        listeners.c.session == given("of_session"),
        listeners.c.since_ms == given("registered_at"),
        listeners.c.lapsed_ms.is_(None),
    )


def _given_rows(rows: Sequence[Mapping[str, Any]], types: Mapping[str, TypeEngine[Any]]) -> FromClause:
    """Rows as a table of one statement, for PostgreSQL.

    For several statements the driver uses a pipeline. A replica that stalls within one holds its locks for as long:
    `idle_in_transaction_session_timeout` does not end its session.
    """
    columns = [bindparam(f"given_{name}", [row[name] for row in rows], ARRAY(types[name])) for name in types]
    return func.unnest(*columns).table_valued(*types).render_derived(name="given")


def _put(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write these rows, in place of those with the same ids."""
    from sqlalchemy.dialects import postgresql, sqlite  # noqa: PLC0415 - as below

    if not rows:
        return
    if connection.dialect.name == "postgresql":
        given = select(*_given_rows(rows, _LISTENER).c, current_version())
        put = postgresql.insert(listeners).from_select([*_LISTENER, "version"], given)
        connection.execute(replace_rows(put))
    else:
        connection.execute(replace_rows(sqlite.insert(listeners).values(version=current_version())), rows)


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
        "principal": listener.principal,
        "cluster": listener.cluster,
        "product": listener.software.product,
        "product_version": listener.software.version,
        "platform": listener.software.platform,
        "mode": listener.mode.value,
        "confirmed": listener.confirmed,
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
        cluster=row.cluster,
        software=Software(product=row.product, version=row.product_version, platform=row.platform),
        mode=Mode(row.mode),
        confirmed=row.confirmed,
    )
    secret = Secret(current=row.secret, previous=row.old_secret, previous_until=row.old_secret_until_ms or 0)
    return StoredListener(listener=listener, secret=secret, expired_at=row.lapsed_ms, owner=row.owner)


def _former_sessions(text: str) -> tuple[str, ...]:
    sessions = json.loads(text)
    if not isinstance(sessions, list) or not all(isinstance(session, str) for session in sessions):
        raise TypeError
    return tuple(sessions)


def _modes(connection: Connection) -> list[ModeRecord]:
    return list(readable_rows(listener_modes, connection.execute(select(listener_modes)), _mode))


def _mode(row: Row[Any]) -> ModeRecord:
    return ModeRecord(row.pattern, Mode(row.mode), row.created_by, row.at_ms)


def _record_mode(
    connection: Connection, pattern: str, before: str | None, mode: Mode | None, at: int, origin: Origin
) -> None:
    details = {"pattern": pattern, "mode": mode and mode.value, "before": before}
    audit.add(connection, [AuditEvent(at=at, kind=AuditKind.MODE, origin=origin, details=details)])


def _take_mode(connection: Connection, pattern: str) -> str | None:
    """Remove the record of a pattern; its mode."""
    bump(connection, _MODES)
    removed = delete(listener_modes).where(listener_modes.c.pattern == pattern).returning(listener_modes.c.mode)
    return connection.execute(removed).scalar_one_or_none()


def _reports_since(connection: Connection, version: int) -> list[ReportPart]:
    """The parts written after a version."""
    columns = reports.c.listener, listeners.c.session, listeners.c.since_ms, reports.c.part, reports.c.at_ms
    joined = reports.join(listeners, listeners.c.id == reports.c.listener)
    query = select(*columns, reports.c.said).select_from(joined).where(reports.c.version > version)
    return [ReportPart(*row) for row in connection.execute(query)]


def _save_reports(connection: Connection, parts: Iterable[ReportPart]) -> None:
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
    given = _given_rows(rows, _PART).c
    columns = listeners.c.id, given.part, given.at, given.text, current_version()
    current = select(*columns).where(*_of_registration(given.__getitem__))
    put = postgresql.insert(reports).from_select(["listener", "part", "at_ms", "said", "version"], current)
    statement = put.on_conflict_do_update(
        index_elements=[reports.c.listener, reports.c.part],
        set_={name: put.excluded[name] for name in ("at_ms", "said", "version")},
        where=reports.c.at_ms < put.excluded.at_ms,
    )
    connection.execute(statement)


def _remove_reports(connection: Connection, listener_ids: Collection[str]) -> None:
    if listener_ids:
        connection.execute(delete(reports).where(reports.c.listener.in_(listener_ids)))
