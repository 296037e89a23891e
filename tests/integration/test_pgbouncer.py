"""A pooler or a proxy in front of PostgreSQL, and its own defaults. The tests of replicas run behind a pooler, too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from app.main import unix_millis
from app.store import postgresql
from app.store.database import SchemaError, check_schema, make_store, migrate
from tests.faulty_proxy import FaultyProxy
from tests.integration.test_postgresql import blocks
from tests.pgbouncer import pgbouncer
from tests.postgres import PASSWORD, PostgresServer

pytestmark = pytest.mark.anyio

_LEFT = """
SELECT current_setting('lock_timeout'), current_setting('statement_timeout'), current_setting('synchronous_commit'),
       current_setting('idle_in_transaction_session_timeout'), current_setting('default_transaction_isolation'),
       (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_listening_channels()),
       (SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory')
"""


@pytest.fixture
def url(postgres: PostgresServer, empty_database: str) -> Iterator[str]:
    """The URL of an empty database behind a pooler that has a single session of it."""
    with pgbouncer(postgres, "transaction", pool_size=1) as port:
        yield postgres.url(empty_database).replace(f":{postgres.port}/", f":{port}/")


def left_in_session(url: str) -> tuple[object, ...]:
    """Settings, statements, channels and locks of the session."""
    with closing(psycopg.connect(url, autocommit=True, prepare_threshold=None)) as connection:
        return connection.execute(_LEFT).fetchone() or ()


@pytest.mark.parametrize("synchronous", ["on", "off"])
def test_nothing_is_left_in_a_session_and_nothing_is_needed_in_it(
    url: str, postgres: PostgresServer, empty_database: str, synchronous: str
) -> None:
    postgres.execute(f'ALTER DATABASE "{empty_database}" SET synchronous_commit = {synchronous}')
    postgres.execute(f"ALTER DATABASE \"{empty_database}\" SET default_transaction_isolation = 'serializable'")
    before = left_in_session(url)
    migrate(url)

    async def use() -> None:
        store = make_store(url, "here", 5.0, unix_millis)
        history = (await store.open()).snapshot.history
        for after in range(10):  # psycopg prepares a statement when it is executed for the sixth time.
            await store.commit(blocks(f"n{after}", after=after), after=after, history=history)
        async with store.locked(10):
            await store.commit(blocks("locked", after=10), after=10, history=history)
        assert (await store.load()).snapshot.revision == 11
        await store.probe()
        await store.close()

    asyncio.run(use())
    assert left_in_session(url) == before


def test_connections_that_are_ended_while_they_are_idle_fail_nothing(
    postgres: PostgresServer, empty_database: str
) -> None:
    migrate(postgres.url(empty_database))

    async def use(url: str, proxy: FaultyProxy) -> None:
        store = make_store(url, "here", 5.0, unix_millis)
        history = (await store.open()).snapshot.history
        for after in range(3):
            await store.commit(blocks(f"n{after}", after=after), after=after, history=history)
            assert len(await store.changes(0)) == after + 1
            proxy.drop_connections()
            await asyncio.sleep(0.1)
        await store.close()

    with FaultyProxy(postgres.port) as proxy:
        asyncio.run(use(postgres.url(empty_database).replace(f":{postgres.port}/", f":{proxy.port}/"), proxy))


async def test_defaults_of_the_database_change_nothing(postgres: PostgresServer, empty_database: str) -> None:
    url = postgres.url(empty_database)
    postgres.execute(f'ALTER DATABASE "{empty_database}" SET array_nulls = off')
    timeouts = postgres.execute(
        "SELECT name FROM pg_settings WHERE name IN ('statement_timeout', 'transaction_timeout')"
    )
    for (timeout,) in timeouts:
        postgres.execute(f"ALTER DATABASE \"{empty_database}\" SET {timeout} = '30ms'")
    migrate(url)

    store = make_store(url, "here", 5.0, unix_millis)
    history = (await store.open()).snapshot.history
    await store.commit(blocks("n", after=0), after=0, history=history)
    async with store.locked(1):
        await asyncio.sleep(0.1)
        await store.commit(blocks("locked", after=1), after=1, history=history)
    assert (await store.load()).snapshot.revision == 2
    await store.close()


def test_a_pooler_is_told_from_a_server(url: str, postgres: PostgresServer, empty_database: str) -> None:
    with closing(postgresql.connect(url)) as pooled, closing(postgresql.connect(postgres.url(empty_database))) as own:
        assert (postgresql.keeps_session(pooled), postgresql.keeps_session(own)) == (False, True)


@pytest.mark.parametrize(
    ("part", "other", "advice"),
    [
        ("/", "/", None),
        (PASSWORD, "wrong", "check user, password and host in the URL"),
        ("$", "?options=-csearch_path%3Dpublic", "use ALTER ROLE … SET instead"),
    ],
)
def test_what_the_pooler_rejects_is_explained(url: str, part: str, other: str, advice: str | None) -> None:
    migrate(url)
    changed = url + other if part == "$" else url.replace(part, other)
    if advice is None:
        check_schema(changed)
    else:
        with pytest.raises(SchemaError, match=advice):
            check_schema(changed)


def test_a_pooler_without_its_server_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql, "FIRST_ANSWER_SECONDS", 2)
    with PostgresServer() as server, pgbouncer(server, "transaction", pool_size=2) as port:
        url = server.create("away").replace(f":{server.port}/", f":{port}/")
        migrate(url)
        server.stop()
        with pytest.raises(SchemaError, match="Check BLOCKLIST_DATABASE_URL"):
            check_schema(url)


def test_statement_mode_is_refused_at_the_start(postgres: PostgresServer, empty_database: str) -> None:
    with (
        pgbouncer(postgres, "statement", pool_size=2) as port,
        pytest.raises(SchemaError, match="set its pool_mode to transaction or session"),
    ):
        migrate(postgres.url(empty_database).replace(f":{postgres.port}/", f":{port}/"))
