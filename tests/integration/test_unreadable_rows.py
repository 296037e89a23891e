"""A row that cannot be read: the start names it, and a running service loses nothing else."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import httpx
import pytest

from app.auth.authenticator import create_admin_token_file
from app.store.tables import UnreadableRowError
from blocklist.model.claims import Role
from tests.integration.bodies import block, current_list
from tests.integration.conftest import StartInProcess
from tests.integration.databases import Databases
from tests.integration.event_stream import next_events, watching
from tests.integration.in_process import InProcessService, in_process
from tests.integration.listeners import register
from tests.integration.problems import problem_of
from tests.integration.process import environment, free_port, run_app, url_of
from tests.integration.secured import secured_service
from tests.integration.test_start import assert_refused
from tests.migrations.rows import SCHEMAS, create_with_rows

AT_START: Final = [
    ("UPDATE blocked_nodes SET action = 'EXPLODE'", "blocked_nodes", "action"),
    ("UPDATE blocked_nodes SET end_ms = 'soon'", "blocked_nodes", "end_ms"),
    ("UPDATE blocked_nodes SET start_ms = 1.5", "blocked_nodes", "start_ms"),
    ("UPDATE blocked_nodes SET cause = ''", "blocked_nodes", "cause"),
    ("UPDATE blocked_nodes SET cause = x'00ff'", "blocked_nodes", "cause"),
    ("UPDATE blocked_nodes SET cause = CAST(x'ff' AS TEXT)", "blocked_nodes", "cause"),
    ("UPDATE changes SET created_by = CAST(x'ff' AS TEXT)", "changes", "created_by"),
    ("UPDATE blocked_nodes SET revision = 'x'", "blocked_nodes", "revision"),
    ("UPDATE blocked_nodes SET id = '..' WHERE id = (SELECT min(id) FROM blocked_nodes)", "blocked_nodes", "'..'"),
    ("UPDATE blocked_nodes SET claims = '{'", "blocked_nodes", "row"),
    ("UPDATE blocked_nodes SET claims = '[]'", "blocked_nodes", "row"),
    ("UPDATE blocked_nodes SET claims = '{}'", "blocked_nodes", "row"),
    ("UPDATE blocked_nodes SET end_ms = end_ms - 1 WHERE claims IS NOT NULL", "blocked_nodes", "row"),
    ("UPDATE tokens SET owners = '[]' WHERE owners IS NOT NULL", "tokens", "row"),
    ("UPDATE changes SET type = 'vanished'", "changes", "type"),
    ("UPDATE changes SET source = 'magic'", "changes", "source"),
    ("UPDATE changes SET at_ms = 'noon'", "changes", "at_ms"),
    ("UPDATE changes SET created_by = x'00'", "changes", "created_by"),
    ("UPDATE listeners SET role = 'KING'", "listeners", "role"),
    ("UPDATE listeners SET former = '{'", "listeners", "row"),
    ("UPDATE listeners SET former = '7'", "listeners", "row"),
    ("UPDATE listeners SET acked = 'all'", "listeners", "acked"),
    ("UPDATE listeners SET lease_ms = 'long'", "listeners", "lease_ms"),
    ("UPDATE tokens SET role = 'king'", "tokens", "role"),
    ("UPDATE tokens SET end_ms = 'never'", "tokens", "end_ms"),
    ("UPDATE log_head SET revision = 'many'", "log_head", "revision"),
    ("UPDATE log_head SET compacted = 'none'", "log_head", "compacted"),
    ("UPDATE log_head SET revision = 0", "log_head", "backup"),
    ("DELETE FROM log_head", "log_head", "backup"),
    ("DELETE FROM versions", "versions", "backup"),
]


def execute(database: Path, statement: str) -> None:
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute(statement).rowcount > 0
        connection.commit()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with rows in every table."""
    file = tmp_path_factory.mktemp("filled") / "blocklist.db"
    create_with_rows(url_of(file), SCHEMAS[-1])
    return file


class TestAtTheStart:
    @pytest.mark.parametrize(("statement", "table", "word"), AT_START)
    def test_the_message_names_the_row(
        self, tmp_path: Path, filled: Path, statement: str, table: str, word: str
    ) -> None:
        database = tmp_path / "blocklist.db"
        with closing(sqlite3.connect(filled)) as source:
            source.execute("VACUUM INTO ?", (str(database),))
        execute(database, statement)
        with pytest.raises(UnreadableRowError, match=table) as refused, in_process(database_url=url_of(database)):
            pass
        assert word in str(refused.value)

    def test_the_service_does_not_start(self, tmp_path: Path, filled: Path) -> None:
        database = Path(shutil.copy(filled, tmp_path / "blocklist.db"))
        execute(database, "UPDATE tokens SET role = 'king'")
        done = run_app(env=environment(database_url=url_of(database), port=str(free_port())))
        assert_refused(done, "tokens", "role")
        assert done.returncode == 2


class TestWhileItRuns:
    @pytest.fixture
    def service(self, start_in_process: StartInProcess) -> InProcessService:
        """With changes 1 to 3, of which the second gets unreadable."""
        service = start_in_process()
        with service.client() as client:
            for name in "abc":
                client.put(f"/blocklist/nodes/{name}", json=block()).raise_for_status()
        return service

    @pytest.mark.parametrize("query", ["/blocklist/changes", "/blocklist/changes?since=1", "/blocklist/changes?node=b"])
    @pytest.mark.parametrize("value", ["type = 'vanished'", "at_ms = 'noon'", "action = 'EXPLODE'"])
    def test_a_request_that_needs_it_is_503_and_names_it(
        self, service: InProcessService, query: str, value: str
    ) -> None:
        execute(service.database, f"UPDATE changes SET {value} WHERE revision = 2")
        with service.client() as client:
            detail = problem_of(client.get(query), 503)["detail"]
            assert "changes" in detail
            assert "revision 2" in detail
            assert value.partition(" ")[0] in detail

    def test_everything_else_goes_on(self, service: InProcessService) -> None:
        execute(service.database, "UPDATE changes SET type = 'vanished', at_ms = 'noon' WHERE revision = 2")
        with service.client() as client:
            problem_of(client.get("/blocklist/changes"), 503)
            assert client.get("/readyz").status_code == 200
            assert client.put("/blocklist/nodes/d", json=block()).status_code == 201
            assert client.delete("/blocklist/nodes/b").status_code == 200
            assert [change["revision"] for change in client.get("/blocklist/changes?since=2").json()["changes"]] == [
                3,
                4,
                5,
            ]
            assert sorted(current_list(client)[1]) == ["a", "c", "d"]
            assert "age" not in client.get("/blocklist").headers

    def test_a_watch_that_needs_it_gets_a_snapshot(
        self, service: InProcessService, start_in_process: StartInProcess, tmp_path: Path
    ) -> None:
        database = tmp_path / "blocklist.db"
        with closing(sqlite3.connect(service.database)) as source:
            source.execute("VACUUM INTO ?", (str(database),))
        service = start_in_process(tmp_path)  # It has no change in memory.
        execute(database, "UPDATE changes SET type = 'vanished' WHERE revision = 2")
        with httpx.Client(base_url=service.url) as client, watching(client, since=1) as events:
            assert next_events(events, 1)[0].event == "snapshot"
            client.put("/blocklist/nodes/d", json=block()).raise_for_status()
            assert next_events(events, 1)[0].event == "blocked"

    def test_the_list_at_a_past_time_names_it(self, service: InProcessService) -> None:
        with service.client() as client:
            at = client.get("/blocklist/changes").json()["changes"][-1]["at"]
            execute(service.database, "UPDATE changes SET action = 'EXPLODE' WHERE revision = 2")
            assert "changes" in problem_of(client.get(f"/blocklist?at={at}"), 503)["detail"]

    def test_the_log_is_compacted_past_it(self, start_in_process: StartInProcess) -> None:
        service = start_in_process(log_max_changes="1000")
        with service.client() as client:
            client.put("/blocklist/nodes/a", json=block()).raise_for_status()
            execute(service.database, "UPDATE changes SET type = 'vanished', at_ms = 'noon' WHERE revision = 1")
            for cause in "xy":
                body = {f"n{n}": block(cause=cause, allowMerge=True) for n in range(1000)}
                client.put("/blocklist/nodes", json=body).raise_for_status()
            service.until(lambda: client.get("/blocklist/changes").status_code == 410)

    def test_a_listener_that_registers_again_gets_503_and_the_others_do_not(self, service: InProcessService) -> None:
        with service.client() as client:
            register(client, "damaged")
            execute(service.database, "UPDATE listeners SET role = 'KING'")
            body = {"role": "JOB_MASTER", "sessionId": "s2"}
            assert "damaged" in problem_of(client.put("/listeners/damaged", json=body), 503)["detail"]
            register(client, "other")

    def test_a_mode_that_cannot_be_read_leaves_the_others(self, service: InProcessService) -> None:
        with service.client() as client:
            for pattern in ("a", "b", "c"):
                client.put("/listeners/modes", json={"pattern": pattern, "mode": "off"}).raise_for_status()
                if pattern == "b":
                    execute(service.database, "UPDATE listener_modes SET mode = 'sideways' WHERE pattern = 'b'")
            assert [it["pattern"] for it in client.get("/listeners/modes").json()["modes"]] == ["a", "c"]

    @pytest.mark.parametrize(
        "count", [lambda client: client.get("/readyz"), lambda client: client.get("/blocklist/changes")]
    )
    def test_without_a_head_it_says_so(
        self, service: InProcessService, count: Callable[[httpx.Client], httpx.Response]
    ) -> None:
        execute(service.database, "DELETE FROM log_head")
        with service.client() as client:
            assert "restore a backup" in problem_of(count(client), 503)["detail"]

    @pytest.mark.parametrize("revision", [0, 2])
    def test_a_head_below_the_changes_stops_neither_answers_nor_the_stop(
        self, service: InProcessService, revision: int
    ) -> None:
        execute(service.database, f"UPDATE log_head SET revision = {revision}")
        with service.client() as client:
            for _ in range(2):
                assert "restore a backup" in problem_of(client.put("/blocklist/nodes/d", json=block()), 503)["detail"]
            assert sorted(current_list(client)[1]) == ["a", "b", "c"]


class TestAccess:
    def test_a_session_that_cannot_be_read_has_ended_and_the_others_go_on(
        self, tmp_path: Path, databases: Databases
    ) -> None:
        with secured_service(tmp_path, databases) as secured, secured.client() as damaged, secured.client() as healthy:
            for client in (damaged, healthy):
                client.post("/login", data={"token": secured.tokens[Role.READER]})
            secured.process.stop()
            execute(secured.process.database, "UPDATE sessions SET role = 'king' WHERE rowid = 1")
            secured.process.start()
            assert damaged.get("/page/block").status_code == 303
            assert healthy.get("/").status_code == 200

    def test_a_token_that_cannot_be_read_is_not_valid_and_the_others_are(
        self, start_in_process: StartInProcess, tmp_path: Path
    ) -> None:
        file = tmp_path / "admin.token"
        create_admin_token_file(file)
        service = start_in_process(auth="tokens", admin_token_file=str(file))
        with service.client(Authorization=f"Bearer {file.read_text().strip()}") as admin:
            damaged = admin.post("/tokens", json={"name": "damaged", "role": "reader"}).json()
            healthy = admin.post("/tokens", json={"name": "healthy", "role": "reader"}).json()
            execute(service.database, f"UPDATE tokens SET role = 'king' WHERE id = '{damaged['id']}'")

            def status(token: dict[str, str]) -> int:
                return admin.get("/blocklist", headers={"authorization": f"Bearer {token['token']}"}).status_code

            service.until(lambda: status(damaged) == 401)
            assert status(healthy) == 200
            listed = [token["id"] for token in admin.get("/tokens").json()["tokens"]]
            assert healthy["id"] in listed
            assert damaged["id"] not in listed
