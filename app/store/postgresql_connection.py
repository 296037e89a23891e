"""Connections to PostgreSQL: opening them, and deadlines for what runs on them."""

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
"""Timeout for connecting to each host in the URL; the minimum that libpq supports."""
LOCK_TIMEOUT_SECONDS: Final = 2.0
"""How long a replica waits for a lock, and so blocks others that wait for what it has locked itself."""
GRACE_SECONDS: Final = 0.5
"""Time after the deadline to read an answer that arrived while this process itself was paused."""

# - A replica that stalls inside a transaction blocks others for 2 s at most.
# - Nothing is acknowledged before it is on disk, whatever the server's default for synchronous_commit.
# - The isolation level does not depend on the server's default.
_SESSION_SETTINGS: Final = """
SET idle_in_transaction_session_timeout = '2s';
SET default_transaction_isolation = 'read committed';
SET tcp_keepalives_idle = 20;
SET tcp_keepalives_interval = 5;
SET tcp_keepalives_count = 3;
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off';
"""


def connect(url: str) -> psycopg.Connection:
    """A blocking connection, for use before the start. Raises psycopg.Error, also if the encoding is not UTF8."""
    connection = psycopg.connect(**_arguments(url))
    if (encoding := connection.info.parameter_status("server_encoding")) != "UTF8":
        connection.close()
        raise psycopg.NotSupportedError(f"its encoding is {encoding}")
    try:
        connection.execute(_session_settings(LOCK_TIMEOUT_SECONDS))
        connection.autocommit = False
    except psycopg.Error:
        connection.close()
        raise
    return connection


async def connect_async(
    url: str, *, autocommit: bool = False, lock_timeout: float = LOCK_TIMEOUT_SECONDS
) -> psycopg.AsyncConnection:
    """A connection for the event loop, whose statements wait for a lock for `lock_timeout` seconds at most.

    Raises psycopg.Error, or TimeoutError if the server stalls after the login.
    """
    connection = await psycopg.AsyncConnection.connect(**_arguments(url))
    try:
        with deadline(CONNECT_TIMEOUT_SECONDS, connection):
            await connection.execute(_session_settings(lock_timeout))
            await connection.set_autocommit(autocommit)
    except BaseException:
        await connection.close()
        raise
    return connection


def _session_settings(lock_timeout: float) -> bytes:
    return f"{_SESSION_SETTINGS} SET lock_timeout = {max(1, round(lock_timeout * 1000))}".encode()


def _arguments(url: str) -> dict[str, Any]:
    url_parameters = psycopg.conninfo.conninfo_to_dict(url)
    # Among several hosts libpq finds the primary, also after a standby was promoted.
    defaults = {
        "connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "target_session_attrs": "read-write",
        "application_name": "blocklist",
        "client_encoding": "UTF8",
    }
    return {**defaults, **url_parameters, "autocommit": True}


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


def abort(connection: psycopg.AsyncConnection) -> None:
    """Make operations that wait on this connection fail now.

    It shuts down the socket: psycopg's cancel would send a request to the unresponsive server, and wait for it.
    """
    with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.fileno())) as sock:
        sock.shutdown(socket.SHUT_RDWR)


def driver_connection(raw: Any) -> psycopg.AsyncConnection:
    """The psycopg connection below a connection of SQLAlchemy's pool."""
    return cast("psycopg.AsyncConnection", raw.driver_connection)
