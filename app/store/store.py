"""Store: the database as the rest of the service sees it."""

from __future__ import annotations

import asyncio
import fcntl
import secrets
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Final, TypeVar

from sqlalchemy import make_url
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from app.store import history, listeners, queries
from app.store.engine import make_engine
from app.store.history import ALL, Origin, Past, Wanted
from app.store.listeners import Secret, StoredListener
from app.store.schema import SchemaError
from app.store.tokens import TokenStore, any_valid
from blocklist.changes import Change, Snapshot
from blocklist.errors import CompactedError, UnavailableError
from blocklist.listener import Listener

T = TypeVar("T")
READERS: Final = 2
_DATABASE_ERRORS: Final = (DBAPIError, sqlite3.Error)


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """Changes from the log, and how far back it reached when they were read."""

    changes: list[Change]
    compacted: int


class Store:
    """One SQLite file: one writer, some readers, each in threads of their own so that the event loop never waits.

    Every method raises UnavailableError when the database cannot be used at the moment.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock: IO[str] | None = None
        self._writer = make_engine(url)
        self._reader = make_engine(url, readers=READERS)
        self._connection: Connection | None = None
        self._worked = time.monotonic()
        self._away = False
        self._writing = ThreadPoolExecutor(1, "store-writer")
        self._reading = ThreadPoolExecutor(READERS, "store-reader")

    def open(self) -> Snapshot:
        """Take the database for this process and read the list. Raises SchemaError if another process serves it."""
        self._lock = _take(self._url)
        with self._writer.begin() as connection:
            return queries.load(connection)

    def origins(self) -> dict[str, Origin]:
        """Who changed each node of the list last; for the start, as it waits for the database."""
        with self._writer.begin() as connection:
            return history.origins(connection)

    def close(self) -> None:
        """Wait for what is under way and let go of the database."""
        self._writing.shutdown()
        self._reading.shutdown()
        if self._connection is not None:
            self._connection.close()
        self._writer.dispose()
        self._reader.dispose()
        if self._lock is not None:
            self._lock.close()

    def renew_history(self) -> str:
        """Begin a new history, eight hex digits. Raises SchemaError while a service uses the database."""
        with _take(self._url), self._writer.begin() as connection:
            history = secrets.token_hex(4)
            queries.renew_history(connection, history)
        return history

    def age(self) -> int | None:
        """Whole seconds since the database last took a transaction, while it is away; None while it is there."""
        return int(time.monotonic() - self._worked) if self._away else None

    def check_unused(self) -> None:
        """Raises SchemaError while another service uses the database."""
        _take(self._url).close()

    def any_token(self, now: int) -> bool:
        """Whether there is a token that is valid now (Unix milliseconds). Blocks: for before the start."""
        with self._reader.begin() as connection:
            return any_valid(connection, now)

    @property
    def tokens(self) -> TokenStore:
        """The part that keeps tokens and sessions."""
        return TokenStore(self._read, self._write)

    async def commit(self, changes: Sequence[Change]) -> None:
        """Write the changes durably, all or none. Raises queries.StaleError if they do not follow the log."""
        await self._write(lambda connection: queries.write(connection, changes))

    async def revision(self) -> int:
        """The revision of the last committed change, as the writer sees it."""
        return await self._write(queries.revision)

    async def page(self, since: int, limit: int, wanted: Wanted = ALL) -> Page:
        """At most `limit` changes after `since`, in order."""
        return await self._read(lambda connection: _page(connection, since, limit, wanted))

    async def latest(self, limit: int, *, node_id: str | None = None, before: int | None = None) -> list[Change]:
        """At most `limit` changes, the newest first: of a node, or from before a revision, where these are given."""
        wanted = Wanted(node_id=node_id)
        return await self._read(lambda connection: history.latest_changes(connection, wanted, before, limit))

    async def list_at(self, moment: int) -> Past:
        """The list as it was at `moment` (Unix ms). Raises CompactedError if the log does not reach back so far."""
        return await self._read(lambda connection: _list_at(connection, moment))

    async def compact(self, *, keep_from: int, older_than: int, below: int, limit: int) -> int:
        """Forget some of the oldest changes (see queries.compactable); how many."""
        rule = partial(queries.compactable, keep_from=keep_from, older_than=older_than, below=below, limit=limit)
        return await self._write(lambda connection: _compact(connection, rule(connection)))

    async def changes(self, since: int, limit: int = 1000) -> list[Change]:
        """At most `limit` changes after `since`, in order."""
        return (await self.page(since, limit)).changes

    async def last_change(self, node_id: str) -> Change | None:
        """The last change of a node that is still in the log."""
        return await self._read(lambda connection: queries.last_change(connection, node_id))

    async def listeners(self) -> list[StoredListener]:
        """All listeners."""
        return await self._read(listeners.load)

    async def save_listener(self, listener: Listener, secret: Secret) -> None:
        """Keep a listener that has registered."""
        await self._write(lambda connection: listeners.save(connection, listener, secret))

    async def remove_listeners(self, ids: list[str]) -> None:
        """Forget listeners."""
        await self._write(lambda connection: listeners.remove(connection, ids))

    async def save_acked(self, acked: Mapping[str, int | None]) -> None:
        """Keep how far listeners are."""
        await self._write(lambda connection: listeners.save_acked(connection, acked))

    async def save_lapsed(self, ids: list[str], now: int) -> None:
        """Keep that these leases have lapsed."""
        await self._write(lambda connection: listeners.save_lapsed(connection, ids, now))

    async def ping(self) -> None:
        """Return if the database answers."""
        await self._read(queries.compacted)

    async def _write(self, query: Callable[[Connection], T]) -> T:
        try:
            result = await _in(self._writing, lambda: self._transaction(query))
        except UnavailableError:
            self._away = True
            raise
        self._worked, self._away = time.monotonic(), False
        return result

    def _transaction(self, query: Callable[[Connection], T]) -> T:
        # The writer keeps its connection from one transaction to the next; a new one after any trouble.
        if self._connection is None:
            self._connection = self._writer.connect()
        try:
            with self._connection.begin():
                return query(self._connection)
        except _DATABASE_ERRORS:
            self._connection.close()
            self._connection = None
            raise

    async def _read(self, query: Callable[[Connection], T]) -> T:
        def transaction() -> T:
            with self._reader.begin() as connection:
                return query(connection)

        return await _in(self._reading, transaction)


async def _in(threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    try:
        return await asyncio.get_running_loop().run_in_executor(threads, work)
    except _DATABASE_ERRORS as error:
        reason = error.orig if isinstance(error, DBAPIError) else error
        raise UnavailableError(f"The database is away ({reason}); try again.", retry_after=1) from error


def _page(connection: Connection, since: int, limit: int, wanted: Wanted) -> Page:
    compacted = queries.compacted(connection)
    return Page(changes=history.changes_like(connection, wanted, since, limit), compacted=compacted)


def _list_at(connection: Connection, moment: int) -> Past:
    oldest = history.oldest(connection)
    if oldest is not None and moment < oldest[1]:
        raise CompactedError(
            f"The list as it was at {moment} is gone: the log begins at {oldest[1]} with revision {oldest[0]}.",
            oldest=oldest[0],
        )
    return history.list_at(connection, moment)


def _compact(connection: Connection, going: tuple[int, int] | None) -> int:
    if going is None:
        return 0
    number, last = going
    history.move_base(connection, last)
    queries.compact(connection, last)
    return number


def _take(url: str) -> IO[str]:
    """Lock the file beside the database: two services on one SQLite file would not see each other's changes."""
    path = Path(f"{make_url(url).database}.lock")
    lock = path.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise SchemaError(f"Another blocklist service uses the database {url}: stop it first.") from None
    return lock
