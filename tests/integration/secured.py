"""A service with authentication."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from blocklist.model.roles import Role
from tests.integration.databases import Databases
from tests.integration.process import ServiceProcess, wait_until
from tests.integration.raw_http import connection_to, read_response, request


class SecuredService:
    """The service, the token in its admin token file, and one token for each role."""

    def __init__(self, process: ServiceProcess, admin_file: Path) -> None:
        self.process = process
        self.admin_file = admin_file
        self.admin = admin_file.read_text().strip()
        self.tokens = {access: self.make_token(access)["token"] for access in Role}

    def make_token(self, access: Role, name: str | None = None, **more: Any) -> dict[str, Any]:
        """Create a token; the response."""
        body = {"name": name or f"some-{access.value}", "role": access.value, **more}
        with self.client(self.admin) as client:
            made: dict[str, Any] = client.post("/tokens", json=body).raise_for_status().json()
        return made

    def client(self, token: str | None = None) -> httpx.Client:
        """A client with this token, or without any."""
        client = self.process.client()
        if token is not None:
            client.headers["Authorization"] = f"Bearer {token}"
        return client


@contextmanager
def secured_service(folder: Path, databases: Databases, **settings: str) -> Iterator[SecuredService]:
    """Start one that creates its admin token file; stop it on leaving."""
    admin_file = folder / "admin.token"
    own = {**databases.settings(folder), "auth": "tokens", "admin_token_file": str(admin_file)}
    with ServiceProcess(folder, **own, **settings) as process:
        yield SecuredService(process, admin_file)


def check_valid_until_expiry(secured: SecuredService, token: str) -> None:
    """Send the same bytes on one connection: they are accepted, cached, and refused once the token has expired."""
    payload = request("/blocklist", f"Authorization: Bearer {token}")
    with connection_to(secured.process.port) as connection, connection.makefile("rb") as stream:

        def status() -> int:
            connection.sendall(payload)
            return read_response(stream).status

        assert [status() for _ in range(5)] == [200] * 5
        wait_until(lambda: status() == 401)
