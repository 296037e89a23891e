"""Roll: the listeners as this process knows them, and what follows from what they say. In memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from app.engine.broadcast import Broadcast
from app.engine.list_view import ListView
from app.listeners.entry import ERROR, EVIDENCE, ListenerEntry, Report
from app.listeners.report_codec import dump_evidence, dump_part, load_evidence, load_part
from blocklist.model.evidence import EvidenceStore
from blocklist.model.listener import ListenerRole
from blocklist.model.usable_nodes import node_set


class ListenerDirectory:
    """All listeners, live or lapsed. `acks` rings when somebody acknowledged, lapsed or left.

    Belongs to the event loop.
    """

    def __init__(self, view: ListView, evidence: EvidenceStore, clock: Callable[[], int]) -> None:
        self.acks = Broadcast()
        self._view = view
        self._evidence = evidence
        self._clock = clock
        self._entries: dict[str, ListenerEntry] = {}
        self._resource_managers: dict[str, ListenerEntry] = {}
        self._with_minimum: set[str] = set()
        self._signal_scheduled = False

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ListenerEntry]:
        return (self._entries[own] for own in sorted(self._entries))

    @property
    def entries(self) -> Iterable[ListenerEntry]:
        """All, in no order."""
        return self._entries.values()

    @property
    def ids(self) -> set[str]:
        return set(self._entries)

    def get(self, listener_id: str) -> ListenerEntry | None:
        return self._entries.get(listener_id)

    def is_current(self, entry: ListenerEntry) -> bool:
        """Whether this registration holds: it has not lapsed, left, or been followed by another."""
        return not entry.expired and self._entries.get(entry.id) is entry

    def live(self) -> list[ListenerEntry]:
        """Those whose lease holds now."""
        now = self._clock()
        return [entry for entry in self._entries.values() if entry.listener.is_live(now)]

    @property
    def any_minimum(self) -> bool:
        """Whether some listener, live or not, has a minimum of usable nodes."""
        return bool(self._with_minimum)

    def not_applied(self, revision: int) -> tuple[list[str], int]:
        """Ids of the live listeners that have yet to apply `revision`, and how many are live."""
        live = self.live()
        return sorted(entry.id for entry in live if not entry.has_applied(revision)), len(live)

    def resource_managers_applied(self, revision: int) -> bool:
        """Whether every live ResourceManager has applied `revision`."""
        now = self._clock()
        return all(
            entry.has_applied(revision) for entry in self._resource_managers.values() if entry.listener.is_live(now)
        )

    def add(self, entry: ListenerEntry) -> None:
        """It has registered, in the place of what was there."""
        self.remove(entry.id)
        self._entries[entry.id] = entry
        self.index(entry)
        self.signal()

    def index(self, entry: ListenerEntry) -> None:
        """Its role, or its minimum, may be others than before."""
        self._resource_managers.pop(entry.id, None)
        self._with_minimum.discard(entry.id)
        if entry.listener.min_nodes:
            self._with_minimum.add(entry.id)
        if entry.listener.role is ListenerRole.RESOURCE_MANAGER:
            self._resource_managers[entry.id] = entry
            # Only JobMasters may give evidence.
            self._evidence.remove_application(entry.id)

    def remove(self, listener_id: str) -> None:
        """It is gone."""
        if (entry := self._entries.pop(listener_id, None)) is not None:
            self._resource_managers.pop(listener_id, None)
            self._with_minimum.discard(listener_id)
            self.expire(entry)

    def expire(self, entry: ListenerEntry) -> None:
        """It lives no more: what it said of TaskManagers and nodes holds no longer."""
        entry.expired = True
        self._view.task_managers_moved(self._view.task_managers.remove_listener(entry.id))
        self._evidence.remove_application(entry.id)
        self.signal()

    def record_ack(self, entry: ListenerEntry) -> None:
        """It has applied the list up to another revision than before."""
        if entry.listener.acked is not None:
            entry.acks.append((entry.listener.acked, self._clock()))
            self.signal()

    def apply_report(self, entry: ListenerEntry, report: Report, at: int) -> set[str]:
        """It said this at `at` (Unix ms); the parts of it that are news."""
        before, entry.report = entry.report.parts(), report.merged_over(entry.report)
        news = {part for part, value in report.parts().items() if value != before.get(part)}
        if report.task_managers is not None:
            moved = self._view.task_managers.set_for_listener(entry.id, report.task_managers, at)
            self._view.task_managers_moved(moved)
            # It has them again, where another one had said that they are its own.
            news |= {"taskManagers"} if moved else set()
        if report.nodes is not None:
            entry.nodes = node_set(report.nodes, entry.nodes)
        if report.evidence is not None:
            self._evidence.record(entry.id, report.evidence, at)
            # What an application says again of a node holds longer.
            news |= {EVIDENCE} if report.evidence else set()
        return news

    def export_part(self, entry: ListenerEntry, part: str) -> str:
        """A part of what it says, for other replicas.

        Of evidence all that is kept, with when it was said: who missed some of it is not to take the rest for new.
        """
        return dump_evidence(self._evidence.of_application(entry.id)) if part == EVIDENCE else dump_part(entry, part)

    def import_part(self, entry: ListenerEntry, part: str, text: str, at: int) -> None:
        """What `tell` gave, most often to another replica. Raises InvalidError if that has another version."""
        if part == ERROR:
            entry.error = json.loads(text)
        elif part == EVIDENCE:
            self._evidence.restore(entry.id, load_evidence(entry.id, text))
        else:
            self.apply_report(entry, load_part(part, text), at)

    def reset(self) -> None:
        """The list has begun anew: revisions of before say nothing any more, and everybody gets the whole list."""
        for entry in self._entries.values():
            entry.listener = replace(entry.listener, acked=None)
            entry.acks.clear()
        self.signal()

    def signal(self) -> None:
        """Somebody acknowledged, or is not waited for any more."""
        # Once for all who do in the same turn of the loop.
        if not self._signal_scheduled:
            self._signal_scheduled = True
            asyncio.get_running_loop().call_soon(self._signal_now)

    def _signal_now(self) -> None:
        self._signal_scheduled = False
        self.acks.notify_all()
