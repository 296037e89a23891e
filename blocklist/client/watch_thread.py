"""The list as it comes from the service, read in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from blocklist.client.watch import Watch
from blocklist.model.changes import Change, Snapshot
from blocklist.model.tracker import BlocklistTracker, OutOfOrderError

log = logging.getLogger(__name__)


class WatchThread:
    """Keeps a BlocklistTracker up to date. `apply_pending` applies what was received; each item calls `on_update`.

    `tracker` is None until the first list. It belongs to the thread that calls `apply_pending`.
    """

    def __init__(self, open_watch: Callable[[], Watch], on_update: Callable[[], None]) -> None:
        self.tracker: BlocklistTracker | None = None
        self._open_watch = open_watch
        self._on_update = on_update
        self._received: SimpleQueue[tuple[Watch, Snapshot | Change]] = SimpleQueue()
        self._closed = threading.Event()
        self._watch = self._open_watch()
        threading.Thread(target=self._run, name="blocklist-watch", daemon=True).start()

    @property
    def connected(self) -> bool:
        return self._watch.connected

    @property
    def last_error(self) -> str | None:
        """What the service's last failure was, while it lasts."""
        return self._watch.last_error

    def apply_pending(self) -> bool:
        """Apply what has come; whether anything has."""
        updated = False
        while True:
            try:
                watch, item = self._received.get_nowait()
            except Empty:
                return updated
            # What an abandoned watch said last is part of the next one's snapshot.
            if watch is self._watch:
                updated |= self._apply(item)

    def close(self) -> None:
        """End the watch; the tracker stays as it is."""
        self._closed.set()
        self._watch.close()

    def _apply(self, item: Snapshot | Change) -> bool:
        if isinstance(item, Snapshot):
            if self.tracker is None:
                self.tracker = BlocklistTracker(item)
            else:
                self.tracker.reset(item)
            return True
        if self.tracker is None:
            return False
        try:
            self.tracker.apply(item)
        except OutOfOrderError:
            # A change is missing. The next watch begins with the whole list; until then the last one stands.
            old, self._watch = self._watch, self._open_watch()
            old.close()
            return False
        return True

    def _run(self) -> None:
        while not self._closed.is_set():
            watch = self._watch
            try:
                for item in watch:
                    self._received.put((watch, item))
                    self._on_update()
            except Exception:
                # No list is worth the thread: the last one stands, and a new watch begins with the whole list.
                log.exception("Reading the watch failed; trying again.")
            if watch is self._watch and not self._closed.wait(1):
                self._watch = self._open_watch()
