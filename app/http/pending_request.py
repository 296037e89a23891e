"""PendingRequest: a request that is answered below ASGI, later than it was read."""

from __future__ import annotations

import asyncio
from typing import Final


class PendingRequest:
    """A request without a response yet; stands in for uvicorn's RequestResponseCycle, with the attributes it reads."""

    __slots__ = ("body", "disconnected", "keep_alive", "response_complete")
    message_event: Final = asyncio.Event()

    def __init__(self) -> None:
        self.body = b""
        self.disconnected = False
        self.keep_alive = True
        self.response_complete = False
