"""PostgreSQL's timeline is kept beside the head of the log: another one means that changes may be lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.main import unix_millis
from app.store.database import make_store
from tests.integration.databases import PostgresDatabases
from tests.postgres import PostgresServer, database_name

REPLICAS = 8


class Database:
    """A migrated database, and its server."""

    def __init__(self, server: PostgresServer, url: str) -> None:
        self.url = url
        self._server = server
        self._name = database_name(url)

    def execute(self, sql: str) -> list[tuple[object, ...]]:
        return self._server.execute(sql, self._name)

    def timeline(self) -> object:
        return self.execute("SELECT timeline FROM log_head")[0][0]

    def history(self) -> object:
        return self.execute("SELECT history FROM log_head")[0][0]

    def listeners_version(self) -> int:
        """Replicas read the listeners again when it changes."""
        return int(str(self.execute("SELECT version FROM versions WHERE topic = 'listeners'")[0][0]))

    def open_stores(self, count: int = 1) -> set[str]:
        """Open the store as this number of replicas at once; return the histories that they load."""

        async def open_one(number: int) -> str:
            store = make_store(self.url, f"replica{number}", 30.0, unix_millis)
            history = (await store.open()).snapshot.history
            await store.close()
            return history

        async def open_all() -> set[str]:
            return set(await asyncio.gather(*(open_one(number) for number in range(count))))

        return asyncio.run(open_all())


@pytest.fixture
def database(postgres: PostgresServer, tmp_path: Path) -> Iterator[Database]:
    databases = PostgresDatabases(postgres)
    yield Database(postgres, databases.url_for(tmp_path))
    databases.drop(tmp_path)


def test_an_unknown_timeline_is_recorded_in_the_same_history(database: Database) -> None:
    history = database.history()
    assert database.timeline() is None
    assert database.open_stores() == {history}
    assert database.timeline() == "00000001"
    assert database.open_stores() == {history}


def test_replicas_that_find_another_timeline_converge_on_one_new_history(database: Database) -> None:
    history = database.history()
    database.execute("UPDATE log_head SET timeline = '0000BEEF'")
    assert database.open_stores(REPLICAS) == {database.history()} != {history}
    assert database.timeline() == "00000001"


def test_after_another_timeline_replicas_read_the_listeners_again(database: Database) -> None:
    version = database.listeners_version()
    database.execute("UPDATE log_head SET timeline = '0000BEEF'")
    database.open_stores()
    assert database.listeners_version() > version


def test_a_server_that_does_not_report_its_timeline_is_used_as_it_is(database: Database) -> None:
    history = database.history()
    database.execute("UPDATE log_head SET timeline = '0000BEEF'")
    database.execute("REVOKE EXECUTE ON FUNCTION pg_current_wal_lsn() FROM PUBLIC")
    assert database.open_stores() == {history}
    assert database.timeline() == "0000BEEF"
