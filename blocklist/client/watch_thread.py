"""WatchThread: keeps a tracker up to date from a watch that a background thread reads."""

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
    """Receives a watch in a daemon thread; `apply_pending` applies what was received to `tracker`.

    `tracker` is None until the first snapshot. It belongs to the thread that calls `apply_pending`. `on_update` is
    called in the daemon thread for each received item.
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
        """The error of the current outage; None while connected."""
        return self._watch.last_error

    def apply_pending(self) -> bool:
        """Apply everything received; return whether the tracker changed."""
        updated = False
        while True:
            try:
                watch, item = self._received.get_nowait()
            except Empty:
                return updated
            # Items of a replaced watch are part of the next watch's snapshot.
            if watch is self._watch:
                updated |= self._apply(item)

    def close(self) -> None:
        """End the watch; the tracker remains as it is."""
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
            # A change is missing. A new watch starts with a snapshot; until then the tracker remains as it is.
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
                # Whatever happens, the thread goes on: a new watch starts with a snapshot.
                log.exception("Reading the watch failed; retrying.")
            if watch is self._watch and not self._closed.wait(1):
                self._watch = self._open_watch()
