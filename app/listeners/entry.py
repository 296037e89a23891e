"""ListenerEntry: one registered listener as this process knows it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from app.store.listeners import Secret
from blocklist.model.host_matching import Aliases, NameIndex, no_aliases
from blocklist.model.listener import Listener
from blocklist.model.report import EMPTY_REPORT, Report

if TYPE_CHECKING:
    from app.watch.change_feed import ChangeFeed

MAX_ACKS: Final = 256
"""Number of acknowledgements per listener whose times are kept."""


@dataclass(kw_only=True, slots=True, eq=False)
class ListenerEntry:
    """One registration of a listener; a renewal keeps the entry, a new session makes another.

    `owner` is the replica that pushes to it, None if there is only one. `error` is the outcome of the last push as
    callers see it, `logged_error` the same in the log of this replica.
    `confirmed` is whether it has sent a heartbeat since this process started: earlier reports are lost, and what it
    acknowledged then may not be in force any more.
    `report` is everything reported so far, without the evidence; `reported_at` is when each part was last reported
    (Unix ms); a part is a field of Report, or ERROR. `nodes` are the nodes it reported, in normal form.
    `task_manager_nodes` and `believed_nodes` are as last computed, each with what it was computed from. `acks` are
    pairs of a revision and when it was acknowledged (Unix ms).
    """

    listener: Listener
    secret: Secret
    owner: str | None = None
    expired: bool = False
    confirmed: bool = True
    error: str | None = None
    logged_error: str | None = None
    report: Report = EMPTY_REPORT
    reported_at: dict[str, int] = field(default_factory=dict)
    nodes: frozenset[str] | None = None
    task_manager_nodes: tuple[set[str], frozenset[str]] | None = None
    believed_nodes: tuple[tuple[frozenset[str] | None, frozenset[str], int], frozenset[str]] | None = None
    acks: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=MAX_ACKS))
    aliases: Aliases = no_aliases
    _refused_names: tuple[Mapping[str, str], NameIndex] | None = None

    @property
    def id(self) -> str:
        return self.listener.id

    def is_live(self, now: int) -> bool:
        """Whether the lease is valid at `now` (Unix ms); never again once it has expired, if the clock is set back."""
        return not self.expired and self.listener.is_live(now)

    def lease_time(self, now: int) -> int:
        """The time with which to compare the lease: `now`, or its end once it has expired (Unix ms)."""
        return max(now, self.listener.lease_end) if self.expired else now

    @property
    def refused(self) -> Mapping[str, str]:
        """Blocks that it does not carry out: node id to the reason."""
        return self.report.refused or {}

    @property
    def running_tasks(self) -> Mapping[str, int]:
        """Number of tasks that run on each TaskManager, for those that it reported."""
        return self.report.running_tasks or {}

    def next_timestamp(self, now: int) -> int:
        """The time of a new report: later than all earlier ones, also where another replica's clock is ahead."""
        return max([now, *(at + 1 for at in self.reported_at.values())])

    def has_acked(self, revision: int) -> bool:
        """Whether it has acknowledged the list up to `revision`: all of it is in force, except for what it refused."""
        return not self.listener.is_behind(revision)

    def has_confirmed(self, revision: int) -> bool:
        """Whether it has acknowledged `revision`, and is known to have been alive since this process started."""
        return self.confirmed and self.has_acked(revision)

    @property
    def confirmed_revision(self) -> int:
        """The revision up to which `has_confirmed` holds; -1 if for none."""
        acked = self.listener.acked
        return acked if acked is not None and self.confirmed else -1

    def has_applied(self, revision: int, node_id: str) -> bool:
        """Whether the change of the node at `revision` is in force there."""
        return self.has_confirmed(revision) and self.refusal_of(node_id) is None

    def refusal_of(self, node_id: str) -> str | None:
        """The reason why it does not carry out the block of this node, reported under any name of the machine."""
        refused = self.refused
        if not refused or node_id in refused:
            return refused.get(node_id)
        if self._refused_names is None or self._refused_names[0] is not refused:
            self._refused_names = refused, NameIndex(refused, self.aliases)
        name = next(self._refused_names[1].matching(node_id), None)
        return None if name is None else refused[name]

    def acked_at(self, revision: int) -> int | None:
        """When it acknowledged `revision` (Unix ms); None if it has not, or the time is no longer known."""
        if not self.has_acked(revision) or (self.acks.maxlen == len(self.acks) and self.acks[0][0] > revision):
            return None
        return next((at for acked, at in self.acks if acked >= revision), None)

    def lag_ms(self, feed: ChangeFeed, now: int) -> int:
        """Age of the oldest change that it has not applied, in milliseconds; 0 if it has applied all."""
        if not self.listener.is_behind(feed.revision):
            return 0
        since = None if self.listener.acked is None else feed.timestamp_of(self.listener.acked + 1)
        return max(0, now - (self.listener.registered_at if since is None else since))
