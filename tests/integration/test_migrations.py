"""Every earlier schema is migrated without loss, on SQLite and on PostgreSQL."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from fastapi.testclient import TestClient
from sqlalchemy import inspect
from sqlalchemy.engine import Inspector

from app.main import create_app
from app.settings import Settings
from app.store.migration import migrate
from app.store.queries import DISMISSALS
from app.store.sql_engines import make_blocking_engine
from app.store.tables import metadata
from app.store.urls import is_postgresql
from tests.integration.bodies import EVACUATE, MARK, PERMANENT, block, current_list
from tests.integration.in_process import ManualClock
from tests.migrations.old_databases import ROWS, SCHEMAS, create_with_rows, migrate_to, read_rows
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
    (6, "merged", "old-2"),
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
# Authors exist since there are tokens.
NEVER_FILLED: Final = {"0001": {"changes.created_by"}, "0002": {"changes.created_by"}}


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/past.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url(request.getfixturevalue("empty_database"))


class TestOldRows:
    def test_there_are_rows_for_every_schema(self) -> None:
        """A new migration needs `tests/migrations/<revision>.sql`: rows as the service writes them then."""
        assert sorted(path.stem for path in ROWS.glob("*.sql")) == SCHEMAS

    @pytest.mark.parametrize("schema", SCHEMAS)
    def test_the_rows_fill_every_column(self, tmp_path: Path, schema: str) -> None:
        url = f"sqlite:///{tmp_path}/past.db"
        create_with_rows(url, schema)
        for table, found in read_rows(url).items():
            assert found, f"nothing is in {table}"
            empty = {f"{table}.{name}" for name in found[0] if all(row[name] is None for row in found)}
            assert empty <= NEVER_FILLED.get(schema, set())


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

    def test_the_service_serves_the_migrated_database(self, empty: str, schema: str) -> None:
        create_with_rows(empty, schema)
        migrate(empty)
        auth: Any = "tokens" if schema >= "0004" else "off"
        settings = Settings(database_url=empty, auth=auth, forget_listeners="10000d")  # type: ignore[arg-type]
        with TestClient(create_app(settings, clock=ManualClock(NOW)), base_url="http://localhost") as client:
            client.headers["Authorization"] = f"Bearer {TOKEN}"
            check_list(client)
            check_log(client, schema)
            check_past(client)
            if schema >= "0002":
                check_listeners(client)
            if schema >= "0004":
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


def check_log(client: TestClient, schema: str) -> None:
    """Complete from its beginning, with authors and reasons."""
    assert client.get("/blocklist/changes?since=3").json()["oldest"] == 5
    client.get("/blocklist?minRevision=15").raise_for_status()
    log = client.get("/blocklist/changes?since=4").json()["changes"]
    assert [(change["revision"], change["type"], change["node"]["id"]) for change in log] == log_of(schema)
    assert log[0]["node"]["cause"] == CAUSE
    known = schema >= "0003"
    assert log[2]["createdBy"] == ("Zoë O'Neil" if known else None)
    assert log[8].get("forced") == ("The rack burns; 火" if known else None)
    detailed = client.get("/blocklist?details=true").json()
    assert (detailed["worker-1"]["createdBy"], detailed["worker-1"]["revision"]) == ("anna" if known else None, 13)


def log_of(schema: str) -> list[tuple[int, str, str]]:
    """Several claims exist since 0011."""
    return [LOG[0], (6, "narrowed", "old-2"), *LOG[2:]] if schema >= "0011" else LOG


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


def test_the_dismissals_are_found_by_their_index_not_by_scanning_the_log(empty: str) -> None:
    """A million changes would take 0.3 s at each start."""
    migrate(empty)
    engine = make_blocking_engine(empty)
    query = str(DISMISSALS.compile(engine, compile_kwargs={"literal_binds": True}))
    with engine.connect() as connection:
        if is_postgresql(empty):
            connection.exec_driver_sql("SET enable_seqscan = off")  # The table is empty.
        explain = "EXPLAIN" if is_postgresql(empty) else "EXPLAIN QUERY PLAN"
        plan = "\n".join(map(str, connection.exec_driver_sql(f"{explain} {query}")))
    engine.dispose()
    assert "ix_changes_dismissals" in plan, plan
