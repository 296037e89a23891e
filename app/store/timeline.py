"""PostgreSQL's timeline: it changes when a standby is promoted, and after a restore to a point in time."""

from __future__ import annotations

from typing import Final

import psycopg

# The name of a WAL file begins with the timeline. Any user may run these functions, unlike pg_read_file and others.
_TIMELINES: Final = "SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8), timeline FROM log_head"
_NOT_SUPPORTED: Final = psycopg.ProgrammingError, psycopg.NotSupportedError, psycopg.InternalError


async def unrecorded_timeline(connection: psycopg.AsyncConnection) -> str | None:
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
