"""HostCheck: refuses requests whose Host header the service does not accept."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.problems import problem_for
from app.net.host_policy import HostPolicy, MisdirectedError


class HostCheck:
    """ASGI middleware around all routes."""

    def __init__(self, app: ASGIApp, *, policy: HostPolicy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            for name, value in scope["headers"]:
                if name == b"host" and not self._policy.accepts(value):
                    await problem_for(Request(scope), _error(value))(scope, receive, send)
                    return
        await self._app(scope, receive, send)


def _error(host: bytes) -> MisdirectedError:
    return MisdirectedError(
        f"Host {host[:253].decode('latin-1')!a} is not accepted: without authentication, only loopback names and"
        " addresses are. An operator can add a name to BLOCKLIST_ALLOWED_HOSTS."
    )
