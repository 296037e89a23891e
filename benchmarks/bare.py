"""ASGI apps that only send bytes: the minimum cost of a Python service under uvicorn."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

FOLDER = os.environ.get("BARE_FOLDER")


def _load(folder: Path) -> dict[str, tuple[Headers, bytes]]:
    """Load the responses by path: `NAME` has the body, `NAME.headers` the headers as a JSON object."""
    return {
        f"/{path.stem}": (_pairs(json.loads(path.read_text())), path.with_suffix("").read_bytes())
        for path in folder.glob("*.headers")
    }


def _pairs(headers: dict[str, str]) -> Headers:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


ANSWERS = _load(Path(FOLDER)) if FOLDER else {}


async def reads(scope: Scope, _receive: Receive, send: Send) -> None:
    """Send prepared bytes, or a 304 if the ETag matches."""
    headers, body = ANSWERS[scope["path"]]
    match = next((value for name, value in scope["headers"] if name == b"if-none-match"), None)
    if match is not None and (b"etag", match) in headers:
        bodiless = [header for header in headers if not header[0].startswith(b"content-")]
        await send({"type": "http.response.start", "status": 304, "headers": bodiless})
        await send({"type": "http.response.body", "body": b""})
        return
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


LOG: list[bytes] = []
WAITING: set[asyncio.Future[None]] = set()
DISCONNECT_WATCHERS: set[asyncio.Task[None]] = set()


async def watch(scope: Scope, receive: Receive, send: Send) -> None:
    """Broadcast server-sent events: a shared log, and a future per client. The body of a PUT is the event."""
    if scope["method"] == "PUT":
        LOG.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        for future in WAITING:
            future.set_result(None)
        WAITING.clear()
    elif scope["method"] == "GET":
        await _stream(receive, send)


async def _stream(receive: Receive, send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b": hello\n\n", "more_body": True})
    cursor = len(LOG)
    _cancel_on_disconnect(receive)
    while True:
        if cursor == len(LOG):
            await _change()
        await send({"type": "http.response.body", "body": b"".join(LOG[cursor:]), "more_body": True})
        cursor = len(LOG)


def _cancel_on_disconnect(receive: Receive) -> None:
    """A handler that only waits for changes does not notice that its client has disconnected."""
    stream = asyncio.current_task()
    assert stream is not None

    async def on_disconnect() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        stream.cancel()

    watcher = asyncio.create_task(on_disconnect())
    DISCONNECT_WATCHERS.add(watcher)  # the loop holds tasks weakly
    watcher.add_done_callback(DISCONNECT_WATCHERS.discard)


async def _change() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    WAITING.add(future)
    try:
        await future
    finally:
        WAITING.discard(future)
