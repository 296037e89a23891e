"""Roll: the listeners as this process knows them, and what follows from what they say. In memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from app.engine.broadcast import Bell
from app.engine.list_view import ListView
from app.listeners.member import ERROR, EVIDENCE, Member, Report
from app.listeners.report_codec import dump_evidence, dump_part, load_evidence, load_part
from blocklist.model.evidence import EvidenceBook
from blocklist.model.listener import Role
from blocklist.model.usable_nodes import node_set


class Roll:
    """All listeners, live or lapsed. `acks` rings when somebody acknowledged, lapsed or left.

    Belongs to the event loop.
    """

    def __init__(self, view: ListView, evidence: EvidenceBook, clock: Callable[[], int]) -> None:
        self.acks = Bell()
        self._view = view
        self._evidence = evidence
        self._clock = clock
        self._members: dict[str, Member] = {}
        self._managers: dict[str, Member] = {}
        self._minimums: set[str] = set()
        self._ringing = False

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return (self._members[own] for own in sorted(self._members))

    @property
    def members(self) -> Iterable[Member]:
        """All, in no order."""
        return self._members.values()

    @property
    def ids(self) -> set[str]:
        return set(self._members)

    def get(self, listener_id: str) -> Member | None:
        return self._members.get(listener_id)

    def has(self, member: Member) -> bool:
        """Whether this registration holds: it has not lapsed, left, or been followed by another."""
        return not member.lapsed and self._members.get(member.id) is member

    def live(self) -> list[Member]:
        """Those whose lease holds now."""
        now = self._clock()
        return [member for member in self._members.values() if member.listener.live(now)]

    @property
    def any_minimum(self) -> bool:
        """Whether some listener, live or not, has a minimum of usable nodes."""
        return bool(self._minimums)

    def not_applied(self, revision: int) -> tuple[list[str], int]:
        """Ids of the live listeners that have yet to apply `revision`, and how many are live."""
        live = self.live()
        return sorted(member.id for member in live if not member.applied(revision)), len(live)

    def managers_have(self, revision: int) -> bool:
        """Whether every live ResourceManager has applied `revision`."""
        now = self._clock()
        return all(member.applied(revision) for member in self._managers.values() if member.listener.live(now))

    def enter(self, member: Member) -> None:
        """It has registered, in the place of what was there."""
        self.leave(member.id)
        self._members[member.id] = member
        self.index(member)
        self.ring()

    def index(self, member: Member) -> None:
        """Its role, or its minimum, may be others than before."""
        self._managers.pop(member.id, None)
        self._minimums.discard(member.id)
        if member.listener.min_nodes:
            self._minimums.add(member.id)
        if member.listener.role is Role.RESOURCE_MANAGER:
            self._managers[member.id] = member
            # Only JobMasters may give evidence.
            self._evidence.forget(member.id)

    def leave(self, listener_id: str) -> None:
        """It is gone."""
        if (member := self._members.pop(listener_id, None)) is not None:
            self._managers.pop(listener_id, None)
            self._minimums.discard(listener_id)
            self.lapse(member)

    def lapse(self, member: Member) -> None:
        """It lives no more: what it said of TaskManagers and nodes holds no longer."""
        member.lapsed = True
        self._view.moved(self._view.task_managers.drop(member.id))
        self._evidence.forget(member.id)
        self.ring()

    def acknowledged(self, member: Member) -> None:
        """It has applied the list up to another revision than before."""
        if member.listener.acked is not None:
            member.acks.append((member.listener.acked, self._clock()))
            self.ring()

    def hear(self, member: Member, report: Report, at: int) -> set[str]:
        """It said this at `at` (Unix ms); the parts of it that are news."""
        before, member.said = member.said.parts(), report.after(member.said)
        news = {part for part, value in report.parts().items() if value != before.get(part)}
        if report.task_managers is not None:
            moved = self._view.task_managers.replace(member.id, report.task_managers, at)
            self._view.moved(moved)
            # It has them again, where another one had said that they are its own.
            news |= {"taskManagers"} if moved else set()
        if report.nodes is not None:
            member.nodes = node_set(report.nodes, member.nodes)
        if report.evidence is not None:
            self._evidence.say(member.id, report.evidence, at)
            # What an application says again of a node holds longer.
            news |= {EVIDENCE} if report.evidence else set()
        return news

    def tell(self, member: Member, part: str) -> str:
        """A part of what it says, for other replicas.

        Of evidence all that is kept, with when it was said: who missed some of it is not to take the rest for new.
        """
        return dump_evidence(self._evidence.of(member.id)) if part == EVIDENCE else dump_part(member, part)

    def take(self, member: Member, part: str, text: str, at: int) -> None:
        """What `tell` gave, most often to another replica. Raises InvalidError if that has another version."""
        if part == ERROR:
            member.error = json.loads(text)
        elif part == EVIDENCE:
            self._evidence.know(member.id, load_evidence(member.id, text))
        else:
            self.hear(member, load_part(part, text), at)

    def restart(self) -> None:
        """The list has begun anew: revisions of before say nothing any more, and everybody gets the whole list."""
        for member in self._members.values():
            member.listener = replace(member.listener, acked=None)
            member.acks.clear()
        self.ring()

    def ring(self) -> None:
        """Somebody acknowledged, or is not waited for any more."""
        # Once for all who do in the same turn of the loop.
        if not self._ringing:
            self._ringing = True
            asyncio.get_running_loop().call_soon(self._rung)

    def _rung(self) -> None:
        self._ringing = False
        self.acks.ring()
