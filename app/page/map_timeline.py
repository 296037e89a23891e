"""The last changes for the wall display, those that belong together in one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.page.block_intervals import cause_group
from app.service import Service
from blocklist.model.changes import Change
from blocklist.model.errors import UnavailableError

MAX_CHANGES: Final = 300
"""Number of changes that are read: those of a storm become a few lines."""
MAX_LINES: Final = 40
NAMED: Final = 2
"""Number of nodes that a line names."""
_GAP_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class TimelineLine:
    """Changes of one kind by one author for one cause, each at most a minute after the one before, the newest first."""

    changes: Sequence[Change]

    @property
    def last(self) -> Change:
        return self.changes[0]

    @property
    def named(self) -> Sequence[str]:
        """The ids of its first nodes; all of them if only one more is left."""
        names = [change.node.id for change in reversed(self.changes)]
        return names if len(names) <= NAMED + 1 else names[:NAMED]

    @property
    def more(self) -> int:
        return len(self.changes) - len(self.named)


async def timeline(service: Service) -> list[TimelineLine] | None:
    """The lines, the newest first; None while the change log cannot be read."""
    feed = service.feed
    try:
        changes = await feed.changes(max(0, feed.revision - MAX_CHANGES), feed.revision)
        if changes is None:
            changes = list(reversed(await service.store.latest_changes(MAX_CHANGES)))
    except UnavailableError:
        return None
    return timeline_lines(list(reversed(changes)))


def timeline_lines(changes: Sequence[Change]) -> list[TimelineLine]:
    """The lines of changes, the newest first. Two kinds may alternate, as in a storm of alerts of both actions."""
    lines: list[list[Change]] = []
    latest: dict[tuple[object, ...], list[Change]] = {}
    for change in changes:
        line = latest.get(_kind(change))
        if line is None or line[-1].at - change.at > _GAP_MS:
            line = latest[_kind(change)] = []
            lines.append(line)
        line.append(change)
    return [TimelineLine(line) for line in lines[:MAX_LINES]]


def _kind(change: Change) -> tuple[object, ...]:
    return change.type, change.created_by, cause_group(change.node.cause), change.node.short_action
