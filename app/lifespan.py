"""Lifespan: the app's own, in the server's task."""

from __future__ import annotations

from fastapi import FastAPI
from uvicorn import Config
from uvicorn.lifespan.off import LifespanOff


class Lifespan(LifespanOff):
    """What is wrong at the start comes out of it as it was raised; uvicorn's own would write a traceback and exit."""

    def __init__(self, config: Config, app: FastAPI) -> None:
        super().__init__(config)
        self._context = app.router.lifespan_context(app)

    async def startup(self) -> None:
        """Enter; the app's state is for each connection."""
        self.state.update(await self._context.__aenter__() or {})

    async def shutdown(self) -> None:
        """Leave."""
        await self._context.__aexit__(None, None, None)
