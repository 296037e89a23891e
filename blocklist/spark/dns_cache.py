"""Addresses of host names. A separate thread resolves them, because a name server may be slow."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from blocklist.model.host_matching import normalize_address

log = logging.getLogger(__name__)

TTL: Final = 600.0
"""Seconds until a resolved name is resolved again; until then, and during it, its last addresses are used."""
NEGATIVE_TTL: Final = 60.0
"""Seconds until a name that could not be resolved is tried again."""


class DnsCache:
    """Maps names to their addresses. `addresses` is replaced, never mutated; any thread may read it.

    `set_names` returns at once; `on_change` is called, from the resolver's thread, whenever `addresses` has changed.
    """

    def __init__(self, on_change: Callable[[], None], resolve: Callable[[str], frozenset[str]] | None = None) -> None:
        self.addresses: Mapping[str, frozenset[str]] = {}
        self._on_change = on_change
        self._resolve = resolve or resolve_addresses
        self._names: frozenset[str] = frozenset()
        self._refresh_at: dict[str, float] = {}
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="blocklist-addresses", daemon=True)
        self._thread.start()

    def set_names(self, names: Iterable[str]) -> None:
        """Resolve these names, and drop all others. Addresses among them are ignored."""
        wanted = frozenset(name.lower() for name in names if normalize_address(name) is None)
        if wanted != self._names:
            self._names = wanted
            self._wake.set()

    def close(self) -> None:
        """Stop resolving. Does not wait for a pending query."""
        self._closed = True
        self._wake.set()

    def _run(self) -> None:
        while not self._closed:
            due = self._due_names()
            if not due:
                self._wake.wait(self._wait_seconds())
                self._wake.clear()
                continue
            before = self.addresses
            self._resolve_names(due)
            if self.addresses != before and not self._closed:
                self._on_change()

    def _due_names(self) -> list[str]:
        wanted = self._names
        self._refresh_at = {name: at for name, at in self._refresh_at.items() if name in wanted}
        if not wanted.issuperset(self.addresses):
            self.addresses = {name: found for name, found in self.addresses.items() if name in wanted}
        now = time.monotonic()
        return [name for name in wanted if self._refresh_at.get(name, now) <= now]

    def _resolve_names(self, names: Iterable[str]) -> None:
        """Resolve these names. `addresses` is replaced once at the end, and after each second that this takes."""
        found = dict(self.addresses)
        last = time.monotonic()
        for name in names:
            if self._closed:
                return
            addresses = self._resolve(name)
            self._refresh_at[name] = time.monotonic() + (TTL if addresses else NEGATIVE_TTL)
            if addresses:
                found[name] = addresses
            if time.monotonic() - last > 1:
                self.addresses, last = dict(found), time.monotonic()
                self._on_change()
        self.addresses = found

    def _wait_seconds(self) -> float | None:
        return max(0.0, min(self._refresh_at.values()) - time.monotonic()) if self._refresh_at else None


def resolve_addresses(name: str) -> frozenset[str]:
    """Return the addresses of a name; empty if it cannot be resolved."""
    try:
        return frozenset(str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        return frozenset()
