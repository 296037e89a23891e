"""Limits the number of requests that one client holds open (waits and watches)."""

from __future__ import annotations

from fastapi import Request

from app.api.authentication import authenticate
from app.net.addresses import client_address
from app.service import service_of
from app.watch import ClientKey, ClientSlots


async def slots_of(request: Request) -> ClientSlots:
    """The slots of the client that sent the request. Raises UnavailableError if all of them are in use."""
    principal = await authenticate(request)
    return service_of(request).stream_quota.slots_of(ClientKey(principal.name, _address(request)))


def _address(request: Request) -> str:
    peer = request.client.host if request.client is not None else ""
    proxies = service_of(request).trusted_proxies
    return client_address(peer, request.headers.getlist("x-forwarded-for"), proxies)
