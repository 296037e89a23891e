"""The app on uvicorn, from start to exit."""

from __future__ import annotations

import asyncio
import errno
import gc
import math
import shlex
import signal
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog
import uvicorn
from fastapi import FastAPI

from app.auth_setup import check_access
from app.http import connection_limits, security_headers
from app.http.connection_limits import LimitingProtocol
from app.http.fast_put import FastPutProtocol
from app.http.fast_table import FastTableProtocol
from app.http.lifespan import Lifespan
from app.http.process import raise_nofile_limit, sd_notify_ready
from app.http.tls import tls_context, tls_loop
from app.main import create_app, unix_millis
from app.service import Service
from app.settings import Settings, SettingsError
from app.store.database import check_not_in_use
from app.store.schema_check import SchemaError, check_schema
from app.store.urls import is_postgresql, redacted, sqlite_path
from blocklist.model.errors import UnavailableError

GRACE_SECONDS: Final = 1
"""Time for open requests and streams to end at a stop, besides the database timeout: a change that waits for a database
which does not respond gets its 503 before its connection is closed."""
KEEP_ALIVE_SECONDS: Final = 75
"""Timeout of an idle connection. Longer than the pause between polls, and than the timeout of a proxy (nginx: 60 s):
otherwise a client could send a request on a connection that is just being closed."""

log = structlog.get_logger("blocklist")


class TlsConfig(uvicorn.Config):
    """uvicorn's configuration with a limit on the time of a TLS handshake, in seconds."""

    handshake_timeout: float

    def get_loop_factory(self) -> Callable[[], asyncio.AbstractEventLoop]:
        return partial(tls_loop, self.handshake_timeout)


class Server(uvicorn.Server):
    """uvicorn's server, which ends open streams before it waits for open requests."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.lifespan = Lifespan(self.config, self._app)
        try:
            await super().startup(sockets)
        except SystemExit as error:
            # uvicorn exits where it handles the error of the socket.
            if isinstance(error.__context__, OSError):
                raise _listen_error(self.config, error.__context__) from None
            raise
        if not self.should_exit:
            _announce(self, self._app)
            sd_notify_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log.info("stopping")
        self._app.state.service.stop_streams()
        await super().shutdown(sockets)


def _listen_error(config: uvicorn.Config, error: OSError) -> SettingsError:
    address = f"{config.host}, port {config.port}"
    if error.errno == errno.EADDRINUSE:
        return SettingsError(
            f"BLOCKLIST_PORT: port {config.port} of {config.host} is in use: stop the program that uses it, or choose"
            " another port."
        )
    name = "PORT" if error.errno == errno.EACCES else "HOST"
    return SettingsError(f"BLOCKLIST_{name}: the service cannot listen on {address}: {error.strerror or error}.")


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code. Raises SettingsError, SchemaError."""
    check_schema(settings.database_url)
    check_not_in_use(settings.database_url)
    check_access(settings, unix_millis())
    tls = tls_context(settings)
    raise_nofile_limit()
    app = create_app(settings)
    server = Server(uvicorn_config(app, settings, tls), app)
    # uvicorn raises the signal again after the stop; unhandled, a requested stop would exit with an error.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    _tune_garbage_collector()
    try:
        server.run()
    except UnavailableError as error:
        # Only at the start: later the service waits for its database.
        raise SchemaError(f"The database {redacted(settings.database_url)} cannot be used: {error.detail}") from None
    return 0 if server.started else 1


def uvicorn_config(app: FastAPI, settings: Settings, tls: ssl.SSLContext | None) -> uvicorn.Config:
    """Uvicorn with the protocol that the settings ask for."""
    config = (TlsConfig if tls else uvicorn.Config)(
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
    if isinstance(config, TlsConfig):
        config.handshake_timeout = connection_limits.HEADER_SECONDS
    return config


def _protocol_class(settings: Settings) -> type[LimitingProtocol]:
    if not settings.fast_path:
        return LimitingProtocol
    # A request that never reaches a route is not traced: changes are traced, polls need not be.
    return FastPutProtocol if settings.telemetry == "off" else FastTableProtocol


def _tune_garbage_collector() -> None:
    """Exclude what is loaded by now, collect less often, and avoid full collections (40 ms for 100,000 objects)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 5, 200)
    gc.enable()


def _announce(server: uvicorn.Server, app: FastAPI) -> None:
    service: Service = app.state.service
    settings = service.settings
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    scheme = "https" if settings.tls_cert else "http"
    url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
    database = settings.database_url
    data = redacted(database) if is_postgresql(database) else sqlite_path(database).resolve()
    if settings.log_format == "json":
        log.info("listening", url=url, data=str(data))
        return
    block = '{"action": "MARK_BLOCKED", "cause": "Hot machine"}'
    token = "TOKEN" if not settings.admin_token_file else f"$(cat {shlex.quote(settings.admin_token_file)})"
    bearer = f' -H "Authorization: Bearer {token}"' if settings.auth == "tokens" else ""
    print(f"blocklist listens on {url} and keeps its data in {data}. Try:")
    print(f"  curl -X PUT{bearer} {url}/blocklist/nodes/worker-17 -d '{block}'", flush=True)
