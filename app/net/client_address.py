"""The address of the client behind trusted proxies. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.net.addresses import Networks

_MAX_ADDRESS: Final = 64
"""Maximum number of characters of an address in X-Forwarded-For."""


def client_address(peer: str, forwarded_for: Sequence[str], trusted_proxies: Networks) -> str:
    """The address of the client. A trusted proxy appends it to the X-Forwarded-For headers that it received."""
    if forwarded_for and peer in trusted_proxies:
        return forwarded_for[-1].rpartition(",")[2].strip()[:_MAX_ADDRESS]
    return peer
