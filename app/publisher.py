"""Memory: what moves on in this process with each committed change, in this order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.engine.evidence_blocks import on_changes
from app.engine.last_changes import LastChanges
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
    """See app.engine.handler.Memory. Belongs to the event loop.

    A change is counted and logged by the replica that made it. Where there are no others, one that is found was
    made here, by a commit that seemed to fail.
    """

    origins: LastChanges
    view: ListView
    feed: ChangeFeed
    evidence: EvidenceStore
    directory: ListenerDirectory
    metrics: Metrics
    change_log: ChangeLogWriter
    replicated: bool

    def publish(self, changes: Sequence[Change], *, from_log: bool) -> None:
        """The tracker has moved on by these changes."""
        self.origins.apply(changes)
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
        """The tracker has begun anew with this list."""
        self.origins.reset(loaded.last_changes)
        self.view.reset()
        self.feed.reset()
        self.directory.reset()
