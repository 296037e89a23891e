"""What else the service calls the nodes on its list: Flink may know a node by another name, or by its address.

Flink's node id is by default the address of the TaskManager; an operator blocks the name that the inventory has.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from blocklist.model.errors import AmbiguousNodeError, BlocklistError, NotFoundError
from blocklist.wire.inventory import KnownNodeBody

log = logging.getLogger("blocklist.flink")

REFRESH: Final = 30.0
"""Seconds after which a node is looked up again: the inventory may have learnt more."""
_RETRY: Final = 2.0
_PAUSE: Final = 0.05
"""Seconds between two lookups that renew what is known: a long list must not keep the service busy."""


class NodeAliases(Protocol):
    """Further names and addresses of nodes on the list."""

    def follow(self, listed: Collection[str]) -> None:
        """These nodes are on the list now."""

    def names_of(self, node_id: str) -> frozenset[str] | None:
        """None if they have not been looked up yet."""


class NoAliases:
    """Without an inventory."""

    def follow(self, listed: Collection[str]) -> None: ...

    def names_of(self, node_id: str) -> frozenset[str]:  # noqa: ARG002 - as the protocol
        return frozenset()


class InventoryNames:
    """Looks nodes up in a thread of its own, as the service may be slow: rounds must not wait for it.

    THREADING: use it from any thread. Memory: an entry for each node on the list.
    """

    def __init__(self, look_up: Callable[[str], KnownNodeBody], on_update: Callable[[], None]) -> None:
        """`look_up` asks the service; `on_update` is called when names have become known or others."""
        self._look_up = look_up
        self._on_update = on_update
        self._names: Mapping[str, frozenset[str]] = {}
        self._listed: frozenset[str] = frozenset()
        self._due: dict[str, float] = {}
        self._failing = False
        self._changed, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="blocklist-flink-names", daemon=True)
        self._thread.start()

    def follow(self, listed: Collection[str]) -> None:
        if self._listed != frozenset(listed):
            self._listed = frozenset(listed)
            self._changed.set()

    def names_of(self, node_id: str) -> frozenset[str] | None:
        return self._names.get(node_id)

    def close(self) -> None:
        """End the thread; a lookup that is under way may take its timeout."""
        self._closing.set()
        self._changed.set()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._changed.wait(self._look_up_due())
            except Exception:
                log.exception("The names of nodes cannot be looked up; retrying.")
                self._closing.wait(_RETRY)

    def _look_up_due(self) -> float:
        """Look up what is due, new nodes first; the seconds until the next one is due."""
        self._changed.clear()
        listed, before = self._listed, self._names
        self._due = {node_id: self._due.get(node_id, 0.0) for node_id in listed}
        self._names = {node_id: names for node_id, names in self._names.items() if node_id in listed}
        wait = REFRESH
        for node_id in sorted(listed, key=self._due.__getitem__):
            wait = max(0.0, self._due[node_id] - time.monotonic())
            if wait or self._changed.is_set():
                break
            known = node_id in self._names
            if not self._update(node_id):
                wait = _RETRY
                break
            if known:
                self._closing.wait(_PAUSE)
        if self._names != before:
            self._on_update()
        return wait

    def _update(self, node_id: str) -> bool:
        """Whether the service has answered."""
        try:
            names = self._ask(node_id)
        except BlocklistError as error:
            if not self._failing:
                log.warning("The names of node %s cannot be looked up (%s); retrying.", node_id, error)
            self._failing = True
            return False
        self._failing = False
        self._due[node_id] = time.monotonic() + REFRESH
        if self._names.get(node_id) != names:
            self._names = {**self._names, node_id: names}
        return True

    def _ask(self, node_id: str) -> frozenset[str]:
        try:
            known = self._look_up(node_id)
        except (NotFoundError, AmbiguousNodeError):
            # Nobody reports it, or several nodes: then it means no other one.
            return frozenset()
        return frozenset({known.id, *known.names, *known.addresses} - {node_id})
