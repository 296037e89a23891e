"""PostgreSQL servers that cannot be used, or reject changes: the message has the reason, not the password."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest

from app.store.database import MIGRATION_LOCK, SchemaError, check_schema, migrate, schema_revision
from tests.integration.bodies import all_changes, block, current_list
from tests.integration.databases import Databases
from tests.integration.problems import problem_of
from tests.integration.process import ROOT, ServiceProcess, environment, free_port, run_app, wait_until
from tests.integration.test_start import assert_refused
from tests.migrations.rows import SCHEMAS
from tests.postgres import PASSWORD, USER, PostgresServer

DISK_FULL_TRIGGER = """
CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    RAISE EXCEPTION 'could not extend file "base/5/1259": No space left on device' USING ERRCODE = 'disk_full';
END $$;
CREATE TRIGGER no_room BEFORE INSERT ON changes EXECUTE FUNCTION no_room()
"""


@pytest.fixture
def url(postgres: PostgresServer, tmp_path: Path) -> Iterator[str]:
    """An empty database."""
    yield postgres.create(tmp_path.name)
    postgres.drop(tmp_path.name)


def create_version_table(postgres: PostgresServer, database: str) -> None:
    """As a migration does before it creates the first table."""
    postgres.execute("CREATE TABLE alembic_version (version_num varchar(32) PRIMARY KEY)", database)
    postgres.execute(f"ALTER TABLE alembic_version OWNER TO {USER}", database)


def refusal_message(url: str) -> str:
    """The message with which both the service and a migration reject the database."""
    with pytest.raises(SchemaError) as served:
        check_schema(url)
    with pytest.raises(SchemaError) as migrated:
        migrate(url)
    said = str(served.value)
    assert str(migrated.value) == said
    assert PASSWORD not in said
    return said


class TestConnecting:
    def test_no_server_listens(self) -> None:
        said = refusal_message(f"postgresql://anna:{PASSWORD}@127.0.0.1:{free_port()}/blocklist")
        assert "refused" in said
        assert "that the server is running" in said

    def test_none_of_several_servers_answers(self) -> None:
        ports = sorted((free_port(), free_port()))
        said = refusal_message(f"postgresql://anna:{PASSWORD}@127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}/blocklist")
        assert all(f"127.0.0.1:{port}" in said for port in ports)

    def test_a_wrong_password(self, postgres: PostgresServer) -> None:
        assert "rejects the login" in refusal_message(postgres.url("postgres", password=f"not-{PASSWORD}"))

    def test_an_unknown_user(self, postgres: PostgresServer) -> None:
        assert "rejects the login" in refusal_message(postgres.url("postgres", user="nobody"))

    def test_an_unknown_database(self, postgres: PostgresServer) -> None:
        assert "CREATE DATABASE" in refusal_message(postgres.url("nowhere"))

    def test_a_read_only_database(self, postgres: PostgresServer, url: str, tmp_path: Path) -> None:
        postgres.execute(f'ALTER DATABASE "{tmp_path.name}" SET default_transaction_read_only = on')
        assert "standby" in refusal_message(url)

    def test_no_free_connection(self, postgres: PostgresServer, url: str, tmp_path: Path) -> None:
        postgres.execute(f'ALTER DATABASE "{tmp_path.name}" CONNECTION LIMIT 1')
        with closing(psycopg.connect(url)):
            assert "max_connections" in refusal_message(url)

    def test_an_encoding_other_than_utf8(self, postgres: PostgresServer, tmp_path: Path) -> None:
        name = f"{tmp_path.name}-latin"
        postgres.execute(f"CREATE DATABASE \"{name}\" TEMPLATE template0 ENCODING 'LATIN1'")
        assert "UTF8" in refusal_message(postgres.url(name))
        postgres.drop(name)


class TestContent:
    def test_an_empty_database(self, postgres: PostgresServer, url: str, tmp_path: Path) -> None:
        with pytest.raises(SchemaError, match="has no tables yet: run `blocklist migrate`"):
            check_schema(url)
        started = run_app(env=environment(database_url=url, port="0"), forked=False)
        assert started.returncode == 2, "the start migrates no database that replicas share"
        assert postgres.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", tmp_path.name) == [(0,)]
        migrate(url)
        check_schema(url)

    def test_tables_of_another_program(self, postgres: PostgresServer, url: str, tmp_path: Path) -> None:
        postgres.execute("CREATE TABLE customers (id int)", tmp_path.name)
        assert "another program (customers)" in refusal_message(url)
        tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        assert postgres.execute(tables, tmp_path.name) == [("customers",)]

    @pytest.mark.parametrize("schema", ["0001", SCHEMAS[-1], "1975ea83b712"])
    def test_tables_of_another_program_that_uses_alembic(
        self, postgres: PostgresServer, url: str, tmp_path: Path, schema: str
    ) -> None:
        postgres.execute("CREATE TABLE alembic_version (version_num text)", tmp_path.name)
        postgres.execute(f"INSERT INTO alembic_version VALUES ('{schema}')", tmp_path.name)
        postgres.execute(f"ALTER TABLE alembic_version OWNER TO {USER}", tmp_path.name)
        assert "another program (alembic_version)" in refusal_message(url)

    def test_a_newer_schema(self, postgres: PostgresServer, url: str, tmp_path: Path) -> None:
        migrate(url)
        postgres.execute("UPDATE alembic_version SET version_num = 'from_the_future'", tmp_path.name)
        assert "newer" in refusal_message(url)

    def test_a_migration_interrupted_before_the_first_table(
        self, postgres: PostgresServer, url: str, tmp_path: Path
    ) -> None:
        create_version_table(postgres, tmp_path.name)
        migrate(url)
        check_schema(url)

    def test_a_read_only_database_without_tables(self, postgres: PostgresServer, url: str, tmp_path: Path) -> None:
        postgres.execute(f'ALTER DATABASE "{tmp_path.name}" SET default_transaction_read_only = on')
        with pytest.raises(SchemaError, match="read-only"):
            migrate(url)

    def test_a_user_who_does_not_own_the_database(self, postgres: PostgresServer, url: str, tmp_path: Path) -> None:
        postgres.execute(f'ALTER DATABASE "{tmp_path.name}" OWNER TO postgres')
        with pytest.raises(SchemaError, match="owner"):
            migrate(url)

    def test_a_user_who_may_not_create_tables(self, postgres: PostgresServer, url: str, tmp_path: Path) -> None:
        postgres.execute("ALTER SCHEMA public OWNER TO postgres", tmp_path.name)
        with pytest.raises(SchemaError, match="lacks a privilege"):
            migrate(url)


class TestMigrating:
    def test_concurrent_migrations_wait_for_each_other_without_a_timeout(
        self, postgres: PostgresServer, url: str, tmp_path: Path
    ) -> None:
        # The lock is released before the migrations are waited for, also if an assertion fails.
        with ExitStack() as stack, closing(psycopg.connect(url, autocommit=True)) as first:
            first.execute("SELECT pg_advisory_lock(%s)", (MIGRATION_LOCK,))
            command = [sys.executable, "-m", "app", "migrate"]
            env = environment(database_url=url)
            others = [stack.enter_context(subprocess.Popen(command, cwd=ROOT, env=env)) for _ in range(2)]
            # Longer than the lock timeout of other statements.
            waiting = (
                f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{tmp_path.name}' AND wait_event = 'advisory'"
                " AND now() - query_start > interval '3 seconds'"
            )
            wait_until(lambda: postgres.execute(waiting) == [(2,)])
            assert schema_revision(url) is None
            first.execute("SELECT pg_advisory_unlock(%s)", (MIGRATION_LOCK,))
            assert [other.wait(60) for other in others] == [0, 0]
        check_schema(url)

    def test_it_gives_up_a_lock_that_it_does_not_get_and_tries_again(
        self, postgres: PostgresServer, url: str, tmp_path: Path
    ) -> None:
        """Other transactions would queue behind it."""
        create_version_table(postgres, tmp_path.name)

        def is_waiting() -> bool:
            waiting = f"datname = '{tmp_path.name}' AND wait_event = 'relation'"
            return postgres.execute(f"SELECT count(*) FROM pg_stat_activity WHERE {waiting}") == [(1,)]

        with ThreadPoolExecutor(1) as pool:
            with psycopg.connect(url) as other:
                other.execute("LOCK TABLE alembic_version IN SHARE MODE")
                migrating = pool.submit(migrate, url)
                wait_until(is_waiting)
                wait_until(lambda: not is_waiting())
                wait_until(is_waiting)
                assert not migrating.done()
            migrating.result()
        check_schema(url)

    def test_a_current_schema_needs_no_lock(self, url: str) -> None:
        migrate(url)
        with closing(psycopg.connect(url, autocommit=True)) as first:
            first.execute("SELECT pg_advisory_lock(%s)", (MIGRATION_LOCK,))
            migrate(url)


@pytest.mark.databases("postgresql")
class TestRunningService:
    def test_a_full_disk_is_reported_until_there_is_room(
        self, postgres: PostgresServer, databases: Databases, tmp_path: Path
    ) -> None:
        """Small writes still succeed then, which must not count as a recovery."""
        url = databases.url_for(tmp_path)
        with ServiceProcess(tmp_path, database_url=url) as service, service.client() as client:
            client.put("/blocklist/nodes/a", json=block()).raise_for_status()
            before = current_list(client)
            with closing(psycopg.connect(url, autocommit=True)) as server:
                server.execute(DISK_FULL_TRIGGER)
                for _ in range(10):
                    said = problem_of(client.put("/blocklist/nodes/b", json=block()), 503)["detail"]
                    assert "disk of the database is full" in said
                wait_until(lambda: int(client.get("/blocklist").headers["age"]) >= 2)
                assert current_list(client) == before
                assert problem_of(client.get("/readyz"), 503)["detail"] == said
                assert client.get("/healthz").status_code == 200
                server.execute("DROP TRIGGER no_room ON changes")
            wait_until(lambda: "age" not in client.get("/blocklist").headers)
            client.put("/blocklist/nodes/b", json=block()).raise_for_status()
            assert [change["node"]["id"] for change in all_changes(client)] == ["a", "b"]
        lines = [line for line in service.log().splitlines() if "the database is" in line]
        assert len(lines) == 2
        assert "base/5/1259" in lines[0]
        assert "the database is available again" in lines[1]
        databases.drop(tmp_path)

    @pytest.mark.parametrize("command", ["serve", "migrate", "new-history"])
    def test_a_command_without_a_server_fails_with_the_reason(self, command: str) -> None:
        url = f"postgresql://anna:{PASSWORD}@127.0.0.1:{free_port()}/blocklist"
        done = run_app(command, env=environment(database_url=url, port=str(free_port())))
        assert_refused(done, "refused", "BLOCKLIST_DATABASE_URL")
        assert PASSWORD not in done.stderr + done.stdout
