"""Notifications: LISTEN for writes of other replicas, and a poll for missed notifications."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import psycopg
from sqlalchemy.exc import DBAPIError

from app.logs.isolation import isolated
from app.store.clock_offset import ClockOffset
from app.store.database import OnRemoteChange, Topic
from app.store.postgresql_commit import CHANNEL
from app.store.postgresql_connection import deadline

POLL_SECONDS: Final = 0.5
"""Interval of the poll: the maximum delay of a missed notification."""
RETRY_SECONDS: Final = 0.5
_HEADS: Final = """
SELECT history || ':' || revision, (SELECT version FROM versions WHERE topic = 'listeners'),
       (SELECT version FROM versions WHERE topic = 'tokens'),
       CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint) FROM log_head
"""
_TOPICS: Final = (Topic.CHANGES, Topic.LISTENERS, Topic.TOKENS)


class Notifications:
    """Belongs to the event loop.

    `on_lost` is called with the error when the connection fails, and with when it was last used (monotonic clock);
    `on_polled` after each poll.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[psycopg.AsyncConnection]],
        on_lost: Callable[[Exception, float], None],
        on_polled: Callable[[], None],
        clock_offset: ClockOffset,
        replica: str,
        timeout_seconds: float,
    ) -> None:
        self._connect = connect
        self._on_lost = on_lost
        self._on_polled = on_polled
        self._clock_offset = clock_offset
        self._replica = replica
        self._timeout_seconds = timeout_seconds
        self._heads: list[object] = []
        self._last_poll_at = 0.0

    async def listen(self, callbacks: Mapping[Topic, OnRemoteChange]) -> None:
        """See DatabaseBackend.listen. Reconnects when a connection fails."""
        while True:
            try:
                await self._receive(callbacks)
            except (psycopg.Error, DBAPIError, OSError) as error:
                self._on_lost(error, self._last_poll_at)
            await asyncio.sleep(RETRY_SECONDS)

    async def _receive(self, callbacks: Mapping[Topic, OnRemoteChange]) -> None:
        self._last_poll_at = time.monotonic()
        connection = await self._connect()
        try:
            with deadline(self._timeout_seconds, connection):
                await connection.execute(f"LISTEN {CHANNEL}")
            self._heads = []
            while True:
                await self._poll(connection, callbacks)
                async for note in connection.notifies(timeout=POLL_SECONDS):
                    topic, _, replica = note.payload.partition(" ")
                    if replica != self._replica:
                        _notify(callbacks, topic, replica)
        finally:
            await connection.close()

    async def _poll(self, connection: psycopg.AsyncConnection, callbacks: Mapping[Topic, OnRemoteChange]) -> None:
        """Call the callbacks of topics that have changed since the last poll; at first of all."""
        self._last_poll_at, asked_at = time.monotonic(), self._clock_offset.clock()
        with deadline(self._timeout_seconds, connection):
            *heads, database_time = await (await connection.execute(_HEADS)).fetchone() or (None,) * 4
        if database_time is not None:
            self._clock_offset.record(asked_at, database_time, self._clock_offset.clock())
        self._on_polled()
        before, self._heads = self._heads or [None] * len(_TOPICS), heads
        for topic, old, new in zip(_TOPICS, before, heads, strict=True):
            if old != new:
                _notify(callbacks, topic)


def _notify(callbacks: Mapping[Topic, OnRemoteChange], topic: str, replica: str | None = None) -> None:
    """Call the callback of a topic. A replica of a later version may have topics that this one does not know."""
    for known, callback in callbacks.items():
        if known == topic:
            with isolated(f"notification of {topic}"):
                callback(replica)
