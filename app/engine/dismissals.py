"""Dismissals: automatic owners that were overruled when somebody unblocked a node. The change log stores them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from app.store.queries import MAX_DISMISSALS
from blocklist.model.changes import Change
from blocklist.model.draft import Draft
from blocklist.model.errors import DismissedError
from blocklist.model.names import Aliases, NameIndex, no_aliases
from blocklist.model.time import format_utc

MEMORY_MS: Final = 30 * 24 * 3_600_000
"""How long a dismissal counts."""
MAX_NODES: Final = MAX_DISMISSALS
"""Maximum number of nodes with dismissals; beyond it, the oldest are forgotten."""


class Dismissal(NamedTuple):
    """The claim of an owner that was dismissed: when (Unix ms), and by whom."""

    owner: str
    at: int
    dismissed_by: str | None

    def counts(self, now: int) -> bool:
        """Whether it still counts at `now`."""
        return self.at > now - MEMORY_MS


class Dismissals:
    """The last dismissal of each owner on each node. Belongs to the event loop."""

    def __init__(self, clock: Callable[[], int], changes: Iterable[Change], aliases: Aliases = no_aliases) -> None:
        """`changes` are those in the log that dismissed claims."""
        self._clock = clock
        self._aliases = aliases
        self.reset(changes)

    def reset(self, changes: Iterable[Change]) -> None:
        """The list was read again from a log with these changes that dismissed claims."""
        self._by_node: dict[str, dict[str, Dismissal]] = {}
        self._names = NameIndex(aliases=self._aliases)
        self.apply(changes)

    def apply(self, changes: Iterable[Change]) -> None:
        """These changes were committed."""
        for change in changes:
            if change.dismissed:
                self._add(change.node.id, _dismissals(change))

    def by_node(self) -> dict[str, Mapping[str, Dismissal]]:
        """A copy: by the node that was unblocked, and by owner; also those that no longer count."""
        return dict(self._by_node)

    def of_node(self, node_id: str) -> list[Dismissal]:
        """The dismissals that count on a node, under any name of its machine, the oldest first."""
        now = self._clock()
        found = (it for name in self._names.matching(node_id) for it in self._by_node[name].values() if it.counts(now))
        return sorted(found, key=lambda dismissal: (dismissal.at, dismissal.owner))

    def find(self, draft: Draft, node_id: str, owner: str) -> Dismissal | None:
        """The last dismissal of an owner on a node, also in this draft."""
        drafted = (it for change in draft.changes_of(node_id) for it in _dismissals(change))
        return next((it for it in reversed([*self.of_node(node_id), *drafted]) if it.owner == owner), None)

    def check_evidence(self, draft: Draft, owner: str, last_evidence: Mapping[str, int]) -> None:
        """Raise DismissedError if the owner was dismissed on one of the nodes after its last evidence (Unix ms)."""
        found = {node_id: self.find(draft, node_id, owner) for node_id in last_evidence}
        lines = [
            _dismissed_line(node_id, dismissal)
            for node_id, dismissal in found.items()
            if dismissal is not None and last_evidence[node_id] <= dismissal.at
        ]
        if lines:
            raise DismissedError(" ".join(lines), lines)

    def _add(self, node_id: str, dismissals: Sequence[Dismissal]) -> None:
        earlier = self._by_node.pop(node_id, {})
        self._by_node[node_id] = earlier | {it.owner: it for it in dismissals}
        self._names.add(node_id)
        if len(self._by_node) > MAX_NODES:
            oldest = next(iter(self._by_node))
            del self._by_node[oldest]
            self._names.discard(oldest)


def _dismissed_line(node_id: str, dismissal: Dismissal) -> str:
    by = "" if dismissal.dismissed_by is None else f" by {dismissal.dismissed_by}"
    return (
        f"{dismissal.owner} was dismissed on {node_id}{by} at {format_utc(dismissal.at)}: what was observed until then"
        " does not block the node."
    )


def _dismissals(change: Change) -> list[Dismissal]:
    return [Dismissal(claim.owner, change.at, change.created_by) for claim in change.dismissed]
