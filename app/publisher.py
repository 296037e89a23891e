"""ChangePublisher: applies each committed change to everything in memory that follows the list, in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from app.engine.dismissals import Dismissals
from app.engine.evidence_blocks import on_changes
from app.engine.list_details import LastChanges
from app.engine.list_view import ListView
from app.listeners.directory import ListenerDirectory
from app.logs.change_log import ChangeLogWriter
from app.logs.isolation import isolated
from app.metrics.metrics import Metrics
from app.notices.notifier import Notices
from app.store.queries import LoadedState
from app.watch.change_feed import ChangeFeed
from blocklist.model.automatic_blocks import AutomaticBlocks
from blocklist.model.changes import Change
from blocklist.model.evidence import EvidenceStore

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangePublisher:
    """See app.engine.handler.Publisher. Belongs to the event loop.

    The changes are committed: if a part fails, that is logged and the part is rebuilt. Neither the other parts nor the
    requests that made the changes fail with it.

    The replica that made a change counts and logs it. Without other replicas, a change that is read from the log was
    made here, by a commit that seemed to fail.
    """

    last_changes: LastChanges
    view: ListView
    feed: ChangeFeed
    evidence: EvidenceStore
    dismissals: Dismissals
    automatic_blocks: AutomaticBlocks
    directory: ListenerDirectory
    metrics: Metrics
    change_log: ChangeLogWriter
    notices: Notices
    replicated: bool

    def publish(self, changes: Sequence[Change], *, from_log: bool) -> None:
        """The tracker has applied these changes; `from_log`: they were read from the database."""
        try:
            self.last_changes.apply(changes)
            self.view.apply(changes)
            self.feed.publish(changes)
        except Exception:
            log.exception("a change could not be applied in memory; what follows the list is rebuilt")
            self._rebuild(changes)
        with isolated("evidence"):
            on_changes(self.evidence, changes)
        with isolated("dismissals"):
            self.dismissals.apply(changes)
        with isolated("automatic blocks"):
            self.automatic_blocks.apply(changes)
        with isolated("metrics of changes"):
            self._count(changes, from_log=from_log)
        with isolated("notices"):
            self.notices.publish(changes, from_log=from_log)
        if not (from_log and self.replicated):
            with isolated("change log"):
                self.change_log.write(changes)

    def reset(self, loaded: LoadedState) -> None:
        """The tracker was reset to this list."""
        with isolated("last changes"):
            self.last_changes.reset(loaded.last_changes)
        with isolated("automatic blocks"):
            self.automatic_blocks.reset(loaded.automatic_blocks)
        with isolated("list"):
            self.view.reset()
        with isolated("change feed"):
            self.feed.reset()
        with isolated("dismissals"):
            self.dismissals.reset(loaded.dismissals)
        with isolated("evidence"):
            on_changes(self.evidence, loaded.dismissals)
        with isolated("listeners"):
            self.directory.reset()
        with isolated("notices"):
            self.notices.reset()

    def _rebuild(self, changes: Sequence[Change]) -> None:
        """Read the list from the tracker again; watches read these changes from the database."""
        with isolated("last changes"):
            self.last_changes.forget(changes)
        with isolated("list"):
            self.view.reset()
        with isolated("change feed"):
            self.feed.reset()

    def _count(self, changes: Sequence[Change], *, from_log: bool) -> None:
        if from_log:
            self.metrics.count_remote_changes(changes)
        else:
            self.metrics.count_changes(changes)
