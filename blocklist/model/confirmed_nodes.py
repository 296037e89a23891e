"""ConfirmedNodes: the nodes that listeners name, and which principals name each of them. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from blocklist.model.host_matching import host_key


class ConfirmedNodes:
    """A node is confirmed if two principals name it: none can invent any, however many listeners it registers.

    Without authentication everybody is trusted: each listener is its own principal, and one that names a node is
    enough. With it, a listener without a principal does not count. The length is the number of confirmed nodes.
    """

    def __init__(self, *, authenticated: bool) -> None:
        self._authenticated = authenticated
        self._required = 2 if authenticated else 1
        self._principals: dict[str, str | None] = {}
        self._named: dict[str, frozenset[str]] = {}
        self._naming: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._confirmed = 0

    def __len__(self) -> int:
        return self._confirmed

    def add_listener(self, listener: str, principal: str | None) -> None:
        """Add a listener, or change its principal; it keeps the nodes that it names."""
        witness = principal if self._authenticated else listener
        if self._principals.get(listener) == witness:
            return
        named = self._named.get(listener, frozenset())
        self._withdraw(listener, named)
        self._principals[listener] = witness
        self._add(listener, named)

    def remove_listener(self, listener: str) -> None:
        """Remove a listener and what it names."""
        self._withdraw(listener, self._named.pop(listener, frozenset()))
        self._principals.pop(listener, None)

    def set_nodes(self, listener: str, names: Iterable[str]) -> None:
        """Replace the nodes that a listener names."""
        before, after = self._named.get(listener, frozenset()), frozenset(map(host_key, names))
        self._named[listener] = after
        self._withdraw(listener, before - after)
        self._add(listener, after - before)

    def principal_of(self, listener: str) -> str | None:
        """The principal of a listener; None if unknown."""
        return self._principals.get(listener)

    def is_confirmed(self, name: str) -> bool:
        """Whether enough principals name this node."""
        return len(self._naming.get(host_key(name), ())) >= self._required

    def _add(self, listener: str, keys: Iterable[str]) -> None:
        principal = self._principals.get(listener)
        if principal is None:
            return
        for key in keys:
            principals = self._naming[key]
            principals[principal] += 1
            self._confirmed += principals[principal] == 1 and len(principals) == self._required

    def _withdraw(self, listener: str, keys: Iterable[str]) -> None:
        principal = self._principals.get(listener)
        if principal is None:
            return
        for key in keys:
            principals = self._naming[key]
            principals[principal] -= 1
            if not principals[principal]:
                self._confirmed -= len(principals) == self._required
                del principals[principal]
            if not principals:
                del self._naming[key]
