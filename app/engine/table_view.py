"""TableView: the current table for drivers, rendered once for each state of the list and of the known names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable
from typing import Final

from app.engine.broadcast import Broadcast
from app.engine.cached_list import CachedList
from blocklist.model.driver_table import DriverTable
from blocklist.model.names import Aliases, no_aliases
from blocklist.model.node import PERMANENT
from blocklist.model.tracker import BlocklistTracker

MAX_HELD_BACK_MS: Final = 2000
"""Maximum time for which the revision waits for names that are being applied: no reports may stop acknowledgements."""
_ETAG: Final = re.compile(rb'"([0-9a-f]{8})-([0-9]{1,16})-[0-9a-f]{16}(?:-gzip)?"')


class TableView:
    """The tracker's nodes as a table. Nothing is kept before the first read. Belongs to the event loop.

    `names_pending` is true while a long report of names is being applied. A table that may lack names has the revision
    of the last one that did not, so that a driver does not acknowledge what it cannot have in force yet.

    A block is left out from its end on. That notifies nobody: drivers know the end of each block.
    """

    def __init__(
        self,
        tracker: BlocklistTracker,
        clock: Callable[[], int],
        identifiers: Aliases = no_aliases,
        names_pending: Callable[[], bool] = lambda: False,
    ) -> None:
        self.changed = Broadcast()
        self.fast_reads = 0
        self._tracker = tracker
        self._clock = clock
        self._identifiers = identifiers
        self._names_pending = names_pending
        self._table: DriverTable | None = None
        self._cached: CachedList | None = None
        self._ended: set[str] = set()
        self._complete = (tracker.history, 0)
        self._outdated = False
        self._pending_since: int | None = None

    def apply(self, node_ids: Iterable[str]) -> None:
        """The tracker has applied changes of these nodes."""
        if self._table is not None:
            for node_id in node_ids:
                self._update(self._table, node_id)
        self._invalidate()

    def reset(self) -> None:
        """The tracker was reset."""
        self._table = None
        self._ended.clear()
        self._invalidate()

    def names_changed(self, names: Collection[str]) -> None:
        """These names may mean other machines now; `names_pending` may have changed."""
        if self._table is None:
            return
        awaiting = self._awaits_names(self._clock())
        self._outdated |= self._table.names_changed(names)
        if self._outdated and not awaiting:
            self._invalidate()

    def current(self) -> CachedList:
        """The current table, rendered now unless the cached one is valid."""
        if self._cached is None or self._clock() >= self._cached.valid_until:
            self._cached = self._render()
        return self._cached

    def revision_ahead(self, if_none_match: bytes) -> int | None:
        """The revision of an ETag that another replica sent, if this one does not have it yet."""
        history = self._tracker.history.encode()
        revisions = (int(revision) for own, revision in _ETAG.findall(if_none_match) if own == history)
        newest = max(revisions, default=0)
        return newest if newest > self._tracker.revision else None

    def _invalidate(self) -> None:
        self._cached = None
        self._outdated = False
        self.changed.notify_all()

    def _render(self) -> CachedList:
        now = self._clock()
        table, revision, history = self._current_table(now), self._revision(now), self._tracker.history
        body = table.text(revision).encode()
        tag = f"{history}-{revision}-{hashlib.sha256(body).hexdigest()[:16]}"
        return CachedList(
            body,
            revision=revision,
            history=history,
            valid_until=self._next_end(now),
            tag=tag.encode(),
            media_type=b"text/plain; charset=utf-8",
        )

    def _current_table(self, now: int) -> DriverTable:
        if self._table is None:
            self._table = DriverTable(self._tracker, self._tracker.aliases, self._identifiers)
        ended = {node.id for node in self._tracker.ended(now) if node.ended(now)}
        # Both ways, because the clock may be set back.
        for node_id in ended - self._ended:
            self._table.discard(node_id)
        for node_id in self._ended - ended:
            self._update(self._table, node_id)
        self._ended = ended
        return self._table

    def _update(self, table: DriverTable, node_id: str) -> None:
        self._ended.discard(node_id)
        if (node := self._tracker.get(node_id)) is None:
            table.discard(node_id)
        else:
            table.set(node)

    def _revision(self, now: int) -> int:
        """The revision whose nodes the table has with all their names."""
        tracker = self._tracker
        self._outdated = self._awaits_names(now)
        if not self._outdated:
            self._complete = (tracker.history, tracker.revision)
        history, revision = self._complete
        return revision if history == tracker.history else 0

    def _awaits_names(self, now: int) -> bool:
        """Whether names are being applied, and drivers are not notified until they are."""
        if not self._names_pending():
            self._pending_since = None
            return False
        if self._pending_since is None:
            self._pending_since = now
        return now - self._pending_since < MAX_HELD_BACK_MS

    def _next_end(self, now: int) -> int:
        """When the rendered table ceases to be right by itself, in Unix ms."""
        until = self._tracker.next_expiry()
        if until > now:
            return until
        return min((node.end for node in self._tracker if not node.ended(now)), default=PERMANENT)
