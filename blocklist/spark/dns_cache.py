"""What addresses names have. Asked in a thread of its own, as a name server may take its time."""

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
"""Seconds that an answer is used; then the name is asked for again, and the old answer holds meanwhile."""
NEGATIVE_TTL: Final = 60.0
"""Seconds until a name without an answer is asked for again."""


class DnsCache:
    """Names to addresses, as far as known. `known` is replaced, never changed, and read by any thread.

    Call `want` with all names of interest: it returns at once, and `told` is called when `known` has changed. Names
    no longer wanted are forgotten.
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
        """These names, and no others, are of interest; addresses among them need no answer."""
        wanted = frozenset(name.lower() for name in names if normalize_address(name) is None)
        if wanted != self._names:
            self._names = wanted
            self._wake.set()

    def close(self) -> None:
        """Ask no more. Does not wait for an answer that is still to come."""
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
            self.addresses = {name: own for name, own in self.addresses.items() if name in wanted}
        now = time.monotonic()
        return [name for name in wanted if self._refresh_at.get(name, now) <= now]

    def _resolve_names(self, names: Iterable[str]) -> None:
        """Ask for these names. What is known is replaced once for all of them, unless an answer takes long."""
        found = dict(self.addresses)
        last = time.monotonic()
        for name in names:
            if self._closed:
                return
            own = self._resolve(name)
            self._refresh_at[name] = time.monotonic() + (TTL if own else NEGATIVE_TTL)
            if own:
                found[name] = own
            if time.monotonic() - last > 1:
                self.addresses, last = dict(found), time.monotonic()
                self._on_change()
        self.addresses = found

    def _wait_seconds(self) -> float | None:
        return max(0.0, min(self._refresh_at.values()) - time.monotonic()) if self._refresh_at else None


def resolve_addresses(name: str) -> frozenset[str]:
    """The addresses of a name, none when nobody knows it."""
    try:
        return frozenset(str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        return frozenset()
