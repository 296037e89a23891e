"""Store: the interface of the database to the rest of the service."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from sqlalchemy.engine import Connection

from app.store import history_queries, listeners, queries, sqlite, tokens
from app.store.database import DatabaseBackend, Topic
from app.store.history_queries import ALL, ChangeFilter, PastList
from app.store.listener_store import ListenerStore
from app.store.logged_names import LoggedNames
from app.store.queries import LoadedState, LogTail
from app.store.schema_check import translating_driver_errors
from app.store.sql_engines import make_blocking_engine
from app.store.sqlite import SqliteDatabase
from app.store.sqlite_file import SqliteFile
from app.store.tokens import TokenStore, valid_token_exists
from app.store.urls import is_postgresql
from blocklist.model.changes import Change
from blocklist.model.errors import CompactedError
from blocklist.model.host_matching import Aliases, no_aliases

MAX_TAIL: Final = 1000
"""Maximum number of changes that a replica reads from the log at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangePage:
    """Changes from the log; `compacted` is the revision of the last change that had been removed from it."""

    changes: list[Change]
    compacted: int


class Store:
    """Every method raises UnavailableError if the database cannot be used."""

    def __init__(self, backend: DatabaseBackend, replica: str) -> None:
        self.replicated = backend.replicated
        self.outage_seconds = backend.breaker.open_seconds
        self.outdated_seconds = backend.breaker.outdated_seconds
        self.record_up_to_date = backend.breaker.record_up_to_date
        self.clock_offset = backend.clock_offset
        self._check = backend.breaker.check
        self.close = backend.close
        self.probe = backend.probe
        self.announce_contention = backend.announce_contention
        self.listen = backend.listen
        self.replica = replica
        self._read = backend.read
        self._write = backend.write
        self._commit = backend.commit
        self._tail = backend.tail
        self._open = backend.open
        self._names = LoggedNames(backend.read, no_aliases)

    async def open(self) -> LoadedState:
        """Lock a SQLite file, and read the list. Raises SchemaError if another process uses the file.

        Raises UnreadableRowError if there is a row that the service could not use: it would skip that later.
        """
        await self._open()
        await self._read(_check_rows)
        return await self.load()

    async def load(self) -> LoadedState:
        """The whole list."""
        return await self._read(queries.load)

    def use_aliases(self, aliases: Aliases) -> None:
        """From now on, find a node in the log under what else its machine is called."""
        self._names = LoggedNames(self._read, aliases)

    @property
    def listeners(self) -> ListenerStore:
        """The part for listeners and replicas."""
        return ListenerStore(self._read, partial(self._write, topic=Topic.LISTENERS), self._write, self.replica)

    @property
    def tokens(self) -> TokenStore:
        """The part for tokens and sessions."""
        return TokenStore(self._read, partial(self._write, topic=Topic.TOKENS), shared=self.replicated)

    async def commit(self, changes: Sequence[Change], *, after: int, history: str) -> None:
        """Write the changes durably, all or none. Raises queries.StaleError if they do not follow the log."""
        await self._commit(changes, after=after, history=history)

    async def tail(self, since: int) -> LogTail:
        """The end of the log from revision `since` on, with at most MAX_TAIL changes."""
        return await self._tail(since, MAX_TAIL)

    async def renew_history(self, lost: str) -> None:
        """Replace the history `lost` by a new one, unless another replica has done so."""
        await self._write(lambda connection: queries.renew_history(connection, secrets.token_hex(4), lost))

    async def changes_page(self, since: int, limit: int, criteria: ChangeFilter = ALL) -> ChangePage:
        """At most `limit` changes after revision `since` that match, in order."""
        criteria = await self._with_other_names(criteria)
        return await self._read(lambda connection: _page(connection, since, limit, criteria))

    async def latest_changes(
        self, limit: int, *, node_id: str | None = None, before: int | None = None
    ) -> list[Change]:
        """At most `limit` changes, the newest first; optionally of one node, or before a revision."""
        criteria = await self._with_other_names(ChangeFilter(node_id=node_id))
        return await self._read(lambda connection: history_queries.latest_changes(connection, criteria, before, limit))

    async def list_at(self, timestamp: int) -> PastList:
        """The list at a time (Unix ms) in the past. Raises CompactedError if the log does not reach back to it."""
        return await self._read(lambda connection: _list_at(connection, timestamp))

    async def compact(self, *, keep_from: int, older_than: int, always_keep_from: int, limit: int) -> int:
        """Remove old changes from the log (see queries.compactable); return how many."""
        rule = partial(
            queries.compactable,
            keep_from=keep_from,
            older_than=older_than,
            always_keep_from=always_keep_from,
            limit=limit,
        )
        return await self._write(lambda connection: _compact(connection, rule(connection)))

    async def changes(self, since: int, limit: int = 1000) -> list[Change]:
        """At most `limit` changes after revision `since`, in order."""
        return (await self.changes_page(since, limit)).changes

    async def last_change(self, node_id: str) -> Change | None:
        """The last change of a node that is in the log, under any name of its machine."""
        others = await self._names.others(node_id)
        return await self._read(lambda connection: queries.last_change(connection, node_id, others))

    async def _with_other_names(self, criteria: ChangeFilter) -> ChangeFilter:
        if criteria.node_id is None:
            return criteria
        return replace(criteria, other_names=await self._names.others(criteria.node_id))

    async def ping(self) -> None:
        """Check that the database answers, and that it accepted the last write."""
        self._check()
        await self._read(queries.compacted_revision)


def _check_rows(connection: Connection) -> None:
    queries.check_head(connection)
    listeners.check(connection)
    tokens.check(connection)


def _page(connection: Connection, since: int, limit: int, criteria: ChangeFilter) -> ChangePage:
    compacted = queries.compacted_revision(connection)
    return ChangePage(changes=history_queries.changes_matching(connection, criteria, since, limit), compacted=compacted)


def _list_at(connection: Connection, timestamp: int) -> PastList:
    oldest = history_queries.oldest_change(connection)
    if oldest is not None and timestamp < oldest[1]:
        raise CompactedError(
            f"The list at {timestamp} is no longer known: the log begins at {oldest[1]}, with revision {oldest[0]}.",
            oldest=oldest[0],
        )
    return history_queries.list_at(connection, timestamp)


def _compact(connection: Connection, removable: tuple[int, int] | None) -> int:
    if removable is None or not queries.try_compaction_lock(connection):
        return 0
    number, last = removable
    history_queries.advance_base(connection, last)
    queries.delete_changes(connection, last)
    return number


def make_store(url: str, replica: str, timeout_seconds: float, clock: Callable[[], int]) -> Store:
    """The store for a database URL. `timeout_seconds` limits a transaction on PostgreSQL; `clock` returns Unix ms."""
    if not is_postgresql(url):
        return Store(SqliteDatabase(url), replica)
    from app.store.postgresql import PostgresqlDatabase  # noqa: PLC0415 - loads the driver only if it is used

    return Store(PostgresqlDatabase(url, replica, timeout_seconds, clock), replica)


def renew_history(url: str) -> str:
    """Start a new history, and return it. Blocks. Raises SchemaError if a service uses the SQLite file."""
    new = secrets.token_hex(4)
    if is_postgresql(url):
        with translating_driver_errors(url), make_blocking_engine(url).begin() as connection:
            queries.renew_history(connection, new)
    else:
        sqlite.renew_history(url, new)
    return new


def check_not_in_use(url: str) -> None:
    """Raises SchemaError if a service uses the SQLite file."""
    if not is_postgresql(url):
        SqliteFile(url).close()


def has_valid_token(url: str, now: int) -> bool:
    """Whether there is a token that is valid `now` (Unix ms). Blocks."""
    with translating_driver_errors(url), make_blocking_engine(url).begin() as connection:
        return valid_token_exists(connection, now)
