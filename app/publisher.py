"""ChangePublisher: applies each committed change to everything in memory that follows the list, in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.engine.evidence_blocks import on_changes
from app.engine.list_details import LastChanges
from app.engine.list_view import ListView
from app.listeners.directory import ListenerDirectory
from app.logs.change_log import ChangeLogWriter
from app.metrics.metrics import Metrics
from app.store.queries import LoadedState
from app.watch.change_feed import ChangeFeed
from blocklist.model.changes import Change
from blocklist.model.evidence import EvidenceStore


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangePublisher:
    """See app.engine.handler.Publisher. Belongs to the event loop.

    The replica that made a change counts and logs it. Without other replicas, a change that is read from the log was
    made here, by a commit that seemed to fail.
    """

    last_changes: LastChanges
    view: ListView
    feed: ChangeFeed
    evidence: EvidenceStore
    directory: ListenerDirectory
    metrics: Metrics
    change_log: ChangeLogWriter
    replicated: bool

    def publish(self, changes: Sequence[Change], *, from_log: bool) -> None:
        """The tracker has applied these changes; `from_log`: they were read from the database."""
        self.last_changes.apply(changes)
        self.view.apply(changes)
        self.feed.publish(changes)
        on_changes(self.evidence, changes)
        if from_log:
            self.metrics.count_remote_changes(changes)
        else:
            self.metrics.count_changes(changes)
        if not (from_log and self.replicated):
            self.change_log.write(changes)

    def reset(self, loaded: LoadedState) -> None:
        """The tracker was reset to this list."""
        self.last_changes.reset(loaded.last_changes)
        self.view.reset()
        self.feed.reset()
        self.directory.reset()
