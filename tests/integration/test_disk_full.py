"""A full disk: changes are refused with the reason, reads continue, and the service recovers once there is space."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.integration.bodies import all_changes, block, current_list, later
from tests.integration.event_stream import changes, next_events, watching
from tests.integration.problems import problem_of
from tests.integration.process import ServiceProcess, run_app, url_of, wait_until
from tests.integration.small_disk import SmallDisk

JOB: Final = {"role": "JOB_MASTER", "sessionId": "s"}
CHANGES: Final[list[tuple[str, str, Any]]] = [
    ("PUT", "/blocklist/nodes/b", block()),
    ("PUT", "/blocklist/nodes/a", block(cause="b", allowMerge=True)),
    ("PUT", "/blocklist/nodes", {"b": block(), "c": block()}),
    ("DELETE", "/blocklist/nodes/a", None),
    ("PUT", "/listeners/new", JOB),
    ("PUT", "/listeners/known", JOB | {"sessionId": "another"}),
    ("POST", "/listeners/known/secret", {"sessionId": "s"}),
    ("DELETE", "/listeners/known", None),
    ("POST", "/tokens", {"name": "anna", "role": "reader"}),
]
Serve = Callable[..., ServiceProcess]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "disk") as disk:
        yield disk


@pytest.fixture
def serve(disk: SmallDisk, tmp_path: Path, migrated: Path) -> Iterator[Serve]:
    """Starts services with an empty list on the disk; their log files are elsewhere."""
    with ExitStack() as stack:

        def serve(**settings: str) -> ServiceProcess:
            if not disk.database.exists():
                shutil.copy(migrated, disk.database)
            url = url_of(tmp_path / "disk" / disk.database.name)
            service = ServiceProcess(tmp_path, database_url=url, **settings)
            service.wrapper = disk.command_prefix
            return stack.enter_context(service)

        yield serve


def assert_disk_full(answer: httpx.Response) -> None:
    """A 503 with the reason, the remedy, and when to retry."""
    detail = problem_of(answer, 503)["detail"]
    assert "disk" in detail
    assert "full" in detail
    assert "free space" in detail
    assert int(answer.headers["retry-after"]) > 0


def age(client: httpx.Client) -> int:
    """The Age of the list in seconds; -1 without one."""
    return int(client.get("/blocklist").headers.get("age", "-1"))


def is_compacted(client: httpx.Client) -> bool:
    """Whether the first change was removed from the log."""
    return client.get("/blocklist/changes").status_code == 410


def fill_disk(disk: SmallDisk) -> None:
    """Leave no space, not even in the write-ahead log, whose pages are reused."""
    wait_until(lambda: disk.sql("PRAGMA wal_checkpoint(TRUNCATE)") == "[(0, 0, 0)]\n")
    disk.fill()


class TestDiskFull:
    def test_every_change_is_refused_with_the_reason(self, disk: SmallDisk, serve: Serve, tmp_path: Path) -> None:
        admin = tmp_path / "admin.token"
        with serve(auth="tokens", admin_token_file=str(admin)).client() as client:
            client.headers["Authorization"] = f"Bearer {admin.read_text().strip()}"
            client.put("/blocklist/nodes/a", json=block())
            client.put("/listeners/known", json=JOB)
            token = client.post("/tokens", json={"name": "otto", "role": "reader"}).json()["id"]
            fill_disk(disk)
            before = [client.get(path).json() for path in ("/blocklist", "/blocklist/changes", "/tokens")]
            for method, path, body in [*CHANGES, ("DELETE", f"/tokens/{token}", None)]:
                assert_disk_full(client.request(method, path, json=body))
            after = [client.get(path).json() for path in ("/blocklist", "/blocklist/changes", "/tokens")]
            assert after == before
            listener = client.get("/listeners/known").json()
            assert (listener["sessionId"], listener["state"]) == ("s", "live")
            assert client.get("/listeners/new").status_code == 404

    def test_reads_continue_with_an_age_until_there_is_room(self, disk: SmallDisk, serve: Serve) -> None:
        with serve().client() as client, watching(client, since=0) as events:
            client.put("/blocklist/nodes/a", json=block())
            client.put("/blocklist/nodes/short", json=block(endTimestamp=later(2)))
            fill_disk(disk)
            assert_disk_full(client.put("/blocklist/nodes/b", json=block()))
            # Longer than the interval between two probes.
            wait_until(lambda: age(client) >= 2)
            assert "a" in current_list(client)[1]
            assert "short" not in current_list(client)[1]
            for path in ("/blocklist/nodes/a", "/blocklist/changes", "/listeners", "/healthz"):
                assert client.get(path).status_code == 200, path
            disk.free()
            wait_until(lambda: age(client) == -1)
            client.put("/blocklist/nodes/b", json=block()).raise_for_status()
            wait_until(lambda: "expired" in {change["type"] for change in all_changes(client)})
            log = all_changes(client)
            assert [change["revision"] for change in log] == list(range(1, len(log) + 1))
            assert {"a", "b", "short"} <= {change["node"]["id"] for change in log}
            assert changes(next_events(events, len(log))) == log

    def test_acknowledgements_are_stored_once_there_is_room(self, disk: SmallDisk, serve: Serve) -> None:
        service = serve()
        with service.client() as client:
            client.put("/listeners/known", json=JOB)
            client.put("/blocklist/nodes/a", json=block())
            fill_disk(disk)
            revision = current_list(client)[0]
            said = client.post("/listeners/known/heartbeat", json={"sessionId": "s", "ackedRevision": revision})
            assert said.status_code == 200
            disk.free()
            wait_until(lambda: disk.sql("SELECT acked FROM listeners") == f"[({revision},)]\n")

    @pytest.mark.long  # Compaction pauses for ten seconds after a failure.
    def test_the_change_log_is_compacted_once_there_is_room(self, disk: SmallDisk, serve: Serve) -> None:
        service = serve(log_max_changes="1000")
        with service.client() as client:
            for name in "xyz":
                client.put("/blocklist/nodes", json={f"{name}{n}": block() for n in range(500)}).raise_for_status()
            fill_disk(disk)
            # On a slow machine it may have been compacted before.
            wait_until(lambda: "the change log could not be compacted" in service.log() or is_compacted(client))
            disk.free()
            wait_until(lambda: is_compacted(client))
            client.put("/blocklist/nodes/b", json=block(allowMerge=True)).raise_for_status()


class TestRestart:
    def test_a_kill_while_the_disk_is_full_loses_nothing_acknowledged(self, disk: SmallDisk, serve: Serve) -> None:
        service = serve()
        with service.client() as client:
            client.put("/blocklist/nodes/a", json=block())
            fill_disk(disk)
            before, log = current_list(client), all_changes(client)
            service.kill()
            service.start()
            assert (current_list(client), all_changes(client)) == (before, log)
            disk.free()
            wait_until(lambda: client.put("/blocklist/nodes/b", json=block(allowMerge=True)).is_success)
            # The second start is recorded, too.
            wait_until(lambda: [it["kind"] for it in client.get("/audit").json()["records"]] == ["settings"] * 2)

    def test_a_start_on_a_full_disk_fails_with_the_reason(self, disk: SmallDisk, serve: Serve) -> None:
        service = serve()
        with service.client() as client:
            client.put("/blocklist/nodes/a", json=block())
            before = current_list(client)
        service.stop()
        disk.fill()
        done = run_app(env=service.environment(), wrapper=disk.command_prefix)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert "full" in done.stderr
        disk.free()
        service.start()
        with service.client() as client:
            assert current_list(client) == before

    def test_a_write_ahead_log_that_filled_the_disk_shrinks_when_its_reader_ends(
        self, disk: SmallDisk, serve: Serve
    ) -> None:
        """SQLite appends to its write-ahead log during a read, and shrinks it at a commit that succeeds."""
        service = serve()
        # Free pages in the file, as in one that has been used for a while.
        disk.sql("CREATE TABLE room AS SELECT zeroblob(2000000) AS filler")
        disk.sql("DROP TABLE room")
        disk.sql("PRAGMA wal_checkpoint(TRUNCATE)")
        with service.client() as client:
            with disk.open_reader():
                disk.fill(leave_bytes=1_000_000)
                numbers = count()
                wait_until(lambda: client.put(f"/blocklist/nodes/{next(numbers)}", json=block()).status_code == 503)
            wait_until(lambda: client.put("/blocklist/nodes/a", json=block(allowMerge=True)).is_success)
