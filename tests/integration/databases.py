"""Databases for services under test: SQLite files, or databases on a real PostgreSQL server."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path
from typing import Final, Protocol

import pytest

from tests.integration.process import environment, run_app, url_of
from tests.postgres import PostgresServer

ON_BOTH: Final = pytest.mark.databases("sqlite", "postgresql")
"""Marks tests that depend on the database."""
ON_SQLITE: Final = pytest.mark.databases("sqlite")
"""Marks tests among those that do not."""
_TIMEOUT_SECONDS: Final = 30
"""Generous timeout: a machine that is busy with other tests must not look like an outage."""
_numbers: Final = count(1)


class Databases(Protocol):
    """Migrated databases, one for each folder."""

    def url_for(self, folder: Path) -> str:
        """The URL of the folder's database, which is created empty at the first call."""

    def settings(self, folder: Path) -> dict[str, str]:
        """The settings of a service that uses it."""

    def drop(self, folder: Path) -> None:
        """Remove the folder's database."""


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
        """See Databases. pytest removes the folder."""


class PostgresDatabases:
    """Copies of a migrated database on one server, with timeouts of `timeout_seconds`.

    `port` is that of a pooler, through which services connect.
    """

    def __init__(
        self, server: PostgresServer, *, timeout_seconds: int = _TIMEOUT_SECONDS, port: int | None = None
    ) -> None:
        self._server = server
        self._port = port or server.port
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
        url = self._server.url(self._names[folder]).replace(f":{self._server.port}/", f":{self._port}/")
        return f"{url}?connect_timeout={self._timeout_seconds}"

    def settings(self, folder: Path) -> dict[str, str]:
        """See Databases."""
        return {"database_url": self.url_for(folder), "database_timeout": f"{self._timeout_seconds}s"}

    def drop(self, folder: Path) -> None:
        """See Databases."""
        self._server.drop(self._names.pop(folder))

    def _name(self) -> str:
        return f"blocklist_{next(_numbers)}"
