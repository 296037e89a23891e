"""BLOCKLIST_DATABASE_URL_FILE on a real PostgreSQL with rotated passwords and users: no restart, no lost change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from app.store.database import migrate
from tests.integration.bodies import block
from tests.integration.process import ServiceProcess, environment, run_app, wait_until
from tests.postgres import USER, PostgresServer

QUICK: Final = {"app.secret_files.CHECK_SECONDS": 0.05}
DATABASE: Final = "rotated"


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """The server, with a migrated database."""
    migrate(postgres.create(DATABASE))
    yield postgres
    postgres.drop(DATABASE)


@contextmanager
def person(server: PostgresServer, name: str, password: str) -> Iterator[str]:
    """The URL of the database for a user who may do what its owner may, as Vault makes them."""
    server.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}' IN ROLE {USER}")
    server.execute(f"ALTER ROLE {name} SET role = {USER}")
    try:
        yield server.url(DATABASE, user=name, password=password)
    finally:
        server.execute(f"DROP ROLE IF EXISTS {name}")


def users(server: PostgresServer) -> set[str]:
    """Who is connected."""
    query = f"SELECT DISTINCT usename FROM pg_stat_activity WHERE datname = '{DATABASE}'"
    return {row[0] for row in server.execute(query)}


def end_connections(server: PostgresServer) -> None:
    server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{DATABASE}'")


def start_with(folder: Path, url: str) -> ServiceProcess:
    file = folder / "url"
    file.write_text(f"{url}\n")
    return ServiceProcess(folder, database_url="", database_url_file=str(file), constants=QUICK)


def test_new_connections_have_the_new_password(database: PostgresServer, tmp_path: Path) -> None:
    with person(database, "app1", "one") as url, start_with(tmp_path, url) as service, service.client() as client:
        assert client.put("/blocklist/nodes/n1", json=block()).status_code == 201
        database.execute("ALTER ROLE app1 PASSWORD 'two'")
        assert client.put("/blocklist/nodes/n2", json=block()).status_code == 201, "its connections go on"
        (tmp_path / "url").write_text(database.url(DATABASE, user="app1", password="two"))
        end_connections(database)
        wait_until(lambda: client.put("/blocklist/nodes/n3", json=block()).status_code in {201, 409})
        assert sorted(client.get("/blocklist").json()) == ["n1", "n2", "n3"]


def test_a_password_that_the_database_has_before_the_file(database: PostgresServer, tmp_path: Path) -> None:
    with person(database, "app1", "one") as url, start_with(tmp_path, url) as service, service.client() as client:
        assert client.put("/blocklist/nodes/n1", json=block()).status_code == 201
        database.execute("ALTER ROLE app1 PASSWORD 'two'")
        end_connections(database)
        wait_until(lambda: client.put("/blocklist/nodes/n2", json=block()).status_code == 503)
        assert "n1" in client.get("/blocklist").json()
        (tmp_path / "url").write_text(database.url(DATABASE, user="app1", password="two"))
        wait_until(lambda: client.put("/blocklist/nodes/n2", json=block()).status_code in {201, 409})


def test_all_connections_are_of_the_new_user_before_the_former_one_is_dropped(
    database: PostgresServer, tmp_path: Path
) -> None:
    with (
        person(database, "app1", "one") as first,
        person(database, "app2", "two") as second,
        start_with(tmp_path, first) as service,
        service.client() as client,
    ):
        assert client.put("/blocklist/nodes/n0", json=block()).status_code == 201
        assert users(database) == {"app1"}
        (tmp_path / "url").write_text(second)
        number = 0

        def renewed() -> bool:
            nonlocal number
            number += 1
            assert client.put(f"/blocklist/nodes/n{number}", json=block()).status_code == 201
            client.get(f"/blocklist/changes?since={number}").raise_for_status()
            return users(database) == {"app2"}

        wait_until(renewed)
        database.execute("DROP ROLE app1")
        assert client.put("/blocklist/nodes/last", json=block()).status_code == 201
        assert len(client.get("/blocklist").json()) == number + 2
        assert "the database is unavailable" not in service.log()


def test_another_database_is_not_used(database: PostgresServer, tmp_path: Path) -> None:
    with start_with(tmp_path, database.url(DATABASE)) as service, service.client() as client:
        (tmp_path / "url").write_text(database.url("postgres"))
        wait_until(lambda: "a secret cannot be renewed" in service.log())
        assert "restart the service" in service.log()
        assert client.put("/blocklist/nodes/n1", json=block()).status_code == 201


def test_commands_read_the_file(database: PostgresServer, tmp_path: Path) -> None:
    (tmp_path / "url").write_text(f"{database.url(DATABASE)}\n")
    given = environment(database_url_file=str(tmp_path / "url"))
    for command in ("check-settings", "migrate", "new-history"):
        done = run_app(command, env=given)
        assert done.returncode == 0, done.stderr
    done = run_app("migrate", "--data", str(tmp_path), env=given)
    assert "--data and BLOCKLIST_DATABASE_URL_FILE both say where the data is" in done.stderr
