"""The app on uvicorn, from start to exit."""

from __future__ import annotations

import asyncio
import errno
import gc
import math
import os
import resource
import shlex
import signal
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from ipaddress import IPv6Address
from types import FrameType
from typing import Any, Final

import structlog
import uvicorn
import uvloop
from fastapi import FastAPI
from starlette.types import Message
from uvicorn import Config
from uvicorn.lifespan.off import LifespanOff

from app.auth_setup import check_access, create_admin_token
from app.http import connection
from app.http.connection import HttpConnection
from app.main import HSTS, SECURITY_HEADERS, VERSION_HEADER, create_app, unix_millis
from app.requests import EXAMPLE_BODY
from app.service import Service
from app.settings import Settings, SettingsError
from app.store.database import SchemaError, check_schema, is_postgresql, redacted, sqlite_file_locked, sqlite_path
from blocklist.model.errors import UnavailableError

log = structlog.get_logger("blocklist")

GRACE_SECONDS: Final = 1
"""Time for open requests and streams to end at a stop, besides the database timeout: a change that waits for a database
which does not respond gets its 503 before its connection is closed."""


class TlsConfig(uvicorn.Config):
    """uvicorn's configuration with a limit on the time of a TLS handshake, in seconds."""

    handshake_timeout: float

    def get_loop_factory(self) -> Callable[[], asyncio.AbstractEventLoop]:
        return partial(tls_loop, self.handshake_timeout)


class Server(uvicorn.Server):
    """uvicorn's server, which ends open streams before it waits for open requests."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, certificate: Certificate | None = None) -> None:
        super().__init__(config)
        self._app = app
        self._certificate = certificate
        self._signal: str | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._signal = signal.Signals(sig).name
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.lifespan = Lifespan(self.config, self._app)
        try:
            if sockets is None and _is_every_address(self.config.host):
                # The event loop would listen on IPv6 alone.
                address = (self.config.host, self.config.port)
                check_address(*address)  # Where there is no IPv6, create_server raises an error of its own.
                sockets = [socket.create_server(address, family=socket.AF_INET6, dualstack_ipv6=True)]
            await super().startup(sockets)
        except OSError as error:
            raise _listen_error(self.config.host, self.config.port, error) from None
        except SystemExit as error:
            # uvicorn exits where it handles the error of the socket.
            if isinstance(error.__context__, OSError):
                raise _listen_error(self.config.host, self.config.port, error.__context__) from None
            raise
        _tune_garbage_collector()
        if not self.should_exit:
            if self._certificate is not None:
                service: Service = self._app.state.service
                service.files.watch(self._certificate.files, self._certificate.renew)
                await self._certificate.renew()  # It may have changed since it was read.
            _announce(self, self._app)
            sd_notify_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log.info("stopping", signal=self._signal)
        self._app.state.service.stop_streams()
        await super().shutdown(sockets)


def _is_every_address(host: str) -> bool:
    """Whether this is the unspecified address of IPv6: it means IPv4 too."""
    try:
        return IPv6Address(host).is_unspecified
    except ValueError:
        return False


def check_address(host: str, port: int) -> None:
    """Raises SettingsError if the service could not listen there. A port in use is no error: the service may run."""
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as tried:
                tried.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise _listen_error(host, port, error) from None
    except UnicodeError:
        raise _listen_error(host, port, OSError("this is not a host name")) from None


def _listen_error(host: str, port: int, error: OSError) -> SettingsError:
    address = f"{host}, port {port}"
    if error.errno == errno.EADDRINUSE:
        return SettingsError(
            f"BLOCKLIST_PORT: port {port} of {host} is in use: stop the program that uses it, or choose another port."
        )
    name = "PORT" if error.errno == errno.EACCES else "HOST"
    advice = _USE_IPV4 if ":" in host and error.errno in _NO_IPV6 else ""
    return SettingsError(
        f"BLOCKLIST_{name}: the service cannot listen on {address}: {error.strerror or error}.{advice}"
    )


_NO_IPV6: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
"""Where the kernel has none, and where it is switched off for the network."""
_USE_IPV4: Final = (
    " This machine may have no IPv6: set BLOCKLIST_HOST=0.0.0.0, or 127.0.0.1 for clients on this machine alone."
)


def serve(settings: Settings) -> int:
    """Serve until SIGTERM, SIGINT, or SIGHUP if it is not ignored as by nohup; returns the exit code.

    Raises SettingsError, SchemaError.
    """
    check_schema(settings.database_url)
    with sqlite_file_locked(settings.database_url):
        pass  # A second service says so at once.
    check_access(settings, unix_millis())
    create_admin_token(settings)
    tls = tls_context(settings)
    raise_nofile_limit()
    app = create_app(settings)
    certificate = None if tls is None else Certificate(settings, tls)
    server = Server(uvicorn_config(app, settings, tls), app, certificate)
    # Also before and after uvicorn handles them itself: it raises a signal again after the stop.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.handle_exit)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, server.handle_exit)
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
        http=HttpConnection,
        loop="uvloop",
        ws="none",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_config=None,
        timeout_graceful_shutdown=GRACE_SECONDS + math.ceil(settings.database_timeout.total_seconds()),
        headers=[*SECURITY_HEADERS, VERSION_HEADER, *([HSTS] if tls else [])],
        ssl_context_factory=(lambda _, __: tls) if tls else None,
    )
    if isinstance(config, TlsConfig):
        config.handshake_timeout = connection.HEADER_SECONDS
    return config


def _tune_garbage_collector() -> None:
    """Exclude what is loaded by now, which is no garbage; collect less often, and avoid full collections (40 ms for
    100,000 objects).
    """
    gc.freeze()
    gc.set_threshold(20_000, 5, 200)
    gc.enable()


def _announce(server: uvicorn.Server, app: FastAPI) -> None:
    service: Service = app.state.service
    settings = service.settings
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    scheme = "https" if settings.tls_cert else "http"
    url = (f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}") + settings.root_path
    database = settings.database_url
    data = redacted(database) if is_postgresql(database) else sqlite_path(database).resolve()
    if settings.log_format == "json":
        log.info("listening", url=url, data=str(data))
        return
    token = "TOKEN" if not settings.admin_token_file else f"$(cat {shlex.quote(settings.admin_token_file)})"
    bearer = f' -H "Authorization: Bearer {token}"' if settings.auth == "tokens" else ""
    # Brackets of an IPv6 address are special to zsh.
    node = shlex.quote(f"{url}/blocklist/nodes/worker-17")
    with suppress(OSError):  # A full disk, or a closed stdout, stops nobody else.
        print(
            f"blocklist listens on {url} and keeps its data in {data}. This blocks a node for two hours:\n"
            f"  curl -X PUT{bearer} {node} -d {EXAMPLE_BODY}",
            flush=True,
        )


# Lifespan: the start and the stop of the app by the ASGI lifespan protocol, with its exceptions passed on.


class Lifespan(LifespanOff):
    """Raises what the app raises when it starts or stops; uvicorn's own class would log a traceback and exit."""

    def __init__(self, config: Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app
        self._events: asyncio.Queue[Message] = asyncio.Queue()

    async def startup(self) -> None:
        """Start the app; it fills `state`, which uvicorn passes to each connection."""
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": self.state}
        self._task = asyncio.ensure_future(self._app(scope, self._events.get, self._on_message))
        await self._send_and_wait("lifespan.startup")

    async def shutdown(self) -> None:
        await self._send_and_wait("lifespan.shutdown")

    async def _send_and_wait(self, event: str) -> None:
        self._completed = asyncio.get_running_loop().create_future()
        self._events.put_nowait({"type": event})
        await asyncio.wait((self._task, self._completed), return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            self._task.result()

    async def _on_message(self, message: Message) -> None:
        # A `.failed` message needs no handling: the app raises after it.
        if message["type"].endswith(".complete"):
            self._completed.set_result(None)


# TLS: the certificate that the service presents, and the time for a handshake.


class TlsLoop(uvloop.Loop):
    """An event loop that limits the handshakes of its servers to `handshake_timeout` seconds.

    uvicorn leaves them a minute, and a handshake does not count as a connection yet: a client that begins as many as
    the service may have open files would stop it for that long.
    """

    handshake_timeout: float

    async def create_server(self, *args: Any, **options: Any) -> asyncio.AbstractServer:  # type: ignore[override]
        return await super().create_server(*args, ssl_handshake_timeout=self.handshake_timeout, **options)


def tls_loop(handshake_timeout: float) -> TlsLoop:
    loop = TlsLoop()
    loop.handshake_timeout = handshake_timeout
    return loop


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """TLS 1.2 or later with the certificate of the settings; None without one. Raises SettingsError."""
    cert, key = settings.tls_cert, settings.tls_key
    if not cert and not key:
        return None
    if not cert or not key:
        raise SettingsError("Set both BLOCKLIST_TLS_CERT and BLOCKLIST_TLS_KEY, or neither.")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password=_refuse_encrypted)
    except ssl.SSLError as error:
        raise SettingsError(
            f"BLOCKLIST_TLS_CERT {cert} and BLOCKLIST_TLS_KEY {key} are not a certificate and its key: "
            f"{(error.reason or 'unreadable').lower().replace('_', ' ')}."
        ) from None
    except OSError as error:
        raise SettingsError(_unreadable(cert, key, error)) from None
    return context


class Certificate:
    """The certificate for the next handshake with a context: as it was at the start, or renewed."""

    def __init__(self, settings: Settings, context: ssl.SSLContext) -> None:
        self.files = [settings.tls_cert, settings.tls_key]
        self._settings = settings
        self._latest = context
        # The context itself stays as it is: a pair of which only one file is new would leave half of it changed.
        context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLSocket | ssl.SSLObject, *_: object) -> None:
        connection.context = self._latest

    async def renew(self) -> None:
        """Use what is in the files now; if that is no pair, the one before stays in force."""
        try:
            context = await asyncio.to_thread(tls_context, self._settings)
        except SettingsError as error:
            log.error("the certificate cannot be renewed; the one before stays in force", why=str(error))  # noqa: TRY400
        else:
            self._latest = context or self._latest
            log.info("certificate read", file=self._settings.tls_cert)


def _unreadable(cert: str, key: str, error: OSError) -> str:
    """Names the file that cannot be read; OpenSSL does not."""
    for name, path in (("CERT", cert), ("KEY", key)):
        try:
            with open(path, "rb"):  # noqa: PTH123
                pass
        except OSError as cause:
            return f"BLOCKLIST_TLS_{name} {path} cannot be read: {cause.strerror}."
    return f"BLOCKLIST_TLS_CERT {cert} and BLOCKLIST_TLS_KEY {key} cannot be read: {error.strerror}."


def _refuse_encrypted() -> str:
    raise SettingsError(
        "The key in BLOCKLIST_TLS_KEY is encrypted: use one that is not, in a file that only the service can read."
    )


# The process and its operating system: the open-file limit, and readiness for systemd.

RECOMMENDED_FILES: Final = 4096


def raise_nofile_limit() -> None:
    """Raise the soft limit of open files to the hard limit; warn if that is low, as each connection is a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < RECOMMENDED_FILES:
        log.warning("open-file limit is low; it limits connections", limit=hard, recommended=RECOMMENDED_FILES)


def sd_notify_ready() -> None:
    """Report readiness to systemd (Type=notify); do nothing where NOTIFY_SOCKET is not set."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    # A leading @ stands for Linux's abstract namespace.
    name = f"\0{address[1:]}" if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out, suppress(OSError):
        out.sendto(b"READY=1", name)
