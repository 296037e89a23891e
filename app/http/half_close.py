"""A client that has half closed its connection (shutdown(SHUT_WR)): it sends nothing more, but may still read."""

from __future__ import annotations

from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class HalfClosable(Protocol):
    """A connection."""

    half_closed: bool


class HalfCloseApp:
    """Runs the application for one request, whose response is sent even if the client has half closed the connection.

    The end of a connection looks the same. So what the application does until the client disconnects, a stream or the
    wait for listeners, ends then: the client may be gone.
    """

    __slots__ = ("_app", "_body_received", "_connection", "_cycle", "_receive")

    def __init__(self, app: ASGIApp, connection: HalfClosable, cycle: RequestResponseCycle) -> None:
        self._app = app
        self._connection = connection
        self._cycle = cycle
        self._body_received = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive = receive
        await self._app(scope, self.receive, send)
        if self._connection.half_closed and self._cycle.response_started and not self._cycle.response_complete:
            # A stream has ended. uvicorn would log that as an error of the application.
            self._cycle.disconnected = True
            self._cycle.transport.close()

    async def receive(self) -> Message:
        if not (self._body_received and self._connection.half_closed):
            message = await self._receive()
            if not (self._body_received and self._connection.half_closed):
                self._body_received = not message.get("more_body", False)
                return message
        return {"type": "http.disconnect"}
