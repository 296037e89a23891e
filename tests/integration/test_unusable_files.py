"""Database files that cannot be used: each command fails with a message, and leaves the file unchanged."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.integration.conftest import Start
from tests.integration.process import environment, free_port, run_app, url_of
from tests.integration.small_disk import SmallDisk
from tests.integration.test_start import assert_refused
from tests.migrations.rows import SCHEMAS

COMMANDS: Final = ("serve", "migrate", "new-history")
# Without these capabilities root has the permissions of an ordinary user.
_ROOT_CAPABILITIES: Final = "-dac_override,-dac_read_search"
UNPRIVILEGED: Final = (
    ("setpriv", "--bounding-set", _ROOT_CAPABILITIES, "--inh-caps", _ROOT_CAPABILITIES) if os.geteuid() == 0 else ()
)


@pytest.fixture
def file(tmp_path: Path, migrated: Path) -> Path:
    """A database in its own folder."""
    folder = tmp_path / "folder"
    folder.mkdir()
    return Path(shutil.copy(migrated, folder / "blocklist.db"))


def assert_all_refused(
    file: Path, *words: str, commands: Sequence[str] = COMMANDS, wrapper: tuple[str, ...] = ()
) -> None:
    for command in commands:
        env = environment(database_url=url_of(file), port=str(free_port()))
        assert_refused(run_app(command, env=env, wrapper=wrapper), file.name, *words)


EACH_COMMAND: Final = pytest.mark.parametrize(
    "command", ["serve", *(pytest.param(other, marks=pytest.mark.long) for other in COMMANDS[1:])]
)
"""Without the permissions of root a command cannot be forked, and its start takes a second."""


class TestPermissions:
    def test_a_read_only_file(self, file: Path) -> None:
        file.chmod(0o444)
        assert_all_refused(file, "write", commands=("serve", "new-history"), wrapper=UNPRIVILEGED)

    @EACH_COMMAND
    def test_an_unreadable_file(self, file: Path, command: str) -> None:
        file.chmod(0)
        assert_all_refused(file, commands=[command], wrapper=UNPRIVILEGED)

    @pytest.mark.parametrize(
        ("suffix", "command", "words"),
        [
            (".head", "serve", "symbolic link"),
            # SQLite itself refuses these two.
            ("-wal", "serve", "cannot be opened"),
            ("-shm", "serve", "cannot be opened"),
        ],
    )
    def test_a_symbolic_link_beside_it(self, file: Path, suffix: str, command: str, words: str) -> None:
        """Neither written through to another file, nor to a new one."""
        for text in ("precious", None):
            other, link = file.with_name(f"{text}"), file.with_name(file.name + suffix)
            if text is not None:
                other.write_text(text)
            link.unlink(missing_ok=True)
            link.symlink_to(other)
            assert_all_refused(file, words, commands=[command])
            assert (other.read_text() if other.exists() else None) == text

    @pytest.mark.parametrize("command", ["serve", pytest.param("new-history", marks=pytest.mark.long)])
    def test_a_read_only_folder(self, file: Path, command: str) -> None:
        file.parent.chmod(0o555)
        assert_all_refused(file, "folder", commands=[command], wrapper=UNPRIVILEGED)

    @EACH_COMMAND
    def test_an_inaccessible_folder(self, file: Path, command: str) -> None:
        file.parent.chmod(0)
        assert_all_refused(file, commands=[command], wrapper=UNPRIVILEGED)
        file.parent.chmod(0o755)  # So that pytest can remove it.

    def test_a_read_only_file_system(self, tmp_path: Path, migrated: Path) -> None:
        with SmallDisk(tmp_path / "disk") as disk:
            shutil.copy(migrated, disk.database)
            disk.make_read_only()
            assert_all_refused(
                tmp_path / "disk" / "blocklist.db",
                "write",
                commands=("serve", "new-history"),
                wrapper=disk.command_prefix,
            )
            assert_all_refused(tmp_path / "disk" / "new.db", commands=("migrate",), wrapper=disk.command_prefix)


class TestContent:
    def test_a_folder(self, tmp_path: Path) -> None:
        assert_all_refused(tmp_path)

    def test_a_dangling_link(self, tmp_path: Path) -> None:
        link = tmp_path / "link.db"
        link.symlink_to(tmp_path / "nowhere" / "blocklist.db")
        assert_all_refused(link)

    def test_a_truncated_file(self, file: Path) -> None:
        content = file.read_bytes()[:20_000]
        file.write_bytes(content)
        assert_all_refused(file, "damaged")
        assert file.read_bytes() == content

    def test_a_corrupted_table(self, file: Path) -> None:
        with closing(sqlite3.connect(file)) as database:
            [(page,)] = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'blocked_nodes'").fetchall()
            [(size,)] = database.execute("PRAGMA page_size").fetchall()
        with file.open("r+b") as content:
            content.seek((page - 1) * size)
            content.write(os.urandom(size))
        assert_all_refused(file, "damaged", "backup", commands=("serve",))

    @pytest.mark.parametrize("version", ["0001", SCHEMAS[-1], "1975ea83b712"])
    def test_the_database_of_another_program_that_uses_alembic(self, tmp_path: Path, version: str) -> None:
        file = tmp_path / "other.db"
        with closing(sqlite3.connect(file)) as database:
            database.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY)")
            database.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
            database.execute("INSERT INTO alembic_version VALUES (?)", (version,))
            database.commit()
        content = file.read_bytes()
        assert_all_refused(file, "another program", "customers")
        assert file.read_bytes() == content
        assert list(tmp_path.iterdir()) == [file]


class TestMigratingWhileAServiceRuns:
    def test_a_migration_with_nothing_to_do_succeeds_while_a_service_runs(self, start: Start) -> None:
        service = start()
        assert run_app("migrate", env=service.environment()).returncode == 0
        assert httpx.get(f"{service.url}/readyz").status_code == 200
