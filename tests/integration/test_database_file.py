"""The database file of a running service: who may read it, who has it locked, and what happens when it is gone."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import httpx
import pytest
from structlog.testing import capture_logs

from tests.integration.bodies import block, current_list
from tests.integration.conftest import Start, StartInProcess
from tests.integration.in_process import InProcessService
from tests.integration.problems import problem_of
from tests.integration.process import ServiceProcess, environment, free_port, run_app, url_of, wait_until
from tests.integration.test_start import assert_refused

BLOCKED: Final = "/blocklist/nodes/a"


@pytest.fixture
def service(start_in_process: StartInProcess) -> InProcessService:
    """A service with a blocked node."""
    service = start_in_process()
    service.client().put(BLOCKED, json=block()).raise_for_status()
    return service


@pytest.fixture
def client(service: InProcessService) -> httpx.Client:
    return service.client()


def siblings(database: Path) -> dict[str, int]:
    """The permissions of the database and the files beside it."""
    files = database.parent.glob(f"{database.name}*")
    return {path.name.removeprefix(database.name): stat.S_IMODE(path.stat().st_mode) for path in files}


def remove(file: Path) -> None:
    file.unlink()


def rename(file: Path) -> None:
    file.rename(file.with_name("elsewhere.db"))


def leave_link(file: Path) -> None:
    """The next start would follow the link, and look for the log under the new name."""
    renamed = file.with_name("renamed.db")
    file.rename(renamed)
    file.symlink_to(renamed.name)


def replace_with_copy(file: Path) -> None:
    copy = file.with_name("copy.db")
    shutil.copy(file, copy)
    copy.replace(file)


def remove_log(file: Path) -> None:
    file.with_name(f"{file.name}-wal").unlink()


def remove_all(file: Path) -> None:
    for path in file.parent.glob(f"{file.name}*"):
        path.unlink()


GONE: Final = (remove, rename, leave_link, replace_with_copy, remove_log, remove_all)


class TestRemovedWhileInUse:
    @pytest.mark.parametrize("act", GONE)
    def test_no_change_is_acknowledged_and_the_service_is_not_ready(
        self, service: InProcessService, client: httpx.Client, act: Callable[[Path], None]
    ) -> None:
        act(service.database)
        detail = problem_of(client.put("/blocklist/nodes/b", json=block()), 503)["detail"]
        assert "removed or replaced" in detail
        assert "restart" in detail
        assert problem_of(client.get("/readyz"), 503)["detail"] == detail
        assert list(current_list(client)[1]) == ["a"]
        assert "age" in client.get("/blocklist").headers

    @pytest.mark.parametrize("act", GONE)
    def test_readiness_reports_it_before_any_change(
        self, service: InProcessService, client: httpx.Client, act: Callable[[Path], None]
    ) -> None:
        act(service.database)
        assert "removed or replaced" in problem_of(client.get("/readyz"), 503)["detail"]

    def test_a_change_that_changes_nothing_is_refused_too(
        self, service: InProcessService, client: httpx.Client
    ) -> None:
        service.database.unlink()
        problem_of(client.put(BLOCKED, json=block(allowMerge=True)), 503)
        problem_of(client.delete("/blocklist/nodes/b"), 503)

    def test_it_recovers_when_the_same_file_is_back(self, start: Start) -> None:
        service = start()
        away = service.database.with_name("away.db")
        with service.client() as client:
            client.put(BLOCKED, json=block()).raise_for_status()
            service.database.rename(away)
            problem_of(client.put("/blocklist/nodes/b", json=block()), 503)
            away.rename(service.database)
            wait_until(lambda: client.put("/blocklist/nodes/b", json=block()).status_code == 201)
            service.kill()
            service.start()
            assert sorted(current_list(client)[1]) == ["a", "b"]

    def test_the_change_log_is_compacted_once_the_file_is_back(self, start_in_process: StartInProcess) -> None:
        service = start_in_process(log_max_changes="1000")
        away = service.database.with_name("away.db")
        with service.client() as client, capture_logs() as lines:
            for name in "xyz":
                client.put("/blocklist/nodes", json={f"{name}{n}": block() for n in range(500)}).raise_for_status()
            service.database.rename(away)
            service.until(lambda: any("could not be compacted" in line["event"] for line in lines))
            away.rename(service.database)
            service.until(lambda: client.get("/blocklist/changes").status_code == 410)

    def test_a_link_that_names_another_file_is_noticed(self, tmp_path: Path, migrated: Path) -> None:
        first, second, link = tmp_path / "first.db", tmp_path / "second.db", tmp_path / "link.db"
        for file in (first, second):
            shutil.copy(migrated, file)
        link.symlink_to(first)
        with ServiceProcess(tmp_path, database_url=url_of(link)) as service, service.client() as client:
            client.put(BLOCKED, json=block()).raise_for_status()
            link.unlink()
            link.symlink_to(second)
            problem_of(client.put("/blocklist/nodes/b", json=block()), 503)


def truncate_log(file: Path) -> None:
    os.truncate(file.with_name(f"{file.name}-wal"), 0)


def zero_log_header(file: Path) -> None:
    with file.with_name(f"{file.name}-wal").open("r+b") as log:
        log.write(bytes(32))


def truncate_database(file: Path) -> None:
    os.truncate(file, 4096)


class TestDamagedWhileInUse:
    def test_changes_are_refused_and_the_service_is_not_ready(
        self, service: InProcessService, client: httpx.Client
    ) -> None:
        with service.database.open("r+b") as content:
            content.write(os.urandom(service.database.stat().st_size))
        detail = problem_of(client.put("/blocklist/nodes/b", json=block()), 503)["detail"]
        assert "damaged" in detail
        assert problem_of(client.get("/readyz"), 503)["detail"] == detail
        assert list(current_list(client)[1]) == ["a"]

    def test_a_truncated_file_is_noticed_before_any_change(
        self, service: InProcessService, client: httpx.Client
    ) -> None:
        os.truncate(service.database, 0)
        assert "damaged" in problem_of(client.get("/readyz"), 503)["detail"]
        problem_of(client.put("/blocklist/nodes/b", json=block()), 503)

    @pytest.mark.parametrize("act", [truncate_log, zero_log_header, truncate_database])
    def test_no_change_is_acknowledged_that_the_next_start_would_not_find(
        self, service: InProcessService, client: httpx.Client, act: Callable[[Path], None]
    ) -> None:
        act(service.database)
        detail = problem_of(client.put("/blocklist/nodes/b", json=block()), 503)["detail"]
        assert "damaged" in detail
        assert problem_of(client.get("/readyz"), 503)["detail"] == detail
        problem_of(client.put("/blocklist/nodes/c", json=block()), 503)
        assert list(current_list(client)[1]) == ["a"]

    @pytest.mark.parametrize("act", [zero_log_header, truncate_database])
    def test_it_is_noticed_before_any_change(
        self, service: InProcessService, client: httpx.Client, act: Callable[[Path], None]
    ) -> None:
        act(service.database)
        wait_until(lambda: client.get("/readyz").status_code == 503)

    def test_a_checkpoint_of_another_program_that_empties_the_log_is_no_damage(self, start: Start) -> None:
        service = start()
        log = service.database.with_name(f"{service.database.name}-wal")
        with service.client() as client:
            for number in range(3):
                client.put(f"/blocklist/nodes/n{number}", json=block()).raise_for_status()
                with closing(sqlite3.connect(service.database)) as database:
                    wait_until(lambda: database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0)
                assert log.stat().st_size == 0
                assert client.get("/readyz").status_code == 200
            client.put(BLOCKED, json=block()).raise_for_status()
            service.kill()
            service.start()
            assert len(current_list(client)[1]) == 4

    def test_a_database_made_smaller_by_another_program_is_no_damage(
        self, service: InProcessService, client: httpx.Client
    ) -> None:
        with closing(sqlite3.connect(service.database)) as database:
            size = service.database.stat().st_size
            database.execute("CREATE TABLE large AS SELECT zeroblob(100000)")
            database.execute("PRAGMA wal_checkpoint").fetchall()
            client.put("/blocklist/nodes/b", json=block()).raise_for_status()
            assert service.database.stat().st_size > size
            database.execute("DROP TABLE large")
            database.execute("VACUUM")
            database.execute("PRAGMA wal_checkpoint").fetchall()
        client.put("/blocklist/nodes/c", json=block()).raise_for_status()
        assert client.get("/readyz").status_code == 200


class TestPermissions:
    def test_only_its_user_may_read_what_the_service_creates(self, tmp_path: Path) -> None:
        previous = os.umask(0o022)
        try:
            service = ServiceProcess(tmp_path)
            assert run_app("migrate", env=service.environment(), forked=False).returncode == 0
            assert set(siblings(service.database).values()) == {0o600}
            with service, service.client() as client:
                client.put(BLOCKED, json=block()).raise_for_status()
                modes = siblings(service.database)
                assert {"", "-wal", "-shm", ".head"} <= modes.keys()
                assert set(modes.values()) == {0o600}
        finally:
            os.umask(previous)

    def test_existing_files_lose_the_access_of_others_and_the_log_says_so(self, start: Start) -> None:
        service = start()
        with service.client() as client:
            client.put(BLOCKED, json=block()).raise_for_status()
            service.kill()
            for path in service.database.parent.glob("blocklist.db*"):
                path.chmod(0o644)
            service.start()
            assert set(siblings(service.database).values()) == {0o600}
            assert "readable by other users" in service.log()
            assert list(current_list(client)[1]) == ["a"]


class TestOneServiceForAFile:
    def refused(self, url: str, *words: str) -> None:
        for command in ("serve", "new-history"):
            env = environment(database_url=url, port=str(free_port()))
            assert_refused(run_app(command, env=env), *words)

    def test_a_second_service_is_refused(self, start: Start) -> None:
        service = start()
        self.refused(url_of(service.database), "stop it")
        assert httpx.get(f"{service.url}/readyz").status_code == 200

    def test_also_through_a_symbolic_link(self, start: Start, tmp_path: Path) -> None:
        link = tmp_path / "link.db"
        link.symlink_to(start().database)
        self.refused(url_of(link), "stop it")

    def test_also_through_a_link_to_its_folder(self, start: Start, tmp_path: Path) -> None:
        (tmp_path / "folder").symlink_to(start().database.parent)
        self.refused(url_of(tmp_path / "folder" / "blocklist.db"), "stop it")

    def test_a_file_with_a_hard_link_is_refused(self, start: Start, tmp_path: Path) -> None:
        service = start()
        link = service.database.with_name("second.db")
        link.hardlink_to(service.database)
        self.refused(url_of(link), "hard link")
        service.stop()
        self.refused(url_of(service.database), "hard link", "-samefile")

    def test_other_programs_may_read_and_back_up_the_file(self, start: Start, tmp_path: Path) -> None:
        service = start()
        with service.client() as client:
            client.put(BLOCKED, json=block()).raise_for_status()
            with closing(sqlite3.connect(service.database)) as database:
                assert database.execute("SELECT id FROM blocked_nodes").fetchall() == [("a",)]
                database.execute("VACUUM INTO ?", (str(tmp_path / "backup.db"),))
                with closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
                    database.backup(copy)
            client.put("/blocklist/nodes/b", json=block()).raise_for_status()
