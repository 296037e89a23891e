"""Memory: what moves on in this process with each committed change, in this order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.engine.evidence_blocks import hear
from app.engine.last_changes import Origins
from app.engine.list_view import ListView
from app.listeners.directory import Roll
from app.logs.change_log import ChangeLines
from app.metrics.metrics import Metrics
from app.store.queries import Loaded
from app.watch.change_feed import ChangeFeed
from blocklist.model.changes import Change
from blocklist.model.evidence import EvidenceBook


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """See app.engine.handler.Memory. Belongs to the event loop.

    A change is counted and logged by the replica that made it. Where there are no others, one that is found was
    made here, by a commit that seemed to fail.
    """

    origins: Origins
    view: ListView
    feed: ChangeFeed
    evidence: EvidenceBook
    roll: Roll
    metrics: Metrics
    lines: ChangeLines
    replicated: bool

    def publish(self, changes: Sequence[Change], *, found: bool) -> None:
        """The tracker has moved on by these changes."""
        self.origins.apply(changes)
        self.view.apply(changes)
        self.feed.publish(changes)
        hear(self.evidence, changes)
        if found:
            self.metrics.found(changes)
        else:
            self.metrics.count(changes)
        if not (found and self.replicated):
            self.lines.write(changes)

    def restart(self, loaded: Loaded) -> None:
        """The tracker has begun anew with this list."""
        self.origins.restart(loaded.origins)
        self.view.restart()
        self.feed.restart()
        self.roll.restart()
