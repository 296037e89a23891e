"""Who waits: a client's place among those who hold a request open."""

from __future__ import annotations

from typing import Final

from fastapi import Request

from app.api.authentication import authenticate
from app.components import components_of
from app.watch.stream_quota import ClientKey, ClientSlots

_MAX_ADDRESS: Final = 64
"""Characters of an address that a proxy names."""


async def slots_of(request: Request) -> ClientSlots:
    """The place of whoever asks. Raises UnavailableError if it has no room."""
    principal = await authenticate(request)
    return components_of(request).stream_quota.slots_of(ClientKey(principal.name, _address(request)))


def _address(request: Request) -> str:
    """Where the request comes from; a trusted proxy names it last, behind what it was told itself."""
    peer = request.client.host if request.client is not None else ""
    forwarded = request.headers.getlist("x-forwarded-for")
    if forwarded and peer in components_of(request).trusted_proxies:
        return forwarded[-1].rpartition(",")[2].strip()[:_MAX_ADDRESS]
    return peer
