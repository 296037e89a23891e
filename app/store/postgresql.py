"""The store in PostgreSQL: psycopg on the event loop, for any number of replicas.

During an outage no operation waits: the first failure opens the circuit breaker, which rejects all others until `probe`
succeeds.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from select import POLLIN, poll
from threading import Timer
from typing import Any, Final, TypeVar

import psycopg
import structlog
from psycopg.conninfo import timeout_from_conninfo
from psycopg.pq import TransactionStatus
from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    Engine,
    Select,
    Table,
    Text,
    bindparam,
    cast,
    delete,
    event,
    func,
    insert,
    not_,
    select,
    true,
    update,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql.psycopg import dialect
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from app.logs import isolated
from app.store.database import LOCK_NOT_AVAILABLE, STALLED, driver_message, sqlstate, to_unavailable
from app.store.queries import (
    PROBE_STATEMENTS,
    LogTail,
    StaleError,
    Topic,
    bump,
    change_from_values,
    log_row,
    record_timeline,
)
from app.store.store import MAX_TAIL, ClockOffset, OnRemoteChange, Query, Store
from app.store.tables import (
    LIST_COLUMNS,
    CommitRows,
    automatic_blocks,
    blocked_nodes,
    changes,
    commit_rows,
    dismissals,
    frees_node,
    log_head,
    replace_rows,
)
from blocklist.model.changes import Change
from blocklist.model.errors import UnavailableError
from blocklist.model.evidence import NO_BLOCKS, BlockRows

log = structlog.get_logger(__name__)
T = TypeVar("T")


POOL_SIZE: Final = 5
"""Connections of a replica, besides the one that commits and the one that listens."""
READ_TIMEOUT_SECONDS: Final = 30.0
"""Timeout of a read. Reading a long log takes long; other operations detect an outage earlier."""
CHANNEL: Final = "blocklist"
"""The channel of notifications."""
POLL_SECONDS: Final = 0.5
"""Interval of the poll: the maximum delay of a missed notification."""
POOLER_POLL_SECONDS: Final = 0.1
"""The same behind a pooler, which does not pass on notifications."""
RETRY_SECONDS: Final = 0.5
_HEADS: Final = """
SELECT history || ':' || revision, (SELECT version FROM versions WHERE topic = 'listeners'),
       (SELECT version FROM versions WHERE topic = 'tokens'),
       CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint) FROM log_head
"""
_TOPICS: Final = (Topic.CHANGES, Topic.LISTENERS, Topic.TOKENS)


MAX_STALLS: Final = 3
"""How often a transaction is tried that PostgreSQL ends because this process was stopped within it."""


class StalledError(StaleError):
    """PostgreSQL has rolled a transaction back because this process did nothing for `STALL_SECONDS`."""


class PostgresStore(Store):
    """The store for any number of replicas. Only one commit runs at a time."""

    replicated = True

    def __init__(self, url: Callable[[], str], replica: str, timeout_seconds: float, clock: Callable[[], int]) -> None:
        """`url` is asked for each new connection."""
        super().__init__(replica)
        self.clock_offset = self._clock_offset = ClockOffset(clock)
        self._url = url
        self._timeout_seconds = timeout_seconds
        # A transaction may wait for two locks, and must then fail before it looks as if the database did not answer.
        lock_timeout = min(LOCK_TIMEOUT_SECONDS, timeout_seconds / 3)
        self._engine = create_async_engine(
            "postgresql+psycopg://",
            async_creator=lambda: connect_async(url()),
            pool_size=POOL_SIZE,
            max_overflow=0,
            pool_timeout=timeout_seconds,
        )
        # A read with several queries needs one snapshot: a compaction in between would look like a gap.
        begin_transactions(self._engine.sync_engine, lock_timeout)
        self._read_engine = self._engine.execution_options(**{SNAPSHOT: True})
        event.listen(self._engine.sync_engine, "checkout", _replace_if_ended)
        # If this replica stalls with the log locked, the others go on before they take that for an outage.
        self._stall_seconds = min(STALL_SECONDS, timeout_seconds / 2)
        self._committer: psycopg.AsyncConnection | None = None
        self._renewals = self._renewals_of_committer = 0
        self._renew_pool(self._engine.sync_engine)
        self._in_flight: set[psycopg.AsyncConnection] = set()
        self._last_poll_at = 0.0

    async def prepare(self) -> None:
        async with self._translating_errors():
            await (await self.connect()).close()

    async def close(self) -> None:
        await self._drop_committer()
        await self._engine.dispose()

    def _renew_pool(self, engine: Engine) -> None:
        """Replace a connection of the pool from before a renewal when it is used next."""

        @event.listens_for(engine, "connect")
        def _connected(_: object, record: ConnectionPoolEntry) -> None:
            record.info["renewals"] = self._renewals

        @event.listens_for(engine, "checkout")
        def _used(_: object, record: ConnectionPoolEntry, __: object) -> None:
            if record.info["renewals"] != self._renewals:
                raise DisconnectionError

    async def renew(self) -> None:
        self._renewals += 1

    async def connect(self) -> psycopg.AsyncConnection:
        """A new connection with autocommit, outside the pool.

        The server may have changed since the last one, so this starts a new history if its timeline has.
        """
        connection = await connect_async(self._url())
        try:
            with deadline(self._timeout_seconds, connection):
                timeline = await _unrecorded_timeline(connection)
            if timeline is not None:
                await self._record(timeline)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _record(self, timeline: str) -> None:
        # Connections in the pool are to the former server.
        await self._engine.dispose()
        async with (
            self._engine.connect() as connection,
            self._with_deadline(self._timeout_seconds, connection),
            connection.begin(),
        ):
            renewed = await connection.run_sync(record_timeline, timeline, secrets.token_hex(4))
        if renewed:
            # Without a replica that saw the last changes it is unknown whether some were lost.
            log.warning("the database was promoted or restored; starting a new history", timeline=timeline)

    async def read(self, query: Query[T]) -> T:
        return await self._run(self._read_engine, query, READ_TIMEOUT_SECONDS)

    async def write(self, query: Query[T], topic: Topic | None = None) -> T:
        return await self._run(
            self._engine, query if topic is None else self._on_topic(topic, query), self._timeout_seconds
        )

    def _on_topic(self, topic: Topic, query: Query[T]) -> Query[T]:
        def run(connection: Connection) -> T:
            bump(connection, topic)
            result = query(connection)
            connection.execute(select(func.pg_notify(CHANNEL, f"{topic} {self.replica}")))
            return result

        return run

    async def commit(
        self, changes: Sequence[Change], *, after: int, history: str, blocks: BlockRows = NO_BLOCKS
    ) -> None:
        async with self._on_committer() as connection:
            if changes:
                note, rows = f"changes {self.replica}", commit_rows(changes, blocks)
                await _write_changes(connection, changes, rows, after=after, history=history, note=note)
            else:
                await _check_head(connection, after=after, history=history)

    async def tail(self, since: int) -> LogTail:
        async with self._on_committer() as connection:
            return await _log_tail(connection, since, MAX_TAIL)

    @asynccontextmanager
    async def locked(self, since: int) -> AsyncIterator[LogTail]:
        async with self._on_committer() as connection:
            try:
                yield await _locked_tail(connection, since, MAX_TAIL, self._stall_seconds)
                if connection.info.transaction_status != TransactionStatus.IDLE:
                    await connection.execute("COMMIT")
            except BaseException:
                await self._drop_committer()
                raise

    @asynccontextmanager
    async def _on_committer(self) -> AsyncIterator[psycopg.AsyncConnection]:
        """The connection of the task that commits. It is replaced after an error."""
        async with self._translating_errors():
            try:
                is_old = self._renewals_of_committer != self._renewals
                self._renewals_of_committer = self._renewals
                if self._committer is not None and (is_old or _has_ended(self._committer)):
                    await self._drop_committer()
                connection = self._committer = self._committer or await self.connect()
                with deadline(self._timeout_seconds, connection):
                    yield connection
            except (psycopg.Error, OSError):
                await self._drop_committer()
                raise

    async def listen(self, callbacks: Mapping[Topic, OnRemoteChange]) -> None:
        # Reconnects when a connection fails.
        while True:
            try:
                await self._receive(callbacks)
            except (psycopg.Error, DBAPIError, OSError) as error:
                self.trip(error, self._last_poll_at)
            await asyncio.sleep(RETRY_SECONDS)

    async def _receive(self, callbacks: Mapping[Topic, OnRemoteChange]) -> None:
        """Receive notifications on one connection, until it fails or is from before a renewal."""
        self._last_poll_at = time.monotonic()
        renewals = self._renewals
        connection = await self.connect()
        try:
            heads: Sequence[object] = [None] * len(_TOPICS)
            notified = keeps_session(connection)
            if notified:
                with deadline(self._timeout_seconds, connection):
                    await connection.execute(f"LISTEN {CHANNEL}")
            while self._renewals == renewals:
                heads = await self._poll(connection, callbacks, heads)
                if not notified:
                    await asyncio.sleep(POOLER_POLL_SECONDS)
                    continue
                async for note in connection.notifies(timeout=POLL_SECONDS):
                    topic, _, replica = note.payload.partition(" ")
                    if replica != self.replica:
                        _notify(callbacks, topic)
        finally:
            await connection.close()

    async def _poll(
        self,
        connection: psycopg.AsyncConnection,
        callbacks: Mapping[Topic, OnRemoteChange],
        before: Sequence[object],
    ) -> Sequence[object]:
        """Call the callbacks of topics that have changed since the last poll, at first of all; the new heads."""
        self._last_poll_at, asked_at = time.monotonic(), self._clock_offset.clock()
        with deadline(self._timeout_seconds, connection):
            *heads, database_time = await (await connection.execute(_HEADS)).fetchone() or (None,) * 4
        if database_time is not None:
            self._clock_offset.record(asked_at, database_time, self._clock_offset.clock())
        self.breaker.record_poll()
        for topic, old, new in zip(_TOPICS, before, heads, strict=True):
            if old != new:
                _notify(callbacks, topic)
        return heads

    async def probe(self) -> None:
        # A new connection: those in the pool may hang.
        async with self._translating_errors(probing=True):
            connection = await self.connect()
            try:
                with deadline(self._timeout_seconds, connection):
                    await connection.execute("; ".join(PROBE_STATEMENTS))
            finally:
                await connection.close()
            # Older connections may hang, or turn out to be broken only when they are used.
            await self._drop_committer()
            await self._engine.dispose()

    async def _run(self, engine: AsyncEngine, query: Query[T], seconds: float) -> T:
        for _ in range(MAX_STALLS):
            with suppress(StalledError):
                return await self._run_once(engine, query, seconds)
        raise UnavailableError("This replica was stopped in each of its transactions; try again.", retry_after=1)

    async def _run_once(self, engine: AsyncEngine, query: Query[T], seconds: float) -> T:
        async with (
            self._translating_errors(pooled=True),
            engine.connect() as connection,
            self._with_deadline(seconds, connection),
            connection.begin(),
        ):
            begun = time.monotonic()
            try:
                return await connection.run_sync(query)
            except DBAPIError as error:
                # In a pipeline, as for several rows, the driver loses what the server said before it closed.
                silent = error.connection_invalidated and sqlstate(error) is None
                if silent and self._stall_seconds <= time.monotonic() - begun < seconds:
                    raise StalledError("the transaction was ended before COMMIT") from error
                raise

    @asynccontextmanager
    async def _with_deadline(self, seconds: float, connection: AsyncConnection) -> AsyncIterator[None]:
        driver = driver_connection(await connection.get_raw_connection())
        self._in_flight.add(driver)
        try:
            with deadline(seconds, driver):
                yield
        finally:
            self._in_flight.discard(driver)

    @asynccontextmanager
    async def _translating_errors(self, *, probing: bool = False, pooled: bool = False) -> AsyncIterator[None]:
        """Turn errors of the driver into UnavailableError, and record failure or success in the circuit breaker.

        Raises StalledError where this process was the cause, not the database: nothing of the transaction is committed.
        A lock that a transaction of the pool waits for in vain does not concern the commits of the list.
        """
        if not probing:
            self.breaker.check()
        started_at = time.monotonic()
        try:
            yield
        except PoolTimeoutError:
            raise UnavailableError("The database is overloaded; try again.", retry_after=1) from None
        except (psycopg.Error, DBAPIError, OSError) as error:
            if sqlstate(error) == STALLED:
                raise StalledError("the transaction was ended, as this process was stopped") from error
            if _is_outage(error) and not (pooled and sqlstate(error) == LOCK_NOT_AVAILABLE):
                self.trip(error, started_at)
            else:
                log.warning("the database rejected a statement", reason=driver_message(error))
            raise to_unavailable(error) from error
        if probing or not self.breaker.is_open:
            # During an outage only a probe closes the breaker: an operation from before proves nothing.
            self.breaker.record_success()

    def trip(self, error: Exception, started_at: float) -> None:
        """Open the breaker because an operation that started at `started_at` failed; abort everything in flight."""
        if self.breaker.is_stale_failure(started_at):
            return
        self.breaker.record_failure(error)
        for connection in self._in_flight:
            abort(connection)
        if self._committer is not None:
            abort(self._committer)

    async def _drop_committer(self) -> None:
        connection, self._committer = self._committer, None
        if connection is not None:
            abort(connection)
            await connection.close()


def _is_outage(error: Exception) -> bool:
    """Whether the database has failed, not only one statement."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    failures = psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError, OSError
    return isinstance(cause, failures) or (isinstance(error, DBAPIError) and error.connection_invalidated)


# A commit: one statement, so that no lock is held between round trips.

_COLUMNS: Final = tuple(changes.c.keys())


def _commit_statement(*, automatic: bool) -> Any:
    """Advances the head of the log if it is at revision `after`; otherwise `new` is empty, and nothing is written.

    `automatic`: the changes concern automatic owners, too. Most do not, and their commits are a sixth faster so.
    """
    head = (
        update(log_head)
        .where(log_head.c.revision == bindparam("after"), log_head.c.history == bindparam("history"))
        .values(revision=bindparam("last"))
        .returning(log_head.c.revision)
        .cte("head")
    )
    new = _given_rows(changes, head).cte("new")
    logged = insert(changes).from_select(list(_COLUMNS), select(new)).cte("logged")
    latest = select(new).ext(postgresql.distinct_on(new.c.node_id))
    last = latest.order_by(new.c.node_id, new.c.revision.desc()).cte("last")
    frees = frees_node(last.c.type)
    blocks = select(*(last.c[name] for name in LIST_COLUMNS.values())).where(not_(frees))
    listed = replace_rows(postgresql.insert(blocked_nodes).from_select(list(LIST_COLUMNS), blocks)).cte("listed")
    freed_ids = select(last.c.node_id).where(frees)
    freed = delete(blocked_nodes).where(blocked_nodes.c.id.in_(freed_ids)).cte("freed")
    notify = func.pg_notify(CHANNEL, bindparam("note", type_=Text))
    written = [logged, listed, freed]
    if automatic:
        written += [_put_rows(table, head) for table in (automatic_blocks, dismissals)]
        revisions = func.unnest(cast(bindparam("removed", type_=Text), ARRAY(BigInteger)))
        removed = revisions.table_valued("revision").render_derived(name="removed")
        gone = select(removed.c.revision).select_from(removed.join(head, true()))
        written.append(delete(automatic_blocks).where(automatic_blocks.c.revision.in_(gone)).cte("removed_blocks"))
    return select(notify).select_from(head).add_cte(*written)


def _given_rows(table: Table, head: CTE) -> Select[Any]:
    """The rows of this table that the parameters have, an array for each column; none unless the head was advanced."""
    names = table.c.keys()
    arrays = [cast(bindparam(_parameter(table, name), type_=Text), ARRAY(table.c[name].type)) for name in names]
    rows = func.unnest(*arrays).table_valued(*names).render_derived(name=f"rows_of_{table.name}")
    return select(*(rows.c[name] for name in names)).select_from(rows.join(head, true()))


def _put_rows(table: Table, head: CTE) -> CTE:
    """Write these rows in place of those with the same keys."""
    put = postgresql.insert(table).from_select(table.c.keys(), _given_rows(table, head))
    written: CTE = replace_rows(put).cte(f"put_{table.name}")
    return written


def _parameter(table: Table, column: str) -> str:
    return f"{table.name}_{column}"


def _arrays(table: Table, rows: Sequence[Sequence[Any]]) -> dict[str, str]:
    """The parameters of `_given_rows`."""
    columns = zip(*rows, strict=True) if rows else ((),) * len(table.c)
    return {_parameter(table, name): _array(column) for name, column in zip(table.c.keys(), columns, strict=True)}


class _Commit:
    """A commit's statement, and the constants in it."""

    def __init__(self, *, automatic: bool) -> None:
        compiled = _commit_statement(automatic=automatic).compile(dialect=dialect())  # type: ignore[no-untyped-call]
        self.sql = str(compiled)
        self.constants = {name: value for name, value in compiled.params.items() if value is not None}


_COMMIT: Final = _Commit(automatic=False)
_AUTOMATIC_COMMIT: Final = _Commit(automatic=True)


async def _write_changes(
    connection: psycopg.AsyncConnection,
    new: Sequence[Change],
    automatic: CommitRows,
    *,
    after: int,
    history: str,
    note: str,
) -> None:
    """Write the changes, and end the transaction if there is one. Raises StaleError if they do not follow the log."""
    commit = _AUTOMATIC_COMMIT if automatic else _COMMIT
    rows = _arrays(changes, list(map(log_row, new)))
    if automatic:
        rows |= _arrays(automatic_blocks, automatic.blocks) | _arrays(dismissals, automatic.dismissals)
        rows["removed"] = _array(automatic.removed)
    head = {"after": after, "history": history, "last": new[-1].revision, "note": note}
    parameters = {**commit.constants, **rows, **head}
    in_transaction = connection.info.transaction_status != TransactionStatus.IDLE
    if keeps_session(connection) and not in_transaction:
        written = (await connection.execute(commit.sql, parameters)).rowcount
    else:
        # In one message, as others wait: it is not prepared, but saves a round trip.
        begin = "" if in_transaction else f"{begin_statements()};"
        *_, written, _ = await _execute_all(connection, f"{begin} {commit.sql}; COMMIT", parameters)
    if written != 1:
        raise StaleError(f"the log is not at revision {after}")


async def _execute_all(
    connection: psycopg.AsyncConnection, statements: str, parameters: Mapping[str, Any]
) -> list[int]:
    """Execute several statements in one round trip; the number of rows of each."""
    cursor = psycopg.AsyncClientCursor(connection)  # Otherwise several statements cannot have parameters.
    await cursor.execute(statements.encode(), parameters)
    rows = [cursor.rowcount]
    while cursor.nextset():
        rows.append(cursor.rowcount)
    return rows


def _array(values: Sequence[str | int | None]) -> str:
    """A column as an array literal of PostgreSQL: the driver's own conversion would double the time of a commit."""
    if values and values.count(values[0]) == len(values):  # true for most columns of most commits
        return "{" + ",".join([_element(values[0])] * len(values)) + "}"
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: str | int | None) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return "NULL" if value is None else str(value)


async def _check_head(connection: psycopg.AsyncConnection, *, after: int, history: str) -> None:
    """Raises StaleError unless the log is at revision `after` of this history."""
    cursor = await connection.execute("SELECT history, revision FROM log_head")
    if await cursor.fetchone() != (history, after):
        raise StaleError(f"the log is not at revision {after}")


# Following the log: one statement, and so one round trip, on the connection that also commits.


def _tail_statement() -> Any:
    """The head of the log, once for each change from revision `since` on: a single row without one if there is none."""
    rows = select(changes).where(changes.c.revision >= bindparam("since")).order_by(changes.c.revision)
    tail = rows.limit(bindparam("rows")).subquery("tail")
    joined = log_head.join(tail, true(), isouter=True)
    return select(log_head.c.history, log_head.c.revision, *tail.c).select_from(joined).order_by(tail.c.revision)


_TAIL: Final = str(_tail_statement().compile(dialect=dialect()))  # type: ignore[no-untyped-call]


async def _log_tail(connection: psycopg.AsyncConnection, since: int, limit: int) -> LogTail:
    """See queries.log_tail. SQLAlchemy's pool and a REPEATABLE READ transaction would cost four round trips."""
    cursor = connection.cursor(binary=True)
    await cursor.execute(_TAIL, {"since": since, "rows": limit + 1})
    return _as_tail(await cursor.fetchall(), since, limit)


async def _locked_tail(connection: psycopg.AsyncConnection, since: int, limit: int, stall_seconds: float) -> LogTail:
    """Begin a transaction with the log locked, and read the tail, in one round trip."""
    cursor = psycopg.AsyncClientCursor(connection)  # Otherwise several statements cannot have parameters.
    lock = f"{begin_statements(stall_seconds=stall_seconds)}; SELECT FROM log_head FOR UPDATE; {_TAIL}"
    await cursor.execute(lock.encode(), {"since": since, "rows": limit + 1})
    while cursor.nextset():
        pass
    return _as_tail(await cursor.fetchall(), since, limit)


def _as_tail(rows: Sequence[Sequence[Any]], since: int, limit: int) -> LogTail:
    history, revision, *_ = rows[0]
    found = [change_from_values(*values) for _, _, *values in rows if values[0] is not None]
    return LogTail.beginning_at(since, found, history=history, revision=revision, limit=limit)


# The timeline: it changes when a standby is promoted, and after a restore to a point in time.

# The name of a WAL file begins with the timeline. Any user may run these functions, unlike pg_read_file and others.
_TIMELINES: Final = "SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8), timeline FROM log_head"
_NOT_SUPPORTED: Final = psycopg.ProgrammingError, psycopg.NotSupportedError, psycopg.InternalError


async def _unrecorded_timeline(connection: psycopg.AsyncConnection) -> str | None:
    """The server's timeline, eight hex digits, if log_head has another one or none; otherwise None.

    None also on a server that does not report it, such as some managed ones: a change of it is not detected there.
    Raises psycopg.OperationalError on a standby.
    """
    try:
        row = await (await connection.execute(_TIMELINES)).fetchone()
    except _NOT_SUPPORTED:
        return None
    current, recorded = row or (None, None)
    return None if current == recorded else current


def _notify(callbacks: Mapping[Topic, OnRemoteChange], topic: str) -> None:
    """Call the callback of a topic. A replica of a later version may have topics that this one does not know."""
    for known, callback in callbacks.items():
        if known == topic:
            with isolated(f"notification of {topic}"):
                callback()


# Connections: opening them, and deadlines for what runs on them.

CONNECT_TIMEOUT_SECONDS: Final = 2
"""Timeout for connecting to each host in the URL; the minimum that libpq supports."""
FIRST_ANSWER_SECONDS: Final = 10
"""Timeout for the first answer before the start: a pooler accepts connections while the server is away."""
LOCK_TIMEOUT_SECONDS: Final = 2.0
"""How long a replica waits for a lock, and so blocks others that wait for what it has locked itself."""
GRACE_SECONDS: Final = 0.5
"""Time after the deadline to read an answer that arrived while this process itself was paused."""

STALL_SECONDS: Final = 2.0
"""How long a replica that stalls inside a transaction blocks others; then PostgreSQL ends its session."""

ADMIN_STALL_SECONDS: Final = 60.0
"""The same for a migration and the checks before the start: nobody else waits for these."""

SNAPSHOT: Final = "snapshot"
"""Execution option of an engine all of whose queries in a transaction see one state of the database."""


def begin_statements(
    isolation: str = "READ COMMITTED", *, lock_timeout: float | None = None, stall_seconds: float | None = None
) -> str:
    """Begin a transaction that depends on no default of the server, and on nothing that was set in the session.

    - Its isolation level is that, and nothing is acknowledged before it is on disk.
    - It waits for a lock for `lock_timeout` seconds at most.
    - It may stall for `stall_seconds` at most: then PostgreSQL ends its session.
    - Nothing else ends a statement: there are deadlines.
    """
    return f"BEGIN ISOLATION LEVEL {isolation}; {_settings('LOCAL', lock_timeout, stall_seconds)}"


def _settings(scope: str, lock_timeout: float | None = None, stall_seconds: float | None = None) -> str:
    limits = {
        "lock_timeout": LOCK_TIMEOUT_SECONDS if lock_timeout is None else lock_timeout,
        "idle_in_transaction_session_timeout": STALL_SECONDS if stall_seconds is None else stall_seconds,
    }
    statements = [f"SET {scope} {name} = {max(1, round(1000 * seconds))}" for name, seconds in limits.items()]
    is_local = scope == "LOCAL"
    on_disk = (
        f"SELECT set_config('synchronous_commit', 'on', {is_local}) WHERE current_setting('synchronous_commit') = 'off'"
    )
    unlimited = (  # This timeout is new in PostgreSQL 17.
        f"SET {scope} statement_timeout = 0; SELECT set_config('transaction_timeout', '0', {is_local})"
        " WHERE current_setting('transaction_timeout', true) <> '0'"
    )
    # Otherwise a NULL in the arrays of a commit would be the text "NULL".
    nulls = f"SET {scope} array_nulls = on"
    return "; ".join([*statements, unlimited, nulls, on_disk])


def begin_transactions(engine: Engine, lock_timeout: float | None = None, stall_seconds: float | None = None) -> None:
    """Let each transaction of the engine begin with `begin_statements`."""
    plain, snapshot = (
        begin_statements(level, lock_timeout=lock_timeout, stall_seconds=stall_seconds)
        for level in ("READ COMMITTED", "REPEATABLE READ")
    )

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(snapshot if connection.get_execution_options().get(SNAPSHOT) else plain)


def keeps_session(connection: psycopg.Connection | psycopg.AsyncConnection) -> bool:
    """Whether one session of the server belongs to the connection: settings and LISTEN last, statements are prepared.

    Behind a pooler such as PgBouncer each transaction may run in another session.
    """
    return connection.prepare_threshold is not None


# For statements without a transaction; and how soon the server notices that a client is lost.
_SESSION_SETTINGS: Final = """
SET default_transaction_isolation = 'read committed';
SET tcp_keepalives_idle = 20;
SET tcp_keepalives_interval = 5;
SET tcp_keepalives_count = 3;
"""


def connect(url: str) -> psycopg.Connection:
    """A blocking connection with autocommit, for use before the start.

    Raises psycopg.Error, also if the encoding is not UTF8, or if there is no answer within FIRST_ANSWER_SECONDS.
    """
    connection = psycopg.connect(**_arguments(url))
    if (encoding := connection.info.parameter_status("server_encoding")) != "UTF8":
        connection.close()
        raise psycopg.NotSupportedError(f"its encoding is {encoding}")
    timer = Timer(FIRST_ANSWER_SECONDS, abort, [connection])
    timer.start()
    try:
        [pid] = connection.execute("SELECT pg_backend_pid()").fetchone() or (None,)
    except psycopg.Error as error:
        connection.close()
        if timer.finished.is_set():
            raise psycopg.OperationalError(f"no answer within {FIRST_ANSWER_SECONDS} s") from error
        raise
    finally:
        timer.cancel()
    if pid != connection.info.backend_pid:
        connection.prepare_threshold = None  # The connection is to a pooler: see keeps_session.
    return connection


async def connect_async(url: str) -> psycopg.AsyncConnection:
    """A connection with autocommit for the event loop.

    Raises psycopg.Error, or TimeoutError if the server stalls after the login.
    """
    arguments = _arguments(url)
    connection = await psycopg.AsyncConnection.connect(**arguments)
    try:
        # What the URL allows for connecting, it also allows for the first answer.
        with deadline(timeout_from_conninfo(arguments), connection):
            [pid] = await (await connection.execute("SELECT pg_backend_pid()")).fetchone() or (None,)
            if pid != connection.info.backend_pid:
                connection.prepare_threshold = None  # As above.
            else:
                await connection.execute(f"{_SESSION_SETTINGS} {_settings('SESSION')}".encode())
    except BaseException:
        await connection.close()
        raise
    return connection


def _arguments(url: str) -> dict[str, Any]:
    url_parameters = psycopg.conninfo.conninfo_to_dict(url)
    # Among several hosts libpq finds the primary, also after a standby was promoted.
    defaults = {
        "connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "target_session_attrs": "read-write",
        "application_name": "blocklist",
        "client_encoding": "UTF8",
        # A firewall forgets a connection that is idle for longer: the next statement would wait for an answer.
        "keepalives_idle": 20,
        "keepalives_interval": 5,
        "keepalives_count": 3,
    }
    return {**defaults, **url_parameters, "autocommit": True}


def _has_ended(connection: psycopg.AsyncConnection) -> bool:
    """Whether the other side has ended this connection while it was idle: an idle one has nothing to be read.

    Servers (idle_session_timeout), poolers and proxies do so. In a transaction it is False: its error says more.
    """
    if connection.closed or connection.info.transaction_status != TransactionStatus.IDLE:
        return connection.closed
    waiting = poll()
    waiting.register(connection.fileno(), POLLIN)
    return bool(waiting.poll(0))


def _replace_if_ended(_: object, record: ConnectionPoolEntry, __: object) -> None:
    """Let SQLAlchemy's pool open another connection in place of one that has ended."""
    driver: Any = record.driver_connection
    if _has_ended(driver):
        raise DisconnectionError


@contextmanager
def deadline(seconds: float, connection: psycopg.AsyncConnection) -> Iterator[None]:
    """Abort the connection, and raise TimeoutError, if the block takes longer than this."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    timers: list[asyncio.TimerHandle] = []

    def expire() -> None:
        timers.append(loop.call_later(GRACE_SECONDS, abort, connection))

    timers.append(loop.call_at(end, expire))
    try:
        yield
    except (psycopg.Error, DBAPIError):
        if loop.time() < end:
            raise
        # The error of a connection that was aborted here would blame the server.
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    finally:
        for timer in timers:
            timer.cancel()


def abort(connection: psycopg.Connection | psycopg.AsyncConnection) -> None:
    """Make operations that wait on this connection fail now.

    It shuts down the socket: psycopg's cancel would send a request to the unresponsive server, and wait for it.
    """
    with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.fileno())) as sock:
        sock.shutdown(socket.SHUT_RDWR)


def driver_connection(raw: Any) -> psycopg.AsyncConnection:
    """The psycopg connection below a connection of SQLAlchemy's pool."""
    connection: psycopg.AsyncConnection = raw.driver_connection
    return connection
