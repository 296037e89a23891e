"""The host names of addresses, from the resolver of this machine, which may be slow."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from blocklist.managers.yarn.interruptible import Stop
from blocklist.managers.yarn.node_names import UnresolvedError

log = logging.getLogger("blocklist.managers")

_LOOK_UP_SECONDS: Final = 3.0
"""For all look-ups of one plan."""
_KEPT_SECONDS: Final = 300.0
_RETRY_SECONDS: Final = 30.0
"""After a look-up that failed: meanwhile others have their turn."""
_HOST_NOT_FOUND: Final = 1
_NO_DATA: Final = 4


@dataclass(slots=True)
class _Known:
    """`names` is None until a look-up has succeeded. `since_start`: asked for by the first plan."""

    since_start: bool
    names: Collection[str] | None = None
    next_look_up: float = 0.0


class AddressNames:
    """Remembers what it has looked up, and asks again after some minutes. A look-up that fails takes no name away.

    A name counts only if the address is one of its own: the reverse zone of an address is not always kept up. Memory is
    bounded by the list: an address that a plan does not ask for is forgotten. `looked_up`: this plan has waited for the
    resolver.
    """

    def __init__(self, stop: Stop, look_up: Callable[[str], Collection[str]] | None = None) -> None:
        self._stop = stop
        self._look_up = look_up or confirmed_names
        self._known: dict[str, _Known] = {}
        self._asked: set[str] = set()
        self._plans = 0
        self.looked_up = False
        self._deadline = 0.0

    def begin(self) -> None:
        """Begin a plan: allow look-ups for _LOOK_UP_SECONDS from now."""
        self._known = {address: known for address, known in self._known.items() if address in self._asked}
        self._asked.clear()
        self._plans += 1
        self.looked_up = False
        self._deadline = time.monotonic() + _LOOK_UP_SECONDS

    def __call__(self, address: str) -> Collection[str]:
        """Its names; none if it has none. Raises UnresolvedError if that is not known, and StoppedError."""
        self._asked.add(address)
        known = self._known.setdefault(address, _Known(since_start=self._plans == 1))
        now = time.monotonic()
        if known.next_look_up <= now < self._deadline:
            self._refresh(address, known, now)
        if known.names is None:
            raise UnresolvedError(address, since_start=known.since_start)
        return known.names

    def _refresh(self, address: str, known: _Known, now: float) -> None:
        self.looked_up = True
        try:
            names = self._stop.call(lambda: self._look_up(address), self._deadline - now)
        except (OSError, UnicodeError) as error:
            log.debug("The names of address %s are not known: %s", address, error)
            known.next_look_up = now + _RETRY_SECONDS
        else:
            # A resolver that is out of order may also answer that there are none.
            known.names = names or known.names or ()
            known.next_look_up = now + _KEPT_SECONDS


def confirmed_names(address: str) -> Collection[str]:
    """The names of an address that lead back to it. Raises OSError if the resolver does not know at the moment."""
    try:
        name, aliases, _ = socket.gethostbyaddr(address)
    except socket.herror as error:
        if error.errno in {_HOST_NOT_FOUND, _NO_DATA}:
            return ()
        raise
    return [each for each in (name, *aliases) if address in _addresses(each)]


def _addresses(name: str) -> Collection[object]:
    try:
        return {found[4][0] for found in socket.getaddrinfo(name, None)}
    except UnicodeError:
        return ()
    except socket.gaierror as error:
        if error.errno in {socket.EAI_NONAME, socket.EAI_NODATA, socket.EAI_ADDRFAMILY}:
            return ()
        raise
