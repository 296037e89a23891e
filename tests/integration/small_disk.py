"""A disk of a few megabytes that can be filled."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self

from tests.integration.process import ROOT

_SQL: Final = """
import sqlite3, sys
print(sqlite3.connect(sys.argv[1], isolation_level=None).execute(sys.argv[2]).fetchall())
"""
_READER: Final = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("BEGIN")
database.execute("SELECT count(*) FROM changes").fetchone()
print("reading", flush=True)
sys.stdin.readline()
"""
_MOUNT: Final = 'mount -t tmpfs -o size="$1" tmpfs "$0" && echo mounted && exec sleep infinity'


class SmallDisk:
    """A file system in memory, mounted on a folder for programs that are run with `command_prefix`.

    It is mounted in a namespace of its own: that takes no root where users may make namespaces, and nothing stays
    mounted. The tests themselves reach its files by `inside`, but not by SQLite, which follows that as a link. `size`
    is as for mount: 8m.
    """

    def __init__(self, folder: Path, size: str = "8m") -> None:
        self._folder = folder
        self._size = size

    def __enter__(self) -> Self:
        self._folder.mkdir(exist_ok=True)
        self._namespace_process = subprocess.Popen(
            ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _MOUNT, str(self._folder), self._size],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._namespace_process.stdout is not None
        if self._namespace_process.stdout.readline() != "mounted\n":
            said = self._namespace_process.communicate()[1].strip()
            raise AssertionError(f"no disk could be mounted: run this as root, or where users may unshare ({said})")
        namespaces = (f"--target={self._namespace_process.pid}", "--user", "--mount", "--preserve-credentials")
        self.command_prefix = ("nsenter", *namespaces, f"--wd={ROOT}")
        self.inside = Path(f"/proc/{self._namespace_process.pid}/root{self._folder}")
        self.database = self.inside / "blocklist.db"
        return self

    def __exit__(self, *_: object) -> None:
        with self._namespace_process:
            self._namespace_process.kill()

    def fill(self, *, leave_bytes: int = 0) -> None:
        """Fill the disk, except for `leave_bytes`."""
        with self._filler.open("ab", buffering=0) as ballast:
            with suppress(OSError):
                while True:
                    ballast.write(bytes(4096))
            ballast.truncate(self._filler.stat().st_size - leave_bytes)

    def free(self) -> None:
        """Free the space again."""
        self._filler.unlink()

    def make_read_only(self) -> None:
        """Remount it read-only; no file may be open for writing."""
        subprocess.run([*self.command_prefix, "mount", "-o", "remount,bind,ro", str(self._folder)], check=True)

    def sql(self, statement: str) -> str:
        """Run a statement on the database in another process; return the repr() of its rows."""
        command = [*self.command_prefix, sys.executable, "-c", _SQL, str(self._folder / self.database.name), statement]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    @contextmanager
    def open_reader(self) -> Iterator[None]:
        """Keep a read transaction open in another process."""
        command = [*self.command_prefix, sys.executable, "-c", _READER, str(self._folder / self.database.name)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "reading\n"
            yield
            reader.communicate("enough\n")

    @property
    def _filler(self) -> Path:
        return self.inside / "ballast"
