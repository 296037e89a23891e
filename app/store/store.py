"""Store: the database as the rest of the service sees it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Final

from sqlalchemy.engine import Connection

from app.store import history_queries, queries
from app.store.database import Database, Topic
from app.store.engine import make_blocking_engine
from app.store.history_queries import ALL, ChangeFilter, PastList
from app.store.listener_store import ListenerStore
from app.store.queries import LoadedState, LogTail
from app.store.schema_check import translating_driver_errors
from app.store.sqlite import SqliteDatabase, lock_file
from app.store.tokens import TokenStore, valid_token_exists
from app.store.urls import is_postgresql
from blocklist.model.changes import Change
from blocklist.model.errors import CompactedError

MAX_TAIL: Final = 1000
"""Changes that are taken over from the log at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangePage:
    """Changes from the log, and how far back it reached when they were read."""

    changes: list[Change]
    compacted: int


class Store:
    """What is kept, and asked of it. Every method raises UnavailableError when the database cannot be used now."""

    def __init__(self, database: Database, replica: str) -> None:
        self.replicated = database.replicated
        self.outage_seconds = database.breaker.open_seconds
        self._check = database.breaker.check
        self.close = database.close
        self.probe = database.probe
        self.listen = database.listen
        self.replica = replica
        self._read = database.read
        self._write = database.write
        self._commit = database.commit
        self._open = database.open

    async def open(self) -> LoadedState:
        """Take the database for this process and read the list. Raises SchemaError if another process serves it."""
        await self._open()
        return await self.load()

    async def load(self) -> LoadedState:
        """The whole list."""
        return await self._read(queries.load)

    @property
    def listeners(self) -> ListenerStore:
        """The part that keeps listeners, and knows which replicas there are."""
        return ListenerStore(self._read, partial(self._write, topic=Topic.LISTENERS), self._write, self.replica)

    @property
    def tokens(self) -> TokenStore:
        """The part that keeps tokens and sessions."""
        return TokenStore(self._read, partial(self._write, topic=Topic.TOKENS), shared=self.replicated)

    async def commit(self, changes: Sequence[Change], *, after: int, history: str) -> None:
        """Write the changes durably, all or none. Raises queries.StaleError if they do not follow the log."""
        await self._commit(changes, after=after, history=history)

    async def tail(self, since: int) -> LogTail:
        """What the log has from revision `since` on."""
        return await self._read(lambda connection: queries.log_tail(connection, since, MAX_TAIL))

    async def renew_history(self, lost: str) -> None:
        """Begin a new history in the place of the one that was lost, unless somebody has done so."""
        await self._write(lambda connection: queries.renew_history(connection, secrets.token_hex(4), lost))

    async def page(self, since: int, limit: int, criteria: ChangeFilter = ALL) -> ChangePage:
        """At most `limit` changes after `since`, in order."""
        return await self._read(lambda connection: _page(connection, since, limit, criteria))

    async def latest_changes(
        self, limit: int, *, node_id: str | None = None, before: int | None = None
    ) -> list[Change]:
        """At most `limit` changes, the newest first: of a node, or from before a revision, where these are given."""
        wanted = ChangeFilter(node_id=node_id)
        return await self._read(lambda connection: history_queries.latest_changes(connection, wanted, before, limit))

    async def list_at(self, timestamp: int) -> PastList:
        """The list as it was at `moment` (Unix ms). Raises CompactedError if the log does not reach back so far."""
        return await self._read(lambda connection: _list_at(connection, timestamp))

    async def compact(self, *, keep_from: int, older_than: int, always_keep_from: int, limit: int) -> int:
        """Forget some of the oldest changes (see queries.compactable); how many."""
        rule = partial(
            queries.compactable,
            keep_from=keep_from,
            older_than=older_than,
            always_keep_from=always_keep_from,
            limit=limit,
        )
        return await self._write(lambda connection: _compact(connection, rule(connection)))

    async def changes(self, since: int, limit: int = 1000) -> list[Change]:
        """At most `limit` changes after `since`, in order."""
        return (await self.page(since, limit)).changes

    async def last_change(self, node_id: str) -> Change | None:
        """The last change of a node that is still in the log."""
        return await self._read(lambda connection: queries.last_change(connection, node_id))

    async def ping(self) -> None:
        """Return if the database answers, and took the last transaction."""
        self._check()
        await self._read(queries.compacted_revision)


def _page(connection: Connection, since: int, limit: int, criteria: ChangeFilter) -> ChangePage:
    compacted = queries.compacted_revision(connection)
    return ChangePage(changes=history_queries.changes_matching(connection, criteria, since, limit), compacted=compacted)


def _list_at(connection: Connection, timestamp: int) -> PastList:
    oldest = history_queries.oldest_change(connection)
    if oldest is not None and timestamp < oldest[1]:
        raise CompactedError(
            f"The list as it was at {timestamp} is gone: the log begins at {oldest[1]} with revision {oldest[0]}.",
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


def make_store(url: str, replica: str, timeout_seconds: float) -> Store:
    """The store that a URL names, for this replica; a transaction of PostgreSQL takes at most so many seconds."""
    if not is_postgresql(url):
        return Store(SqliteDatabase(url), replica)
    from app.store.postgresql import PostgresqlDatabase  # noqa: PLC0415 - only who uses it loads its driver

    return Store(PostgresqlDatabase(url, replica, timeout_seconds), replica)


def renew_history(url: str) -> str:
    """Begin a new history, eight hex digits; blocks. Raises SchemaError while a service uses a SQLite file."""
    new = secrets.token_hex(4)
    lock = nullcontext() if is_postgresql(url) else lock_file(url)
    with translating_driver_errors(url), lock, make_blocking_engine(url).begin() as connection:
        queries.renew_history(connection, new)
    return new


def check_not_in_use(url: str) -> None:
    """Raises SchemaError while another service uses a SQLite file."""
    if not is_postgresql(url):
        lock_file(url).close()


def has_valid_token(url: str, now: int) -> bool:
    """Whether there is a token that is valid now (Unix milliseconds); blocks: for before the start."""
    with translating_driver_errors(url), make_blocking_engine(url).begin() as connection:
        return valid_token_exists(connection, now)
