"""Migrations on SQLite and PostgreSQL: they make the tables, keep each row, and let a running service go on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import httpx
import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from fastapi.testclient import TestClient
from sqlalchemy import inspect
from sqlalchemy.engine import Inspector

from app.auth.authenticator import create_admin_token_file
from app.listeners import replication
from app.main import create_app
from app.settings import Settings
from app.store.database import (
    MIGRATIONS,
    SchemaError,
    check_schema,
    latest_revision,
    make_blocking_engine,
    migrate,
)
from app.store.tables import metadata
from tests.integration.bodies import EVACUATE, MARK, PERMANENT, all_changes, block, current_list, revision_of
from tests.integration.conftest import Start, StartInProcess
from tests.integration.in_process import ManualClock
from tests.integration.process import wait_until
from tests.migrations.rows import ROWS, SCHEMAS, create_with_rows, downgrade, migrate_to, read_rows
from tests.postgres import PostgresServer

HISTORY: Final = "c0ffee07"
NOW: Final = 1_700_003_600_000
"""An hour after the rows were written."""
CAUSE: Final = 'Disk «sdb» – raté, 磁盘 🔥: it\'s "5 %" of C:\\x; -- no'
LIST: Final = {
    "Zz_9.-": (MARK, 1_700_000_014_000, PERMANENT, "x"),
    "old-1": (MARK, 1_700_000_002_000, PERMANENT, "Before the log begins"),
    "old-2": (EVACUATE, 1_700_000_003_000, PERMANENT, "a,b"),
    "worker-1": (EVACUATE, 1_700_000_005_000, PERMANENT, f"{CAUSE},Second"),
}
LOG: Final = [
    (5, "blocked", "worker-1"),
    (6, "narrowed", "old-2"),
    (7, "unblocked", "old-3"),
    (8, "blocked", "10.0.0.7"),
    (9, "unblocked", "10.0.0.7"),
    (10, "blocked", "short"),
    (11, "expired", "short"),
    (12, "blocked", "fe80::1"),
    (13, "merged", "worker-1"),
    (14, "blocked", "Zz_9.-"),
    # It ended while no service was running.
    (15, "expired", "fe80::1"),
]
TOKEN: Final = f"blocklist_0000000a_{'A' * 43}"
NOT_VALID: Final = (f"blocklist_0000000b_{'B' * 43}", f"blocklist_0000000c_{'C' * 43}")
LATER_VERSION: Final = f'''
from alembic import op

revision = "9999_later"
down_revision = "{SCHEMAS[-1]}"


def upgrade():
    op.execute("ALTER TABLE listeners ADD COLUMN later TEXT")
    op.execute("ALTER TABLE changes ADD COLUMN later TEXT")
'''
"""A migration that needs exclusive locks on PostgreSQL."""
ROUNDS: Final = 10
"""Enough repetitions for the driver to prepare its statements."""


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/blocklist.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url(request.getfixturevalue("empty_database"))


@pytest.fixture
def later_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make this process a later version of the service, with one more migration; returns its revision."""
    folder = tmp_path / "migrations"
    shutil.copytree(MIGRATIONS, folder)
    (folder / "versions" / "9999_later.py").write_text(LATER_VERSION)
    monkeypatch.setattr("app.store.database.MIGRATIONS", folder)
    monkeypatch.setattr("app.store.database.MIGRATIONS", folder)
    return "9999_later"


def schema_of(url: str) -> object:
    engine = make_blocking_engine(url)
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one()
    engine.dispose()
    return found


class TestRows:
    def test_there_are_rows_for_every_schema(self) -> None:
        """A new migration needs `tests/migrations/<revision>.sql`: rows as the service writes them then."""
        assert sorted(path.stem for path in ROWS.glob("*.sql")) == SCHEMAS

    @pytest.mark.parametrize("schema", SCHEMAS)
    def test_the_rows_fill_every_column(self, tmp_path: Path, schema: str) -> None:
        url = f"sqlite:///{tmp_path}/blocklist.db"
        create_with_rows(url, schema)
        for table, found in read_rows(url).items():
            assert found, f"nothing is in {table}"
            assert not {f"{table}.{name}" for name in found[0] if all(row[name] is None for row in found)}


@pytest.mark.parametrize("schema", SCHEMAS)
class TestUpgrade:
    def test_no_row_is_lost_or_changed(self, empty: str, schema: str) -> None:
        create_with_rows(empty, schema)
        before = read_rows(empty)
        migrate(empty)
        after = read_rows(empty)
        for table, found in before.items():
            names = found[0].keys()
            kept = [{name: row[name] for name in names} for row in after[table]]
            assert sorted(map(repr, kept)) == sorted(map(repr, found)), table

    def test_the_service_serves_the_migrated_database(
        self, empty: str, schema: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(replication, "FORGET_AFTER_MS", 10_000 * 86_400_000)
        create_with_rows(empty, schema)
        migrate(empty)
        settings = Settings(database_url=empty, auth="tokens")
        with TestClient(create_app(settings, clock=ManualClock(NOW)), base_url="http://localhost") as client:
            client.headers["Authorization"] = f"Bearer {TOKEN}"
            check_list(client)
            check_log(client)
            check_past(client)
            check_listeners(client)
            check_credentials(client)
            answer = client.put("/blocklist/nodes/new", json=block())
            assert (answer.status_code, answer.headers["blocklist-revision"]) == (201, "16")


def check_list(client: TestClient) -> None:
    listed = current_list(client)[1]
    assert {
        node_id: (node["action"], int(node["startTimestamp"]), node["endTimestamp"], node["cause"])
        for node_id, node in listed.items()
    } == LIST
    assert client.get("/blocklist").headers["blocklist-history"] == HISTORY


def check_log(client: TestClient) -> None:
    """Complete from its beginning, with authors and reasons."""
    assert client.get("/blocklist/changes?since=3").json()["oldest"] == 5
    client.get("/blocklist?minRevision=15").raise_for_status()
    log = client.get("/blocklist/changes?since=4").json()["changes"]
    assert [(change["revision"], change["type"], change["node"]["id"]) for change in log] == LOG
    assert log[0]["node"]["cause"] == CAUSE
    assert log[2]["createdBy"] == "Zoë O'Neil"
    assert log[8]["forced"] == "The rack burns; 火"
    detailed = client.get("/blocklist?details=true").json()
    assert (detailed["worker-1"]["createdBy"], detailed["worker-1"]["revision"]) == ("anna", 13)


def check_past(client: TestClient) -> None:
    """Past lists, also with nodes that were blocked before the log begins."""
    assert client.get("/blocklist?at=1700000006500").json().keys() == {"old-1", "old-2", "old-3", "worker-1"}
    assert client.get("/blocklist?at=1700000012500").json().keys() == {"old-1", "old-2", "worker-1", "fe80::1"}


def check_listeners(client: TestClient) -> None:
    """Replaced sessions stay fenced, cursors keep their values."""
    told = {own["id"]: own for own in client.get("/listeners").json()["listeners"]}
    assert {name: (own["state"], own["ackedRevision"]) for name, own in told.items()} == {
        "job-gone": ("lapsed", 3),
        "job-live": ("live", 12),
        "yarn": ("live", 0),
    }
    fenced = client.put("/listeners/job-live", json={"role": "JOB_MASTER", "sessionId": "attempt-1"})
    assert fenced.status_code == 409
    renewed = client.put("/listeners/job-live", json={"role": "JOB_MASTER", "sessionId": "attempt-2"})
    assert (renewed.status_code, renewed.json()["ackedRevision"]) == (200, 12)


def check_credentials(client: TestClient) -> None:
    """Tokens and sessions stay valid or invalid."""
    assert client.get("/whoami").json()["name"] == "anna"
    for token in NOT_VALID:
        assert client.get("/blocklist", headers={"Authorization": f"Bearer {token}"}).status_code == 401
    bearer = client.headers.pop("Authorization")
    for cookie, status in (("live", 200), ("ended", 401)):
        assert client.get("/blocklist", headers={"Cookie": f"blocklist_session={cookie}"}).status_code == status
    client.headers["Authorization"] = bearer


class TestSchema:
    def test_migrations_create_the_tables_of_the_metadata(self, empty: str) -> None:
        migrate(empty)
        engine = make_blocking_engine(empty)
        with engine.connect() as connection:
            found = compare_metadata(MigrationContext.configure(connection), metadata)
        engine.dispose()
        # Comments exist only in the code.
        assert [difference for difference in found if not _is_comment(difference)] == []

    def test_each_migration_can_be_undone(self, empty: str) -> None:
        migrate(empty)
        downgrade(empty)
        assert _shape(empty).keys() == {"alembic_version"}
        migrate(empty)
        check_schema(empty)

    def test_each_migration_only_adds_columns(self, empty: str) -> None:
        """A replica of the previous version continues: its statements find all columns."""
        for earlier, later in pairwise(SCHEMAS):
            migrate_to(empty, earlier)
            before = _shape(empty)
            migrate_to(empty, later)
            after = _shape(empty)
            for table, shape in before.items():
                assert after[table].items() >= shape.items(), f"{later} takes from {table}"
                demanding = [
                    name for name in after[table].keys() - shape.keys() if "must be given" in after[table][name]
                ]
                assert not demanding, f"the version before {later} does not write {demanding} of {table}"

    def test_a_former_version_starts_on_a_database_to_which_a_later_one_has_added(self, empty: str) -> None:
        """So a release can be undone without a backup: by the one before it, with what was written meanwhile."""
        migrate(empty)
        _execute(empty, "ALTER TABLE listeners ADD COLUMN later TEXT", "CREATE TABLE later_table (id INTEGER NOT NULL)")
        _execute(empty, "UPDATE alembic_version SET version_num = '0099_later'")
        migrate(empty)
        check_schema(empty)
        assert schema_of(empty) == "0099_later", "the older version leaves it as it is"

    @pytest.mark.parametrize("revision", ["v2_0001_other_tables", "2_0001_other_tables"])
    def test_a_database_whose_migration_did_more_than_add_is_refused(self, empty: str, revision: str) -> None:
        migrate(empty)
        _execute(empty, f"UPDATE alembic_version SET version_num = '{revision}'")
        for use in (migrate, check_schema):
            with pytest.raises(SchemaError, match="newer version of this service: start that version, or restore"):
                use(empty)
        assert schema_of(empty) == revision

    @pytest.mark.parametrize(
        "change",
        [
            "ALTER TABLE listeners DROP COLUMN callback_url",
            "ALTER TABLE listeners RENAME COLUMN callback_url TO address",
            "DROP TABLE tokens",
        ],
    )
    def test_other_tables_under_the_same_revision_are_refused(self, empty: str, change: str) -> None:
        """As those of a checkout from before the first release, whose one migration changes under the same name."""
        migrate(empty)
        _execute(empty, change)
        for use in (migrate, check_schema):
            with pytest.raises(SchemaError, match=r"before version 0\.1\.0.*: name another database in BLOCKLIST_DATA"):
                use(empty)

    def test_a_column_that_this_version_does_not_write_is_refused(self, empty: str) -> None:
        migrate(empty)
        _execute(empty, "DROP TABLE tokens", "CREATE TABLE tokens (id INTEGER PRIMARY KEY, former TEXT NOT NULL)")
        with pytest.raises(SchemaError, match=r"before version 0\.1\.0"):
            check_schema(empty)

    def test_a_database_from_before_the_first_release_is_refused(self, empty: str) -> None:
        migrate(empty)
        _execute(empty, "UPDATE alembic_version SET version_num = '0012'")
        for use in (migrate, check_schema):
            with pytest.raises(SchemaError, match=r"before version 0\.1\.0.*: name another database in BLOCKLIST_DATA"):
                use(empty)
        assert schema_of(empty) == "0012"


def _execute(url: str, *statements: str) -> None:
    engine = make_blocking_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


def _is_comment(difference: Any) -> bool:
    return isinstance(difference, tuple) and "comment" in difference[0]


def _shape(url: str) -> dict[str, dict[str, str]]:
    """The columns and unique keys of each table."""
    engine = make_blocking_engine(url)
    inspector = inspect(engine)
    shape = {table: _columns(inspector, table) | _unique(inspector, table) for table in inspector.get_table_names()}
    engine.dispose()
    return shape


def _columns(inspector: Inspector, table: str) -> dict[str, str]:
    found = {}
    for column in inspector.get_columns(table):
        free = column["nullable"] or column["default"] is not None
        found[column["name"]] = f"{column['type']}{'' if free else ', must be given'}"
    return found


def _unique(inspector: Inspector, table: str) -> dict[str, str]:
    """A new key could reject what the previous version writes."""
    indexes = [index for index in inspector.get_indexes(table) if index["unique"]]
    keys = [*inspector.get_unique_constraints(table), *inspector.get_foreign_keys(table), *indexes]
    primary = inspector.get_pk_constraint(table)["constrained_columns"]
    return {f"key {key['name']}": "must be given" for key in keys} | {"primary key": ", ".join(primary)}


class TestWhileAServiceRuns:
    """A later version migrates a database that this version uses."""

    @pytest.fixture
    def url(self, postgres: PostgresServer, empty_database: str) -> str:
        url = postgres.url(empty_database)
        create_with_rows(url, SCHEMAS[-1])
        return url

    @pytest.fixture
    def pool(self) -> Iterator[ThreadPoolExecutor]:
        with ThreadPoolExecutor(3) as pool:
            yield pool

    @pytest.mark.usefixtures("later_version")
    def test_a_pending_migration_of_a_file_is_refused(self, start: Start) -> None:
        url = start().environment()["BLOCKLIST_DATABASE_URL"]
        with pytest.raises(SchemaError, match=r"blocklist\.db.*stop it"):
            migrate(url)
        assert schema_of(url) == SCHEMAS[-1]

    @pytest.mark.databases("postgresql")
    def test_it_tolerates_columns_added_to_every_table(
        self, start_in_process: StartInProcess, postgres: PostgresServer, tmp_path: Path
    ) -> None:
        admin = tmp_path / "admin.token"
        create_admin_token_file(admin)
        service = start_in_process(auth="tokens", admin_token_file=str(admin))
        name = service.settings.database_url.partition("?")[0].rpartition("/")[2]
        with service.client(Authorization=f"Bearer {admin.read_text().strip()}") as client:
            exercise_all_endpoints(client, "before")
            for table in metadata.tables:
                postgres.execute(f"ALTER TABLE {table} ADD COLUMN next_one TEXT NOT NULL DEFAULT 'x'", name)
                postgres.execute(f"CREATE INDEX CONCURRENTLY next_{table} ON {table} (next_one)", name)
            postgres.execute("CREATE TABLE next_table (id INTEGER)", name)
            exercise_all_endpoints(client, "after")
            assert [change["revision"] for change in all_changes(client)] == list(range(1, 4 * ROUNDS + 1))

    def test_a_long_read_delays_the_migration_but_no_other_transaction(
        self, postgres: PostgresServer, url: str, pool: ThreadPoolExecutor, request: pytest.FixtureRequest
    ) -> None:
        later: str = request.getfixturevalue("later_version")
        with psycopg.connect(url) as reader:
            reader.execute("SELECT * FROM listeners, changes")
            migrating = pool.submit(migrate, url)
            for turn in range(3):
                wait_until(lambda: has_lock_waiters(postgres, url))
                write(url, f"turn-{turn}")
            assert not migrating.done()
        migrating.result()
        assert schema_of(url) == later
        with psycopg.connect(url) as connection:
            rows = connection.execute("SELECT count(*) FROM blocked_nodes WHERE id LIKE 'turn-%'").fetchall()
        assert rows == [(3,)]

    @pytest.mark.usefixtures("later_version")
    def test_concurrent_migrations_run_one_after_another(self, url: str, pool: ThreadPoolExecutor) -> None:
        for migration in [pool.submit(migrate, url) for _ in range(3)]:
            migration.result()
        assert schema_of(url) == latest_revision()


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


def has_lock_waiters(postgres: PostgresServer, url: str) -> bool:
    """Whether a transaction waits for a lock."""
    database = url.rpartition("/")[2]
    sql = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{database}' AND wait_event_type = 'Lock'"
    return postgres.execute(sql) != [(0,)]


def write(url: str, node_id: str) -> None:
    """Access every table that the migration waits for, as any version does."""
    with psycopg.connect(url) as connection:
        connection.execute("SELECT * FROM changes ORDER BY revision")
        connection.execute("UPDATE listeners SET acked = acked")
        connection.execute(
            "INSERT INTO blocked_nodes (id, action, start_ms, end_ms, cause, revision)"
            " VALUES (%s, 'MARK_BLOCKED', 1, 2, 'x', 1)",
            (node_id,),
        )
