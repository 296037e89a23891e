"""A PostgreSQL database is migrated while the previous version uses it, without blocking it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import httpx
import psycopg
import pytest

from app.store.schema_check import latest_revision
from app.store.tables import metadata
from tests.integration.bodies import all_changes, block, revision_of
from tests.integration.conftest import Start
from tests.integration.process import environment, run_app, wait_until
from tests.migrations.old_databases import create_with_rows
from tests.postgres import PostgresServer

OLD_SCHEMA: Final = "0006"
"""The migration after it changes tables, with exclusive locks."""
ROUNDS: Final = 10
"""Enough repetitions for the driver to prepare its statements."""


@pytest.fixture
def url(postgres: PostgresServer, empty_database: str) -> str:
    return postgres.url(empty_database)


def schema(postgres: PostgresServer, database: str) -> Any:
    return postgres.execute("SELECT version_num FROM alembic_version", database)


class TestOldVersion:
    @pytest.mark.databases("postgresql")
    def test_the_running_version_tolerates_columns_added_to_every_table(
        self, start: Start, postgres: PostgresServer, tmp_path: Path
    ) -> None:
        admin = tmp_path / "admin.token"
        service = start(auth="tokens", admin_token_file=str(admin))
        name = service.environment()["BLOCKLIST_DATABASE_URL"].rpartition("/")[2]
        with service.client() as client:
            client.headers["Authorization"] = f"Bearer {admin.read_text().strip()}"
            exercise_all_endpoints(client, "before")
            for table in metadata.tables:
                postgres.execute(f"ALTER TABLE {table} ADD COLUMN next_one TEXT NOT NULL DEFAULT 'x'", name)
                postgres.execute(f"CREATE INDEX CONCURRENTLY next_{table} ON {table} (next_one)", name)
            postgres.execute("CREATE TABLE next_table (id INTEGER)", name)
            exercise_all_endpoints(client, "after")
            assert [change["revision"] for change in all_changes(client)] == list(range(1, 4 * ROUNDS + 1))


def exercise_all_endpoints(client: httpx.Client, when: str) -> None:
    """Make the service send all of its statements."""
    for number in range(ROUNDS):
        node = f"/blocklist/nodes/{when}-{number}"
        revision = revision_of(client.put(node, json=block()).raise_for_status())
        client.get(f"/blocklist/changes?since={revision - 1}").raise_for_status()
        client.get(f"{node}/status").raise_for_status()
        client.get("/blocklist?details=true").raise_for_status()
        client.delete(node).raise_for_status()
        listener = f"/listeners/{when}-{number}"
        client.put(listener, json={"role": "JOB_MASTER", "sessionId": "s"}).raise_for_status()
        said = {"sessionId": "s", "ackedRevision": revision, "taskManagers": {f"{when}-{number}": "a"}}
        client.post(f"{listener}/heartbeat", json=said).raise_for_status()
        client.delete(listener).raise_for_status()
        token = client.post("/tokens", json={"name": when, "role": "reader"}).raise_for_status().json()["id"]
        client.delete(f"/tokens/{token}").raise_for_status()


def has_lock_waiters(postgres: PostgresServer, database: str) -> bool:
    """Whether a transaction waits for a lock."""
    sql = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{database}' AND wait_event_type = 'Lock'"
    return postgres.execute(sql) != [(0,)]


def write(url: str, node_id: str) -> None:
    """Access every table that the migration waits for, as any version does."""
    with psycopg.connect(url) as connection:
        connection.execute("SELECT * FROM changes ORDER BY revision")
        connection.execute("UPDATE listeners SET acked = acked")
        connection.execute(
            "INSERT INTO blocked_nodes (id, action, start_ms, end_ms, cause) VALUES (%s, 'MARK_BLOCKED', 1, 2, 'x')",
            (node_id,),
        )


class TestMigration:
    def test_a_long_read_delays_the_migration_but_no_other_transaction(
        self, postgres: PostgresServer, empty_database: str, url: str
    ) -> None:
        create_with_rows(url, OLD_SCHEMA)
        with ThreadPoolExecutor(1) as pool:
            with psycopg.connect(url) as reader:
                reader.execute("SELECT * FROM listeners, changes")
                migrating = pool.submit(run_app, "migrate", env=environment(database_url=url))
                for turn in range(3):
                    wait_until(lambda: has_lock_waiters(postgres, empty_database))
                    write(url, f"turn-{turn}")
                assert not migrating.done()
            done = migrating.result()
        assert done.returncode == 0, done.stderr
        assert schema(postgres, empty_database) == [(latest_revision(),)]
        assert postgres.execute("SELECT count(*) FROM blocked_nodes WHERE id LIKE 'turn-%'", empty_database) == [(3,)]

    def test_concurrent_migrations_run_one_after_another(
        self, postgres: PostgresServer, empty_database: str, url: str
    ) -> None:
        with ThreadPoolExecutor(3) as pool:
            done = list(pool.map(lambda _: run_app("migrate", env=environment(database_url=url)), range(3)))
        assert [one.returncode for one in done] == [0, 0, 0], [one.stderr for one in done]
        assert schema(postgres, empty_database) == [(latest_revision(),)]
