"""Lifespan: the start and the stop of the app by the ASGI lifespan protocol, with its exceptions passed on."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI
from starlette.types import Message
from uvicorn import Config
from uvicorn.lifespan.off import LifespanOff


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
        """Stop the app."""
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
