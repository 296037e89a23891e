"""Which values of the Host header the service accepts while authentication is off.

A web page can send requests to a loopback address under a name of its own (DNS rebinding); its Host is that name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

from blocklist.model.errors import BlocklistError

_LOOPBACK: Final = (r"(?:[a-z0-9-]+\.)*localhost", r"127(?:\.[0-9]{1,3}){3}", r"\[::1\]")
"""Browsers resolve `localhost` and names below it themselves (RFC 6761), so no DNS server can rebind them."""
_NAME: Final = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*", re.ASCII)


class MisdirectedError(BlocklistError):
    """The request was sent to a host name that the service does not accept; nothing was changed."""


class HostPolicy:
    """Accepts loopback names and addresses, and further `names`, with any port."""

    def __init__(self, names: Iterable[str]) -> None:
        """Raises ValueError for anything but host names and addresses."""
        further = [_pattern(name.strip().lower()) for name in names if name.strip()]
        pattern = rf"(?:{'|'.join((*_LOOPBACK, *further))})\.?(?::[0-9]*)?"
        self._pattern = re.compile(pattern.encode(), re.IGNORECASE)

    def accepts(self, host: bytes | None) -> bool:
        """Whether a request with this Host header is accepted. Without one it does not come from a browser."""
        return host is None or self._pattern.fullmatch(host) is not None


def _pattern(name: str) -> str:
    if _NAME.fullmatch(name) is not None:
        return re.escape(name)
    try:
        address = ip_address(name.strip("[]"))
    except ValueError:
        raise ValueError(f"{name!a} is neither a host name nor an address") from None
    return re.escape(f"[{address}]")
