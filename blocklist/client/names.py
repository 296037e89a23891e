"""What else the service calls the nodes on its list: a cluster manager may know a node by another name or address.

An operator blocks a name that the nodes file or another cluster's manager reports; Flink's id of a node is by default
the address of its TaskManager.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from blocklist.model.errors import AmbiguousNodeError, BlocklistError, NotFoundError
from blocklist.wire.listeners import KnownNodeBody

log = logging.getLogger(__name__)

REFRESH: Final = 30.0
"""Seconds after which a node is looked up again: the inventory may have learnt more."""
KEPT: Final = 3600.0
"""Seconds for which the names of a node count after a manager has ceased to report it: that, or the service, may be
restarting, and what is blocked under such a name must stay so."""
_RETRY: Final = 2.0
_PAUSE: Final = 0.05
"""Seconds between two lookups that renew what is known: a long list must not keep the service busy."""
_MANAGER: Final = "RESOURCE_MANAGER"


@dataclass(frozen=True, slots=True)
class _ServiceNames:
    """The names of a node, the managers that report it, and when all of these last did, in monotonic seconds."""

    names: frozenset[str] = frozenset()
    managers: frozenset[str] = frozenset()
    at: float = 0.0

    def after(self, now: _ServiceNames) -> _ServiceNames:
        """What counts once the service has answered `now`."""
        if self.managers <= now.managers or now.at - self.at > KEPT:
            return now
        return replace(self, names=self.names | now.names, managers=self.managers | now.managers)


class InventoryNames:
    """Looks nodes up in a thread of its own, as the service may be slow: nothing else must wait for it.

    THREADING: use it from any thread. Memory: an entry for each node that it follows.
    """

    def __init__(self, look_up: Callable[[str], KnownNodeBody], on_update: Callable[[], None]) -> None:
        """`look_up` asks the service; `on_update` is called when names have become known or others."""
        self._look_up = look_up
        self._on_update = on_update
        self._known: dict[str, _ServiceNames] = {}
        self._followed: frozenset[str] = frozenset()
        self._due: dict[str, float] = {}
        self._failing = False
        self._changed, self._closing = threading.Event(), threading.Event()
        self._answered = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="blocklist-names", daemon=True)
        self._thread.start()

    @property
    def followed(self) -> frozenset[str]:
        return self._followed

    def follow(self, node_ids: Collection[str]) -> None:
        """Look these nodes up, now and again; forget all others."""
        if self._followed != frozenset(node_ids):
            self._followed = frozenset(node_ids)
            self._changed.set()

    def names_of(self, node_id: str) -> frozenset[str] | None:
        """None if they have not been looked up yet."""
        known = self._known.get(node_id)
        return None if known is None else known.names

    def known(self) -> Mapping[str, frozenset[str]]:
        """The names of all nodes that have been looked up."""
        return {node_id: known.names for node_id, known in self._known.copy().items()}

    def wait(self, seconds: float) -> None:
        """Wait until all followed nodes have been looked up, for at most this time; not while lookups fail."""
        with self._answered:
            self._answered.wait_for(lambda: self._failing or self._followed <= self._known.keys(), seconds)

    def close(self) -> None:
        """End the thread; a lookup that is under way may take its timeout."""
        self._closing.set()
        self._changed.set()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._changed.wait(self._look_up_due())
            except Exception:
                if self._closing.is_set():  # What it asks may be closed as well.
                    return
                log.exception("The names of nodes cannot be looked up; retrying.")
                self._note_failing(failing=True)
                self._closing.wait(_RETRY)

    def _look_up_due(self) -> float:
        """Look up what is due, new nodes first; the seconds until the next one is due."""
        self._changed.clear()
        followed, before = self._followed, self.known()
        self._due = {node_id: self._due.get(node_id, 0.0) for node_id in followed}
        self._known = {node_id: known for node_id, known in self._known.items() if node_id in followed}
        wait = REFRESH
        for node_id in sorted(followed, key=self._due.__getitem__):
            wait = max(0.0, self._due[node_id] - time.monotonic())
            if wait or self._changed.is_set():
                break
            known = node_id in self._known
            if not self._update(node_id):
                wait = _RETRY
                break
            if known:
                self._closing.wait(_PAUSE)
        if self.known() != before:
            self._on_update()
        return wait

    def _update(self, node_id: str) -> bool:
        """Whether the service has answered."""
        try:
            now = self._ask(node_id)
        except BlocklistError as error:
            if not self._failing:
                log.warning("The names of node %s cannot be looked up (%s); retrying.", node_id, error)
            self._note_failing(failing=True)
            return False
        self._due[node_id] = time.monotonic() + REFRESH
        self._known[node_id] = self._known.get(node_id, now).after(now)
        self._note_failing(failing=False)
        return True

    def _note_failing(self, *, failing: bool) -> None:
        with self._answered:
            self._failing = failing
            self._answered.notify_all()

    def _ask(self, node_id: str) -> _ServiceNames:
        try:
            node = self._look_up(node_id)
        except (NotFoundError, AmbiguousNodeError):
            # Nobody reports it, or several nodes: then it means no other one.
            return _ServiceNames(at=time.monotonic())
        # What other nodes have as well does not tell which of them is meant.
        names = {node.id, *node.names, *node.addresses} - {node_id, *node.conflicts}
        managers = {source.id for source in node.reported_by if source.kind == _MANAGER}
        return _ServiceNames(frozenset(names), frozenset(managers), time.monotonic())
