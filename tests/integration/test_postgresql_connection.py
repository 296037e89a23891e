"""Connections to PostgreSQL: what bounds them, and what does not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from app.store.postgresql_connection import at_most, connect_async
from tests.postgres import PostgresServer


@pytest.fixture
def url(postgres: PostgresServer, tmp_path: Path) -> Iterator[str]:
    yield postgres.create(tmp_path.name)
    postgres.drop(tmp_path.name)


def test_an_answer_that_does_not_come_is_not_waited_for(url: str) -> None:
    async def ask() -> None:
        connection = await connect_async(url, autocommit=True)
        with pytest.raises(TimeoutError, match=r"no answer within 0\.1 s"), at_most(0.1, connection):
            await connection.execute("SELECT pg_sleep(60)")
        with pytest.raises(psycopg.OperationalError):
            await connection.execute("SELECT 1")
        await connection.close()

    asyncio.run(ask())


def test_an_answer_that_came_while_the_process_stood_still_is_taken(url: str) -> None:
    async def ask() -> None:
        connection = await connect_async(url, autocommit=True)
        with at_most(0.1, connection):
            asked = asyncio.create_task(connection.execute("SELECT 1"))
            await asyncio.sleep(0)
            # As a process that is stopped, or gets no turn on a busy machine.
            time.sleep(0.5)  # noqa: ASYNC251
            assert await (await asked).fetchone() == (1,)
        await connection.execute("SELECT 1")
        await connection.close()

    asyncio.run(ask())
