"""A service with authentication, in its own process or in that of the tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from blocklist.model.claims import Role
from tests.integration.databases import Databases
from tests.integration.in_process import InProcessService, RunningClock, in_process
from tests.integration.process import ServiceProcess, http_client, wait_until
from tests.integration.raw_http import connection_to, read_response, request


class _Secured:
    """The service's URL, the token in its admin token file, and one token for each role."""

    def __init__(self, url: str, admin_file: Path) -> None:
        self.url = url
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
        client = http_client(self.url)
        if token is not None:
            client.headers["Authorization"] = f"Bearer {token}"
        return client


class SecuredService(_Secured):
    """In its own process."""

    def __init__(self, process: ServiceProcess, admin_file: Path) -> None:
        self.process = process
        super().__init__(process.url, admin_file)


class SecuredInProcess(_Secured):
    """In this process, on `clock`."""

    def __init__(self, service: InProcessService, admin_file: Path) -> None:
        self.service, self.clock = service, service.clock
        super().__init__(service.url, admin_file)


@contextmanager
def secured_service(folder: Path, databases: Databases, **settings: str) -> Iterator[SecuredService]:
    """Start one that creates its admin token file; stop it on leaving."""
    own = _settings(folder, databases)
    with ServiceProcess(folder, **own, **settings) as process:
        yield SecuredService(process, Path(own["admin_token_file"]))


@contextmanager
def secured_in_process(folder: Path, databases: Databases, **settings: str) -> Iterator[SecuredInProcess]:
    """The same in this process, on a running clock. Started again in the same folder, it has its earlier list."""
    own = _settings(folder, databases)
    with in_process(RunningClock(), **own, **settings) as service:
        yield SecuredInProcess(service, Path(own["admin_token_file"]))


def _settings(folder: Path, databases: Databases) -> dict[str, str]:
    return {**databases.settings(folder), "auth": "tokens", "admin_token_file": str(folder / "admin.token")}


def check_valid_until_expiry(secured: SecuredInProcess, token: str, seconds: float = 0) -> None:
    """Send the same bytes on one connection: they are accepted, cached, and refused once the token has expired.

    The clock is advanced by these seconds first; the library that reads JWTs has the real time.
    """
    payload = request("/blocklist", f"Authorization: Bearer {token}")
    with connection_to(secured.service.port) as connection, connection.makefile("rb") as stream:

        def status() -> int:
            connection.sendall(payload)
            return read_response(stream).status

        assert [status() for _ in range(5)] == [200] * 5
        secured.clock.advance(seconds)
        wait_until(lambda: status() == 401)
