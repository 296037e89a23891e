"""A connection parses one request at a time, and no more in one turn than others can wait for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from app.http import connection
from app.http.connection import PIECES_PER_TURN, ConnectionLimits, HttpConnection

pytestmark = pytest.mark.anyio

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


class Transport:
    """As much of a transport as a connection uses."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.reading = True
        self.closed = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    @property
    def written(self) -> bytes:
        return b"".join(self.writes)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_extra_info(self, _: str) -> None:
        return None


class App:
    """Answers each request once it has its body and may go on."""

    def __init__(self) -> None:
        self.begun = 0
        self.bodies: list[bytes] = []
        self.may_go_on = asyncio.Event()

    async def __call__(self, _: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Any]) -> None:
        self.begun += 1
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        await self.may_go_on.wait()
        self.bodies.append(body)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})


def connect(
    app: Callable[..., Awaitable[None]], limits: ConnectionLimits | None = None
) -> tuple[HttpConnection, Transport]:
    config = uvicorn.Config(app, log_config=None)
    config.load()
    state = {"connection_limits": limits or ConnectionLimits(10), "fast_path": None}
    opened = HttpConnection(config=config, server_state=ServerState(), app_state=state)
    transport = Transport()
    opened.connection_made(transport)  # type: ignore[arg-type]
    return opened, transport


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - nothing else notifies
            await asyncio.sleep(0)


async def test_what_comes_behind_a_request_stays_bytes_until_it_has_its_response() -> None:
    opened, transport = connect(app := App())
    for _ in range(2):
        # Between the two the application, which waits for its client to disconnect, has resumed reading.
        opened.data_received(GET * 500)
        await asyncio.sleep(0.01)
    assert app.begun == 1
    assert opened._limits.unfinished_bytes == len(GET) * 999
    assert not transport.reading
    app.may_go_on.set()
    await until(lambda: len(app.bodies) == 1000)
    await until(lambda: transport.reading)
    assert transport.written.count(b"HTTP/1.1 204 ") == 1000
    assert opened._limits.unfinished_bytes == 0


async def test_a_response_is_written_as_a_whole_and_in_order() -> None:
    """A proxy that has passed on the head of a replica cannot ask another one if this is killed before the body."""

    async def app(scope: Any, _: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if scope["path"] == "/late":
            await asyncio.sleep(0.01)
        await send({"type": "http.response.body", "body": b"ok"})

    opened, transport = connect(app)
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"
    opened.data_received(GET.replace(b"GET", b"HEAD") + GET + GET.replace(b"/ ", b"/late ", 1))
    await until(lambda: len(transport.writes) == 4)
    assert transport.writes == [head, head + b"ok", head, b"ok"]


@pytest.mark.parametrize("cut", [1, 7, 100_000])
async def test_tiny_chunks_are_parsed_in_turns(monkeypatch: pytest.MonkeyPatch, cut: int) -> None:
    """Four clients without credentials that sent them kept all others waiting for seconds."""
    opened, transport = connect(app := App())
    app.may_go_on.set()
    parsed = 0

    def on_body(body: bytes) -> None:
        nonlocal parsed
        parsed += len(body)
        type(opened).__base__.on_body(opened, body)  # type: ignore[union-attr]

    monkeypatch.setattr(HttpConnection, "on_body", lambda _, body: on_body(body))
    sent = CHUNKED + b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n" + GET
    for begin in range(0, len(sent), cut):
        before = parsed
        opened.data_received(sent[begin : begin + cut])
        assert parsed - before <= PIECES_PER_TURN
        await asyncio.sleep(0)
    await until(lambda: len(app.bodies) == 2)
    assert app.bodies == [b"x" * 5000, b""]
    await until(lambda: transport.reading)


@pytest.mark.parametrize(
    "behind", [b"", GET, GET[:10], b"\r\n\r\n" + GET], ids=["nothing", "a request", "half a request", "blank lines"]
)
@pytest.mark.parametrize(
    "body",
    [b"5\r\nabcde\r\n0\r\n\r\n", b"5;a=b\r\nabcde\r\n0;c\r\nX: y\r\n\r\n", b"00005\r\nabcde\r\n000\r\n\r\n"],
    ids=["plain", "extensions and trailers", "zeros"],
)
def test_a_body_ends_where_the_parser_ends_it(body: bytes, behind: bytes) -> None:
    async def scenario(cut: int) -> None:
        opened, _ = connect(app := App())
        app.may_go_on.set()
        sent = CHUNKED + body + behind
        for part in (sent[:cut], sent[cut:]):
            opened.data_received(part)
        await until(lambda: len(app.bodies) == 1 + (GET in behind))
        assert app.bodies[0] == b"abcde"

    for cut in range(len(CHUNKED), len(CHUNKED + body + behind)):
        asyncio.run(scenario(cut))


async def test_beyond_the_limit_the_oldest_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_UNFINISHED_BYTES", 100)
    old, old_transport = connect(App())
    new, new_transport = connect(App())
    new._limits = old._limits
    old.data_received(b"GET / HTTP/1.1\r\nX: " + b"x" * 50)
    new.data_received(b"GET / HTTP/1.1\r\nX: " + b"x" * 50)
    assert (old_transport.closed, new_transport.closed) == (True, False)
    assert old_transport.written.startswith(b"HTTP/1.1 503 ")
    assert new._limits.unfinished_bytes == 69


def test_requests_are_begun_one_in_a_turn_and_those_of_each_client_alternately() -> None:
    """A hundred lists that one client asked for at once kept everybody waiting for seconds, health checks too."""
    begun: list[tuple[int, str]] = []
    turn = 0

    async def app(scope: Any, _: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        begun.append((turn, scope["path"]))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    def get(path: str, *headers: str, method: str = "GET") -> bytes:
        return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode()

    async def scenario() -> None:
        nonlocal turn
        state = ConnectionLimits(100)
        heads = [get(f"/list/{number}", "Authorization: Bearer a") for number in range(20)]
        heads += [
            get("/other-token", "Authorization: Bearer b"),
            get("/session", "Cookie: s=1"),
            get("/heartbeat", "Authorization: Bearer a", method="POST"),
            get("/healthz", "Authorization: Bearer a"),
        ]
        for head in heads:
            connect(app, state)[0].data_received(head)
        lost = connect(app, state)[0]
        lost.data_received(get("/lost", "Authorization: Bearer a"))
        lost.connection_lost(None)
        while len(begun) < len(heads):
            await asyncio.sleep(0)
            turn += 1
        await asyncio.sleep(0.01)
        turns, paths = zip(*begun, strict=True)
        assert len(set(turns)) == len(turns)
        assert set(paths[:6]) == {"/list/0", "/list/1", "/other-token", "/session", "/heartbeat", "/healthz"}
        assert [path for path in paths if path.startswith("/list")] == [f"/list/{number}" for number in range(20)]
        assert "/lost" not in paths

    asyncio.run(scenario())


async def test_connections_are_accepted_before_the_next_request_is_begun() -> None:
    """A turn of uvloop accepts one: a health check would wait behind all that were opened before it."""
    app, limits = App(), ConnectionLimits(1000)
    for _ in range(2):
        connect(app, limits)[0].data_received(GET)
    for _ in range(5):
        await asyncio.sleep(0)
        connect(app, limits)
    assert app.begun == 1
    await until(lambda: app.begun == 2)
    # Not for ever.
    for _ in range(2):
        connect(app, limits)[0].data_received(GET)
    deadline = time.monotonic() + 30
    while app.begun < 4 and time.monotonic() < deadline:
        await asyncio.sleep(0)
        limits.turns.accept()
    assert app.begun == 4
    app.may_go_on.set()


@pytest.mark.parametrize(
    "target", [b"http://localhost", b"http://localhost?x", b"http://a:b/c", b"file:///c", b"http://[::/c"]
)
async def test_a_target_that_is_no_path_gets_400(target: bytes) -> None:
    """The connection was closed without a response."""
    opened, transport = connect(App())
    opened.data_received(GET.replace(b"/ ", target + b" ", 1))
    assert transport.written.startswith(b"HTTP/1.1 400 ")
    assert transport.closed
