"""Who waits: a client's place among those who hold a request open."""

from __future__ import annotations

from typing import Final

from fastapi import Request

from app.api.authentication import identify
from app.components import service_of
from app.watch.stream_quota import Client, Place

_LONGEST: Final = 64
"""Characters of an address that a proxy names."""


async def place_of(request: Request) -> Place:
    """The place of whoever asks. Raises UnavailableError if it has no room."""
    who = await identify(request)
    return service_of(request).waits.place(Client(who.name, _address(request)))


def _address(request: Request) -> str:
    """Where the request comes from; a trusted proxy names it last, behind what it was told itself."""
    peer = request.client.host if request.client is not None else ""
    forwarded = request.headers.getlist("x-forwarded-for")
    if forwarded and peer in service_of(request).proxies:
        return forwarded[-1].rpartition(",")[2].strip()[:_LONGEST]
    return peer
