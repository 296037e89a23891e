"""Connections to PostgreSQL, as everything here opens and bounds them."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, cast

import psycopg
from sqlalchemy.exc import DBAPIError

CONNECT_TIMEOUT_SECONDS: Final = 2
"""How long a connection may take to begin, for each host that the URL names; libpq knows no less."""
GRACE_SECONDS: Final = 0.5
"""Where this process stood still itself, the answer may have come long ago: so long it has to read it."""

# A replica that stalls in the middle of a transaction holds up nobody for long, and one that has given up waiting for a
# lock leaves the queue; nothing is acknowledged before it is on the disk, whatever the server does by default; a change
# of isolation there changes nothing here.
_SESSION_SETTINGS: Final = """
SET idle_in_transaction_session_timeout = '2s';
SET lock_timeout = '2s';
SET default_transaction_isolation = 'read committed';
SET tcp_keepalives_idle = 20;
SET tcp_keepalives_interval = 5;
SET tcp_keepalives_count = 3;
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off';
"""


def connect(url: str) -> psycopg.Connection:
    """A connection that blocks, for the start. Raises psycopg.Error, also where not every cause could be kept."""
    connection = psycopg.connect(**_arguments(url))
    if (encoding := connection.info.parameter_status("server_encoding")) != "UTF8":
        connection.close()
        raise psycopg.NotSupportedError(f"its encoding is {encoding}")
    try:
        connection.execute(_SESSION_SETTINGS)
        connection.autocommit = False
    except psycopg.Error:
        connection.close()
        raise
    return connection


async def connect_async(url: str, *, autocommit: bool = False) -> psycopg.AsyncConnection:
    """A connection for the event loop. Raises psycopg.Error, or TimeoutError if it goes silent after the login."""
    connection = await psycopg.AsyncConnection.connect(**_arguments(url))
    try:
        with deadline(CONNECT_TIMEOUT_SECONDS, connection):
            await connection.execute(_SESSION_SETTINGS)
            await connection.set_autocommit(autocommit)
    except BaseException:
        await connection.close()
        raise
    return connection


def _arguments(url: str) -> dict[str, Any]:
    url_parameters = psycopg.conninfo.conninfo_to_dict(url)
    # Of several hosts the one that takes writes: a standby that was promoted is found by itself.
    defaults = {
        "connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "target_session_attrs": "read-write",
        "application_name": "blocklist",
        "client_encoding": "UTF8",
    }
    return {**defaults, **url_parameters, "autocommit": True}


@contextmanager
def deadline(seconds: float, connection: psycopg.AsyncConnection) -> Iterator[None]:
    """Whatever is done with the connection fails when it takes longer than this. Raises TimeoutError."""
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
        # What is said of a connection that was severed here would accuse the server.
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    finally:
        for timer in timers:
            timer.cancel()


def abort(connection: psycopg.AsyncConnection) -> None:
    """Make whoever waits for the server on this connection fail now.

    Not by cancelling: that would ask the server, which says nothing, to stop, and wait for it.
    """
    with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.fileno())) as sock:
        sock.shutdown(socket.SHUT_RDWR)


def driver_connection(raw: Any) -> psycopg.AsyncConnection:
    """The driver's own connection below a connection of SQLAlchemy's pool."""
    return cast("psycopg.AsyncConnection", raw.driver_connection)
