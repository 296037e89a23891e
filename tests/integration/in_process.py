"""The service in the test's process: no port, no other process, and time that the test moves.

Requests go through ASGI to the routes. Whatever the service waits for (an end, a lease, a retry, the next look at a
file) happens once the test has advanced the clock that far: the time of day and the event loop follow it.
`url` opens a port on the same service, with the fast path, for clients that bring their own connections. What is about
a process (its start, signals, kills, memory) needs a `ServiceProcess`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar
from unittest.mock import patch

import httpx
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from fastapi import FastAPI
from fastapi.testclient import TestClient
from uvicorn.server import ServerState

from app.auth_setup import check_access, create_admin_token
from app.main import create_app
from app.server import uvicorn_config
from app.settings import Settings, SettingsError, read_settings
from app.store import postgresql
from app.store.database import sqlite_path

_DATABASE_TIMEOUT: Final = "30s"
_STALL_SECONDS: Final = 60.0
"""Longer than this process waits for a core on a busy machine, within a transaction."""
_REAL_SECONDS: Final = 60
Result = TypeVar("Result")


class ManualClock:
    """Unix milliseconds that the test advances; an event loop made by `loop` follows them."""

    def __init__(self, now: int = 1_000_000) -> None:
        self.now = now
        self._loops: list[_ClockLoop] = []

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        """Move time; what has become due in its loops runs soon."""
        self.now += round(seconds * 1000)
        for loop in self._loops:
            with suppress(RuntimeError):  # It is closed.
                loop.call_soon_threadsafe(lambda: None)

    def loop(self) -> asyncio.AbstractEventLoop:
        """A new event loop on this clock's time."""
        self._loops.append(_ClockLoop(self))
        return self._loops[-1]


class RunningClock(ManualClock):
    """It follows the real time, and the test advances it beyond: for what also happens without the test."""

    def __init__(self) -> None:
        self._ahead = 0
        super().__init__(_real_millis())

    @property
    def now(self) -> int:
        return _real_millis() + self._ahead

    @now.setter
    def now(self, value: int) -> None:
        self._ahead = value - _real_millis()


def _real_millis() -> int:
    return time.time_ns() // 1_000_000


class _ClockLoop(asyncio.SelectorEventLoop):
    """Its timers follow a clock. Sockets and threads take the time that they take."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        super().__init__()

    def time(self) -> float:
        return self._clock.now / 1000


class InProcessService:
    """A running service; `client` sends requests to it."""

    def __init__(
        self, app: FastAPI, settings: Settings, clock: ManualClock, portal: BlockingPortal, state: dict[str, Any]
    ) -> None:
        self.app = app
        self.settings = settings
        self.clock = clock
        self.portal = portal
        self._state = state
        self._server: asyncio.Server | None = None
        self._transport = _Transport(app, portal, state)

    @cached_property
    def port(self) -> int:
        """A port of loopback where it listens from now on."""
        return self.portal.call(self._listen)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def database(self) -> Path:
        """Its SQLite file."""
        return sqlite_path(self.settings.database_url)

    def client(self, **headers: str) -> httpx.Client:
        """Another client, with these headers (`_` is written for `-`)."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.Client(transport=self._transport, base_url="http://localhost", headers=named)

    def until(self, condition: Callable[[], object], *, step: float = 0.05, seconds: float = 600) -> None:
        """Advance the clock in steps until the condition holds; fail after this much of the service's time."""
        end, real_end = self.clock.now + seconds * 1000, time.monotonic() + _REAL_SECONDS
        while not condition():
            assert self.clock.now < end or time.monotonic() < real_end, "the condition did not come true"
            self.clock.advance(step)
            time.sleep(0.001)

    def in_time(self, call: Callable[[], Result]) -> Result:
        """What a call returns that may have to wait: the clock is advanced until it does."""
        with ThreadPoolExecutor(1) as thread:
            answer = thread.submit(call)
            self.until(answer.done)
            return answer.result()

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self.portal.call(self._server.close)

    async def _listen(self) -> int:
        config = uvicorn_config(self.app, self.settings, None)
        config.load()
        shared = ServerState()
        shared.default_headers = config.encoded_headers

        def protocol() -> asyncio.Protocol:
            made: Any = config.http_protocol_class(config, shared, self._state)  # type: ignore[call-arg]
            made.access_log = False  # pytest gives its logger handlers, and uvicorn takes that for a wish
            return made  # type: ignore[no-any-return]

        self._server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port


@contextmanager
def in_process(clock: ManualClock | None = None, /, **settings: Any) -> Iterator[InProcessService]:
    """Run the service with these settings (as `heartbeat="1s"`); it stops on leaving. `database_url` must be migrated.

    Without a clock, time begins at the real one and stands still.
    """
    clock = clock or ManualClock(_real_millis())
    # A node is freed as soon as its alerts have resolved: the minimum has tests of its own.
    given = {"database_timeout": _DATABASE_TIMEOUT, "alertmanager_minimum": "0s", **settings}
    read = read_settings({f"BLOCKLIST_{name.upper()}": str(value) for name, value in given.items()})
    check_access(read, clock.now)
    create_admin_token(read)
    app = create_app(read, clock=clock)
    with (
        patch.object(postgresql, "STALL_SECONDS", _STALL_SECONDS),
        start_blocking_portal(backend_options={"loop_factory": clock.loop}) as portal,
    ):
        ready: Future[dict[str, Any]] = Future()
        stop = asyncio.Event()
        lifespan = portal.start_task_soon(_run, app, ready, stop)
        state = ready.result(_REAL_SECONDS)
        service = InProcessService(app, read, clock, portal, state)
        try:
            yield service
        finally:
            service.close()
            portal.call(stop.set)
            while not lifespan.done():
                clock.advance(1)
                time.sleep(0.001)
            lifespan.result()


def refusal(**settings: str) -> str:
    """Why the service does not start with these settings: what the operator reads."""
    with pytest.raises(SettingsError) as error, in_process(**settings):
        pass
    return str(error.value)


@contextmanager
def running_service(
    database_url: str, clock: ManualClock, *, alertmanager_minimum: timedelta = timedelta(0)
) -> Iterator[TestClient]:
    """A client of the service on a migrated database; its event loop has real time."""
    settings = Settings(
        database_url=database_url,
        database_timeout=timedelta(seconds=30),
        alertmanager_minimum=alertmanager_minimum,
    )
    with TestClient(create_app(settings, clock=clock), base_url="http://localhost") as client:
        yield client


async def _run(app: FastAPI, ready: Future[dict[str, Any]], stop: asyncio.Event) -> None:
    try:
        async with app.router.lifespan_context(app) as state:
            ready.set_result(dict(state or {}))
            await stop.wait()
            app.state.service.stop_streams()
    except BaseException as error:
        if ready.done():
            raise
        ready.set_exception(error)


class _Transport(httpx.BaseTransport):
    """Sends requests of other threads to the application, in the thread of its loop. An answer comes as a whole."""

    def __init__(self, app: FastAPI, portal: BlockingPortal, state: dict[str, Any]) -> None:
        async def with_state(scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Any]) -> None:
            await app({**scope, "state": dict(state)}, receive, send)

        self._asgi = httpx.ASGITransport(with_state, raise_app_exceptions=True)
        self._portal = portal

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request."""
        request.read()
        status, headers, body = self._portal.call(self._answer, request)
        return httpx.Response(status, headers=headers, content=body)

    async def _answer(self, request: httpx.Request) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        answer = await self._asgi.handle_async_request(request)
        body = b"".join([part async for part in answer.aiter_raw()])  # still compressed, as its headers say
        return answer.status_code, answer.headers.raw, body
