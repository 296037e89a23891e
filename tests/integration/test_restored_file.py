"""A SQLite file that lacks acknowledged changes gets a new history at the start, and no other file does."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.integration.bodies import block, revision_of
from tests.integration.conftest import Start
from tests.integration.event_stream import next_events, watching
from tests.integration.listeners import get_listener, heartbeat, register
from tests.integration.process import ServiceProcess, run_app, wait_until

NODES: Final = tuple(f"/blocklist/nodes/n{number}" for number in range(6))


def history_of(client: httpx.Client) -> str:
    return client.get("/blocklist").headers["blocklist-history"]


def back_up(service: ServiceProcess) -> Path:
    """As the guide does it, while the service runs."""
    backup = service.folder / "backup.db"
    with closing(sqlite3.connect(service.database)) as database:
        database.execute("VACUUM INTO ?", (str(backup),))
    return backup


def acked_in(database: Path) -> list[tuple[int | None]]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute("SELECT acked FROM listeners").fetchall()


def remove_logs(service: ServiceProcess) -> None:
    for suffix in ("-wal", "-shm"):
        service.database.with_name(service.database.name + suffix).unlink(missing_ok=True)


def copy_over(backup: Path, service: ServiceProcess) -> None:
    """The inode stays the same."""
    remove_logs(service)
    shutil.copy(backup, service.database)


def move_over(backup: Path, service: ServiceProcess) -> None:
    remove_logs(service)
    backup.replace(service.database)


def copy_elsewhere(backup: Path, service: ServiceProcess) -> None:
    """To a machine that never had the later changes."""
    for path in service.folder.glob("blocklist.db*"):
        path.unlink()
    shutil.copy(backup, service.database)


RESTORES: Final = (copy_over, move_over, copy_elsewhere)
Restore = Callable[[Path, ServiceProcess], None]


class TestRestored:
    @pytest.mark.parametrize("restore", RESTORES)
    def test_a_backup_gets_a_new_history(self, start: Start, restore: Restore) -> None:
        service = start()
        with service.client() as client:
            for node in NODES[:3]:
                client.put(node, json=block()).raise_for_status()
            register(client, "job")
            heartbeat(client, "job", ackedRevision=3)
            wait_until(lambda: acked_in(service.database) == [(3,)])
            backup = back_up(service)
            for node in NODES[3:]:
                client.put(node, json=block()).raise_for_status()
            heartbeat(client, "job", ackedRevision=6)
            before = history_of(client)
            service.stop()
            restore(backup, service)
            service.start()
            after = history_of(client)
            assert after != before
            assert revision_of(client.get("/blocklist")) == 3
            assert "new history" in service.log()
            assert get_listener(client, "job")["ackedRevision"] == 0
            with watching(client, last_event_id=f"6-{before}") as events:
                assert next_events(events, 1)[0].event == "snapshot"
            client.put(NODES[5], json=block()).raise_for_status()
            service.stop()
            service.start()
            assert history_of(client) == after

    def test_a_kill_before_the_restore_hides_nothing(self, start: Start) -> None:
        service = start()
        with service.client() as client:
            client.put(NODES[0], json=block()).raise_for_status()
            backup, before = back_up(service), history_of(client)
            client.put(NODES[1], json=block()).raise_for_status()
            service.kill()
            copy_over(backup, service)
            service.start()
            assert history_of(client) != before

    def test_a_backup_from_an_earlier_history_gets_a_new_one(self, start: Start) -> None:
        service = start()
        with service.client() as client:
            client.put(NODES[0], json=block()).raise_for_status()
            backup, first = back_up(service), history_of(client)
            service.stop()
            assert run_app("new-history", env=service.environment()).returncode == 0
            service.start()
            second = history_of(client)
            service.stop()
            copy_over(backup, service)
            service.start()
            assert history_of(client) not in (first, second)


def vacuum(service: ServiceProcess) -> None:
    service.stop()
    with closing(sqlite3.connect(service.database)) as database:
        database.execute("VACUUM")


def move_to_another_volume(service: ServiceProcess) -> None:
    """With all files."""
    service.stop()
    for path in list(service.folder.glob("blocklist.db*")):
        shutil.copy(path, path.with_name(f"{path.name}.moved"))
        path.unlink()
        path.with_name(f"{path.name}.moved").rename(path)


def restore_what_lacks_nothing(service: ServiceProcess) -> None:
    backup = back_up(service)
    service.stop()
    copy_over(backup, service)


def forget_the_head_file(service: ServiceProcess) -> None:
    """As if the service had never had one."""
    service.stop()
    service.database.with_name("blocklist.db.head").unlink(missing_ok=True)
    with closing(sqlite3.connect(service.database)) as database:
        database.execute("PRAGMA user_version = 0")


class TestNotRestored:
    @pytest.mark.parametrize(
        "act", [ServiceProcess.kill, vacuum, move_to_another_volume, restore_what_lacks_nothing, forget_the_head_file]
    )
    def test_the_history_stays(self, start: Start, act: Callable[[ServiceProcess], object]) -> None:
        service = start()
        with service.client() as client:
            client.put(NODES[0], json=block()).raise_for_status()
            before = history_of(client)
            act(service)
            service.start()
            assert history_of(client) == before
            assert "new history" not in service.log()

    def test_the_history_of_the_command_is_kept_at_the_start(self, start: Start) -> None:
        service = start()
        with service.client() as client:
            for node in NODES[:2]:
                client.put(node, json=block()).raise_for_status()
            service.stop()
            done = run_app("new-history", env=service.environment())
            assert done.returncode == 0
            for _ in range(2):
                service.start()
                assert history_of(client) in done.stdout
                client.put(NODES[3], json=block(allowMerge=True)).raise_for_status()
                service.stop()
