"""Limits the number of requests that one client holds open (waits and watches)."""

from __future__ import annotations

from typing import Final

from fastapi import Request

from app.api.authentication import authenticate
from app.components import components_of
from app.watch.stream_quota import ClientKey, ClientSlots

_MAX_ADDRESS: Final = 64
"""Maximum number of characters of an address in X-Forwarded-For."""


async def slots_of(request: Request) -> ClientSlots:
    """The slots of the client that sent the request. Raises UnavailableError if all of them are in use."""
    principal = await authenticate(request)
    return components_of(request).access.stream_quota.slots_of(ClientKey(principal.name, _address(request)))


def _address(request: Request) -> str:
    """The address of the client. A trusted proxy appends it to the X-Forwarded-For that it received."""
    peer = request.client.host if request.client is not None else ""
    forwarded = request.headers.getlist("x-forwarded-for")
    if forwarded and peer in components_of(request).access.trusted_proxies:
        return forwarded[-1].rpartition(",")[2].strip()[:_MAX_ADDRESS]
    return peer
