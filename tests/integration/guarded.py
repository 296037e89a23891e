"""A service where who asks needs a token."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from blocklist.access import Access
from tests.integration.process import ServiceProcess


class Guarded:
    """The service, the token in its admin token file, and one token for each role."""

    def __init__(self, process: ServiceProcess, admin_file: Path) -> None:
        self.process = process
        self.admin_file = admin_file
        self.admin = admin_file.read_text().strip()
        self.tokens = {access: self.make(access)["token"] for access in Access}

    def make(self, access: Access, name: str | None = None, **more: Any) -> dict[str, Any]:
        """A new token, as the service answers it."""
        body = {"name": name or f"some-{access.value}", "role": access.value, **more}
        with self.client(self.admin) as client:
            made: dict[str, Any] = client.post("/tokens", json=body).raise_for_status().json()
        return made

    def client(self, token: str | None = None) -> httpx.Client:
        """A client with this token; without one with none."""
        client = self.process.client()
        if token is not None:
            client.headers["Authorization"] = f"Bearer {token}"
        return client


@contextmanager
def guarding(folder: Path, migrated: Path, **settings: str) -> Iterator[Guarded]:
    """Start one, with an admin token file that it makes; stop it on leaving."""
    admin_file = folder / "admin.token"
    process = ServiceProcess(folder, auth="tokens", admin_token_file=str(admin_file), **settings)
    if not process.database.exists():
        shutil.copy(migrated, process.database)
    with process:
        yield Guarded(process, admin_file)
