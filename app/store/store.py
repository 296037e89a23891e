"""Store: the database, as the rest of the service sees it. SqliteStore and PostgresStore have what differs."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Final, TypeVar

import structlog
from sqlalchemy.engine import Connection

from app.store import listeners, queries, tables, tokens
from app.store.database import CircuitBreaker
from app.store.listeners import ListenerStore
from app.store.queries import ALL, ChangeFilter, LoadedState, LoggedNames, LogTail, PastList, Topic
from app.store.tokens import TokenStore
from blocklist.model.changes import Change
from blocklist.model.errors import CompactedError
from blocklist.model.evidence import NO_BLOCKS, BlockRows
from blocklist.model.names import Aliases, no_aliases

log = structlog.get_logger(__name__)
T = TypeVar("T")


Query = Callable[[Connection], T]
MAX_TAIL: Final = 1000
"""Maximum number of changes that a replica reads from the log at once."""


OnRemoteChange = Callable[[], None]
"""Called when another replica has written on a topic, or may have; must not block."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangePage:
    """Changes from the log; `compacted` is the revision of the last change that had been removed from it."""

    changes: list[Change]
    compacted: int


class Store(ABC):
    """The list and its log; `listeners` and `tokens` are the parts for these. Belongs to the event loop.

    `replicated` is whether other replicas may use the database. `clock_offset` is how far this clock is from the
    database's; None if both are the same. Every method raises UnavailableError if the database cannot be used.
    """

    replicated: ClassVar[bool]

    def __init__(self, replica: str) -> None:
        self.replica = replica
        self.breaker = CircuitBreaker()
        self.clock_offset: ClockOffset | None = None
        self.listeners = ListenerStore(self)
        self.tokens = TokenStore(self)
        self._names = LoggedNames(self, no_aliases)

    @abstractmethod
    async def prepare(self) -> None:
        """Connect. Raises SchemaError if the database allows one process only, and another one uses it."""

    async def renew(self) -> None:  # noqa: B027 - a file has no password
        """The password has changed: from now on use new connections. What runs on the others ends there."""

    @abstractmethod
    async def close(self) -> None:
        """Finish pending operations, and release the database."""

    @abstractmethod
    async def read(self, query: Query[T]) -> T:
        """Run a query on a consistent snapshot of the database."""

    @abstractmethod
    async def write(self, query: Query[T], topic: Topic | None = None) -> T:
        """Run a query in a read-write transaction.

        Transactions on a topic are serialized, and other replicas are notified.
        """

    @abstractmethod
    async def commit(
        self, changes: Sequence[Change], *, after: int, history: str, blocks: BlockRows = NO_BLOCKS
    ) -> None:
        """Write the changes durably, all or none, and what they do to the stored automatic blocks.

        Raises queries.StaleError unless the log is at revision `after` of this history, also for no changes.
        """

    @asynccontextmanager
    async def locked(self, since: int) -> AsyncIterator[LogTail]:
        """The `tail`, while no other replica commits. What this one commits is stored when the block ends.

        Call it from the task that commits, and do little in the block.
        """
        yield await self.tail(since)  # There may be no others.

    @abstractmethod
    async def tail(self, since: int) -> LogTail:
        """The end of the log from revision `since` on, with at most MAX_TAIL changes after it.

        Call it from the task that commits.
        """

    @abstractmethod
    async def probe(self) -> None:
        """Check that the database accepts writes, also during an outage."""

    @abstractmethod
    async def listen(self, callbacks: Mapping[Topic, OnRemoteChange]) -> None:
        """Call a topic's callback whenever another replica may have written on it; returns if there can be none."""

    async def open(self) -> LoadedState:
        """Connect, and read the list. Raises SchemaError if another process uses the SQLite file.

        Raises UnreadableRowError if there is a row that the service could not use: it would skip that later.
        """
        await self.prepare()
        await self.read(_check_rows)
        return await self.load()

    def use_aliases(self, aliases: Aliases) -> None:
        """From now on, find a node in the log under what else its machine is called."""
        self._names = LoggedNames(self, aliases)

    async def ping(self) -> None:
        """Check that the database answers, and that it accepted the last write."""
        self.breaker.check()
        await self.read(queries.compacted_revision)

    async def load(self) -> LoadedState:
        return await self.read(queries.load)

    async def renew_history(self, lost: str) -> None:
        """Replace the history `lost` by a new one, unless another replica has done so."""
        await self.write(lambda connection: queries.renew_history(connection, secrets.token_hex(4), lost))

    async def changes_page(self, since: int, limit: int, criteria: ChangeFilter = ALL) -> ChangePage:
        """At most `limit` changes after revision `since` that match, in order."""
        criteria = await self._with_other_names(criteria)
        return await self.read(lambda connection: _page(connection, since, limit, criteria))

    async def latest_changes(
        self, limit: int, criteria: ChangeFilter = ALL, *, before: int | None = None
    ) -> list[Change]:
        """At most `limit` changes that match, the newest first; optionally before a revision."""
        criteria = await self._with_other_names(criteria)
        return await self.read(lambda connection: queries.latest_changes(connection, criteria, before, limit))

    async def list_at(self, timestamp: int) -> PastList:
        """The list at a time (Unix ms) in the past. Raises CompactedError if the log does not reach back to it."""
        return await self.read(lambda connection: _list_at(connection, timestamp))

    async def compact(self, *, keep_from: int, older_than: int, always_keep_from: int, limit: int, now: int) -> int:
        """Remove old changes from the log (see queries.compactable), and what is too old at `now`; return how many."""
        rule = partial(
            queries.compactable,
            keep_from=keep_from,
            older_than=older_than,
            always_keep_from=always_keep_from,
            limit=limit,
        )
        return await self.write(lambda connection: _compact(connection, rule(connection), now))

    async def changes(self, since: int, limit: int = 1000) -> list[Change]:
        """At most `limit` changes after revision `since`, in order."""
        return (await self.changes_page(since, limit)).changes

    async def last_change(self, node_id: str) -> Change | None:
        """The last change of a node that is in the log, under any name of its machine."""
        others = await self._names.others(node_id)
        return await self.read(lambda connection: queries.last_change(connection, node_id, others))

    async def _with_other_names(self, criteria: ChangeFilter) -> ChangeFilter:
        if criteria.node_id is None:
            return criteria
        return replace(criteria, other_names=await self._names.others(criteria.node_id))


def _check_rows(connection: Connection) -> None:
    queries.check_head(connection)
    listeners.check(connection)
    tokens.check(connection)


def _page(connection: Connection, since: int, limit: int, criteria: ChangeFilter) -> ChangePage:
    compacted = queries.compacted_revision(connection)
    return ChangePage(changes=queries.changes_matching(connection, criteria, since, limit), compacted=compacted)


def _list_at(connection: Connection, timestamp: int) -> PastList:
    oldest = queries.oldest_change(connection)
    if oldest is not None and timestamp < oldest[1]:
        raise CompactedError(
            f"The list at {timestamp} is no longer known: the log begins at {oldest[1]}, with revision {oldest[0]}.",
            oldest=oldest[0],
        )
    return queries.list_at(connection, timestamp)


def _compact(connection: Connection, removable: tuple[int, int] | None, now: int) -> int:
    if not queries.try_compaction_lock(connection):
        return 0
    tables.forget_old(connection, now)
    if removable is None:
        return 0
    number, last = removable
    queries.advance_base(connection, last)
    queries.delete_changes(connection, last)
    return number


MAX_OFFSET_SECONDS: Final = 1.0
"""A larger difference is logged, and shown by `/readyz`: blocks and leases end that much too early or too late."""


class ClockOffset:
    """Measured whenever the database is polled. Belongs to the event loop. `clock` returns Unix ms."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self.seconds: float | None = None

    def record(self, asked_at: int, database_time: int, answered_at: int) -> None:
        """The database's clock showed `database_time` between these times of this machine (all in Unix ms).

        The least difference that explains them counts, so that a slow answer, or a pause, is not taken for one.
        """
        was_large = self.is_large
        ahead, behind = asked_at - database_time, database_time - answered_at
        self.seconds = (max(ahead, 0) - max(behind, 0)) / 1000
        if self.is_large and not was_large:
            log.warning("this machine's clock differs from the database's: check NTP", seconds_ahead=self.seconds)
        elif was_large and not self.is_large:
            log.info("this machine's clock agrees with the database's again", seconds_ahead=self.seconds)

    @property
    def is_large(self) -> bool:
        """Whether it is more than MAX_OFFSET_SECONDS, in either direction."""
        return self.seconds is not None and abs(self.seconds) > MAX_OFFSET_SECONDS
