"""PostgreSQL databases that cannot be used: each command fails with the reason, without the password."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tests.integration.process import environment, free_port, run_app
from tests.integration.test_start import assert_refused
from tests.postgres import PASSWORD, USER, PostgresServer

COMMANDS: Final = ("serve", "migrate", "new-history")


def assert_all_refused(url: str, *words: str, commands: Sequence[str] = COMMANDS) -> None:
    for command in commands:
        done = run_app(command, env=environment(database_url=url, port=str(free_port())))
        assert_refused(done, *words)
        assert PASSWORD not in done.stderr + done.stdout


def test_there_is_no_server() -> None:
    assert_all_refused(f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{free_port()}/blocklist", "server")


def test_there_is_no_such_database(postgres: PostgresServer) -> None:
    assert_all_refused(postgres.url("nowhere"), "nowhere", "CREATE DATABASE")


def test_the_password_is_wrong(postgres: PostgresServer, empty_database: str) -> None:
    assert_all_refused(postgres.url(empty_database, password="wrong"), "password")


def test_the_database_is_not_migrated(postgres: PostgresServer, empty_database: str) -> None:
    assert_all_refused(postgres.url(empty_database), "migrate", commands=("serve", "new-history"))
    assert postgres.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", empty_database) == [(0,)]


def test_the_database_belongs_to_another_program(postgres: PostgresServer, empty_database: str) -> None:
    postgres.execute("CREATE TABLE customers (id INTEGER)", empty_database)
    assert_all_refused(postgres.url(empty_database), "another program", "customers")
    assert postgres.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'", empty_database) == [
        ("customers",)
    ]


def test_the_schema_is_newer(postgres: PostgresServer, empty_database: str) -> None:
    assert run_app("migrate", env=environment(database_url=postgres.url(empty_database))).returncode == 0
    postgres.execute("UPDATE alembic_version SET version_num = 'from_the_future'", empty_database)
    assert_all_refused(postgres.url(empty_database), "newer")


def test_the_database_is_read_only(postgres: PostgresServer, empty_database: str) -> None:
    postgres.execute(f'ALTER DATABASE "{empty_database}" SET default_transaction_read_only = on')
    assert_all_refused(postgres.url(empty_database), "read-only", commands=("migrate",))


def test_the_user_may_not_create_tables(postgres: PostgresServer, empty_database: str) -> None:
    postgres.execute(f'ALTER DATABASE "{empty_database}" OWNER TO postgres')
    assert_all_refused(postgres.url(empty_database), "owner", commands=("migrate",))
