"""Serve: the app on uvicorn, from the first word to the last."""

from __future__ import annotations

import gc
import math
import shlex
import signal
import socket
from typing import Final

import structlog
import uvicorn
from fastapi import FastAPI

from app.api import security_headers
from app.auth_setup import check_access
from app.http.connection_limits import LimitingProtocol
from app.http.fast_get import FastGetProtocol
from app.http.fast_put import FastPutProtocol
from app.http.lifespan import Lifespan
from app.http.rlimits import raise_nofile_limit
from app.http.systemd import sd_notify_ready
from app.http.tls import tls_context
from app.main import create_app, stop_streams, unix_millis
from app.settings import Settings
from app.store.schema_check import SchemaError, check_schema
from app.store.store import check_not_in_use
from app.store.urls import is_postgresql, redacted, sqlite_path
from blocklist.model.errors import UnavailableError

GRACE_SECONDS: Final = 1
"""How long requests and streams that do not end by themselves may hold up the stop, beside the time of a transaction:
a change that waits for a database which says nothing has its 503 before its connection is closed."""
KEEP_ALIVE_SECONDS: Final = 75
"""How long a connection may rest between two requests: longer than pollers pause, and longer than proxies keep theirs
(nginx a minute), or one of them would ask on a connection that is being closed."""

log = structlog.get_logger("blocklist")


class Server(uvicorn.Server):
    """uvicorn's server, but open streams are told before it waits for them."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.lifespan = Lifespan(self.config, self._app)
        await super().startup(sockets)
        if not self.should_exit:
            _announce(self, self._app)
            sd_notify_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log.info("stopping")
        stop_streams(self._app)
        await super().shutdown(sockets)


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; the exit code."""
    check_schema(settings.database_url)
    check_not_in_use(settings.database_url)
    check_access(settings, unix_millis())
    tls = tls_context(settings)
    raise_nofile_limit()
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=_protocol_class(settings),
        loop="uvloop",
        ws="none",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_config=None,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS + math.ceil(settings.database_timeout.total_seconds()),
        headers=[*security_headers.ALL_RESPONSES, *([security_headers.HSTS] if tls else [])],
        ssl_context_factory=(lambda _, __: tls) if tls else None,
    )
    # uvicorn raises the signal again when it is done: a stop that was asked for is no failure.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    # What is loaded by now stays: the collector need not look at it again, nor so often at the rest, and not at more
    # than 100,000 objects at once (some 40 ms) unless a quarter is new.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 5, 200)
    gc.enable()
    server = Server(config, app)
    try:
        server.run()
    except UnavailableError as error:
        # At the start: afterwards the service waits for its database.
        raise SchemaError(f"The database {redacted(settings.database_url)} cannot be used: {error.detail}") from None
    return 0 if server.started else 1


def _protocol_class(settings: Settings) -> type[LimitingProtocol]:
    if not settings.fast_path:
        return LimitingProtocol
    # What never comes to a route has no trace: polls need none, changes do.
    return FastPutProtocol if settings.telemetry == "off" else FastGetProtocol


def _announce(server: uvicorn.Server, app: FastAPI) -> None:
    settings: Settings = app.state.service.settings
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    scheme = "https" if settings.tls_cert else "http"
    url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
    named = settings.database_url
    data = redacted(named) if is_postgresql(named) else sqlite_path(named).resolve()
    if settings.log_format == "json":
        log.info("listening", url=url, data=str(data))
        return
    block = '{"action": "MARK_BLOCKED", "cause": "Hot machine"}'
    token = "TOKEN" if not settings.admin_token_file else f"$(cat {shlex.quote(settings.admin_token_file)})"
    bearer = f' -H "Authorization: Bearer {token}"' if settings.auth == "tokens" else ""
    print(f"blocklist listens on {url} and keeps its data in {data}. Try:")
    print(f"  curl -X PUT{bearer} {url}/blocklist/nodes/worker-17 -d '{block}'", flush=True)
