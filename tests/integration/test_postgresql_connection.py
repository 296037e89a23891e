"""Deadlines on connections to PostgreSQL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from app.store.postgresql import connect_async, deadline
from tests.postgres import PostgresServer


@pytest.fixture
def url(postgres: PostgresServer, tmp_path: Path) -> Iterator[str]:
    yield postgres.create(tmp_path.name)
    postgres.drop(tmp_path.name)


def test_an_answer_after_the_deadline_is_a_timeout(url: str) -> None:
    async def ask() -> None:
        connection = await connect_async(url)
        with pytest.raises(TimeoutError, match=r"no answer within 0\.1 s"), deadline(0.1, connection):
            await connection.execute("SELECT pg_sleep(60)")
        with pytest.raises(psycopg.OperationalError):
            await connection.execute("SELECT 1")
        await connection.close()

    asyncio.run(ask())


def test_an_answer_received_while_the_process_was_paused_is_used(url: str) -> None:
    async def ask() -> None:
        connection = await connect_async(url)
        with deadline(0.1, connection):
            asked = asyncio.create_task(connection.execute("SELECT 1"))
            await asyncio.sleep(0)
            # As if the process was paused, or the machine was busy.
            time.sleep(0.5)  # noqa: ASYNC251
            assert await (await asked).fetchone() == (1,)
        await connection.execute("SELECT 1")
        await connection.close()

    asyncio.run(ask())
