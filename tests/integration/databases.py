"""Where a service under test keeps its list: in a SQLite file, or in a database of a real PostgreSQL."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path
from typing import Final, Protocol

import pytest

from tests.integration.process import environment, run_app, url_of
from tests.postgres import PostgresServer

ON_BOTH: Final = pytest.mark.databases("sqlite", "postgresql")
"""A mark for tests of what the database has a part in."""
ON_SQLITE: Final = pytest.mark.databases("sqlite")
"""A mark for tests among those where it has none."""
_TIMEOUT_SECONDS: Final = 30
"""Seconds that the server may take: a machine that is busy with other tests is no database that is away."""
_numbers: Final = count(1)


class Databases(Protocol):
    """Databases as `python -m app migrate` makes them, one for each folder that asks."""

    def url_for(self, folder: Path) -> str:
        """The URL of the folder's database: empty at first, and the same at each call."""

    def settings(self, folder: Path) -> dict[str, str]:
        """What a service is told that uses it."""

    def drop(self, folder: Path) -> None:
        """The folder's database is not used any more."""


class SqliteFiles:
    """Copies of a migrated file."""

    def __init__(self, migrated: Path) -> None:
        self._template = migrated

    def url_for(self, folder: Path) -> str:
        """See Databases."""
        file = folder / "blocklist.db"
        if not file.exists():
            shutil.copy(self._template, file)
        return url_of(file)

    def settings(self, folder: Path) -> dict[str, str]:
        """See Databases."""
        return {"database_url": self.url_for(folder)}

    def drop(self, folder: Path) -> None:
        """See Databases: pytest removes folders."""


class PostgresDatabases:
    """Copies of a migrated database on one server, which may take `patience` seconds to connect or to answer."""

    def __init__(self, server: PostgresServer, *, timeout_seconds: int = _TIMEOUT_SECONDS) -> None:
        self._server = server
        self._timeout_seconds = timeout_seconds
        self._names: dict[Path, str] = {}
        self._template = self._name()
        done = run_app("migrate", env=environment(database_url=server.create(self._template)))
        assert done.returncode == 0, done.stderr

    def url_for(self, folder: Path) -> str:
        """See Databases."""
        if folder not in self._names:
            self._names[folder] = self._name()
            self._server.create(self._names[folder], template=self._template)
        return f"{self._server.url(self._names[folder])}?connect_timeout={self._timeout_seconds}"

    def settings(self, folder: Path) -> dict[str, str]:
        """See Databases."""
        return {"database_url": self.url_for(folder), "database_timeout": f"{self._timeout_seconds}s"}

    def drop(self, folder: Path) -> None:
        """See Databases."""
        self._server.drop(self._names.pop(folder))

    def _name(self) -> str:
        return f"blocklist_{next(_numbers)}"
