"""Registry: the listeners, what they last said, and what of it outlives a restart."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, Self

import structlog

from app.bell import Bell
from app.store.listeners import Secret, StoredListener
from app.view import ListView
from blocklist.errors import InvalidError, NotFoundError, UnavailableError
from blocklist.evidence import EvidenceBook, Finding
from blocklist.evidence_wire import findings
from blocklist.listener import Listener, Registration, Role, heartbeat, register
from blocklist.listener_wire import ReportBody
from blocklist.usable import NodeSet, node_set

log = structlog.get_logger(__name__)

OVERLAP: Final = 3_600_000
"""Milliseconds for which pushes are signed with the secret before a rotation, too."""
SEEN: Final = 256
"""Acknowledgements of a listener whose moments are remembered."""
FLUSH_SECONDS: Final = 0.5
"""How often cursors are kept: a crash loses less than this of them, and pushes come again."""


class Database(Protocol):
    """Where listeners are kept."""

    async def listeners(self) -> list[StoredListener]: ...
    async def save_listener(self, listener: Listener, secret: Secret) -> None: ...
    async def remove_listeners(self, ids: list[str]) -> None: ...
    async def save_acked(self, acked: Mapping[str, int | None]) -> None: ...
    async def save_lapsed(self, ids: list[str], now: int) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What a listener says of itself; None leaves what it said before."""

    task_managers: Mapping[str, str] | None = None
    running_tasks: Mapping[str, int] | None = None
    refused: Mapping[str, str] | None = None
    evidence: Mapping[str, Finding] | None = None
    nodes: Sequence[str] | None = None

    @classmethod
    def of(cls, said: ReportBody) -> Self:
        """As it came over the wire."""
        return cls(
            task_managers=said.task_managers,
            running_tasks=said.running_tasks,
            refused=said.refused,
            evidence=findings(said.evidence),
            nodes=said.nodes,
        )


@dataclass(kw_only=True, slots=True, eq=False)
class Member:
    """A listener and what is known of it in this process; a new registration makes a new one.

    `nodes` are all that it may use, None if it has not said so; `used` those of its TaskManagers when they were last
    looked at; `acks` are revisions and the moments (Unix ms) at which they were acknowledged; `since` is that of
    registration.
    """

    listener: Listener
    secret: Secret
    since: int
    lapsed: bool = False
    error: str | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    running: Mapping[str, int] = field(default_factory=dict)
    nodes: NodeSet | None = None
    used: NodeSet | None = None
    acks: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=SEEN))

    @property
    def id(self) -> str:
        return self.listener.id

    def applied(self, revision: int) -> bool:
        """Whether it has applied the list up to `revision`."""
        return not self.listener.behind(revision)

    def applied_at(self, revision: int) -> int | None:
        """When it said so; None if it has not, or if nobody remembers."""
        if not self.applied(revision) or (self.acks.maxlen == len(self.acks) and self.acks[0][0] > revision):
            return None
        return next((at for acked, at in self.acks if acked >= revision), None)


class Registry:
    """All listeners. Registrations are kept before they are answered, cursors a moment later.

    `came` is told of each new Member, `acks` rings when somebody acknowledged, lapsed or left. Belongs to the event
    loop.
    """

    def __init__(
        self,
        database: Database,
        view: ListView,
        evidence: EvidenceBook,
        clock: Callable[[], int],
        forget_after: int,
    ) -> None:
        self.acks = Bell()
        self.came: Callable[[Member], None] = lambda _: None
        self.lapses = 0
        self._database = database
        self._view = view
        self._evidence = evidence
        self._clock = clock
        self._forget_after = forget_after
        self._members: dict[str, Member] = {}
        self._managers: dict[str, Member] = {}
        self._minimums: set[str] = set()
        self._unsaved: set[str] = set()
        self._registering = asyncio.Lock()
        self._ringing = False

    def __iter__(self) -> Iterator[Member]:
        return (self._members[own] for own in sorted(self._members))

    def get(self, listener_id: str) -> Member | None:
        return self._members.get(listener_id)

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

    async def load(self) -> None:
        """Take over what was kept. Who was live has a whole lease from now on: nobody could be heard meanwhile."""
        now = self._clock()
        for stored in await self._database.listeners():
            lease_end = stored.lapsed_at if stored.lapsed_at is not None else now + stored.listener.lease
            listener = replace(stored.listener, lease_end=lease_end)
            member = Member(listener=listener, secret=stored.secret, since=now, lapsed=stored.lapsed_at is not None)
            self._enter(member)
            if not member.lapsed:
                self.came(member)

    async def register(self, wanted: Registration) -> tuple[Member, bool]:
        """The listener as registered, and whether it is new. Raises FencedError, UnavailableError."""
        async with self._registering:
            present = self._members.get(wanted.id)
            now, tracker = self._clock(), self._view.tracker
            listener = register(
                _listener(present),
                wanted,
                now=now,
                revision=tracker.revision,
                empty=not tracker.blocked(now),
            )
            if present is not None and present.listener.session == listener.session and present.listener.live(now):
                return await self._renew(present, listener), False
            secret = present.secret if present is not None else Secret(present=_new_secret())
            await self._database.save_listener(listener, secret)
            self._leave(wanted.id)
            member = Member(listener=listener, secret=secret, since=now)
            self._enter(member)
            self._ring()
            self.came(member)
            return member, present is None

    async def _renew(self, member: Member, listener: Listener) -> Member:
        before, same = member.listener, replace(member.listener, lease_end=listener.lease_end)
        if listener != same:
            await self._database.save_listener(listener, member.secret)
        if listener.role is not Role.JOB_MASTER:
            self._evidence.forget(member.id)
        # What it acknowledged meanwhile stands.
        member.listener = replace(listener, acked=member.listener.acked)
        self._enter(member)
        if listener.callback_url != before.callback_url:
            self.came(member)
        return member

    def heartbeat(self, listener_id: str, session: str, acked: int | None, report: Report) -> Member:
        """A sign of life. Raises NotFoundError, FencedError, InvalidError; then nothing is changed."""
        member = self._members.get(listener_id)
        revision, now = self._view.tracker.revision, self._clock()
        listener = heartbeat(_listener(member), session, acked, now=now, revision=revision)
        assert member is not None
        if report.evidence is not None and listener.role is not Role.JOB_MASTER:
            raise InvalidError("evidence: only a JOB_MASTER runs tasks that could give any.")
        if listener.acked != member.listener.acked and listener.acked is not None:
            member.acks.append((listener.acked, now))
            self._unsaved.add(listener_id)
            self._ring()
        member.listener = listener
        self._hear(member, report)
        return member

    async def rotate(self, listener_id: str, session: str) -> str:
        """A new secret; the old one signs as well for an hour. Raises NotFoundError, FencedError, UnavailableError."""
        async with self._registering:
            now, revision = self._clock(), self._view.tracker.revision
            member = self._members.get(listener_id)
            listener = heartbeat(_listener(member), session, None, now=now, revision=revision)
            assert member is not None
            secret = Secret(present=_new_secret(), old=member.secret.present, old_until=now + OVERLAP)
            await self._database.save_listener(listener, secret)
            member.listener, member.secret = listener, secret
            return secret.present

    async def deregister(self, listener_id: str) -> None:
        """Forget a listener. Raises NotFoundError, UnavailableError."""
        async with self._registering:
            if listener_id not in self._members:
                raise NotFoundError(f"There is no listener {listener_id}.")
            await self._database.remove_listeners([listener_id])
            self._leave(listener_id)
            self._ring()

    async def run(self) -> None:
        """Keep cursors, notice leases that lapse, and forget listeners that are long gone; for ever."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            try:
                await self.flush()
                await self._lapse()
                await self._forget()
            except UnavailableError:
                # The database is away: what is unsaved stays so until it is back.
                continue

    async def flush(self) -> None:
        """Keep the cursors that have moved."""
        moved, self._unsaved = self._unsaved, set()
        acked = {own: self._members[own].listener.acked for own in moved if own in self._members}
        try:
            if acked:
                await self._database.save_acked(acked)
        except UnavailableError:
            self._unsaved |= moved
            raise

    async def _lapse(self) -> None:
        now = self._clock()
        lapsed = [member for member in self._members.values() if not member.lapsed and not member.listener.live(now)]
        for member in lapsed:
            member.lapsed = True
            self.lapses += 1
            self._drop(member.id)
            log.warning("a listener's lease has lapsed", listener=member.id, session=member.listener.session)
        if lapsed:
            self._ring()
            await self._database.save_lapsed([member.id for member in lapsed], now)

    async def _forget(self) -> None:
        before = self._clock() - self._forget_after
        async with self._registering:
            gone = [own for own, member in self._members.items() if member.listener.lease_end < before]
            if gone:
                await self._database.remove_listeners(gone)
            for own in gone:
                self._leave(own)

    def _enter(self, member: Member) -> None:
        self._members[member.id] = member
        self._managers.pop(member.id, None)
        self._minimums.discard(member.id)
        if member.listener.min_nodes:
            self._minimums.add(member.id)
        if member.listener.role is Role.RESOURCE_MANAGER:
            self._managers[member.id] = member

    def _leave(self, listener_id: str) -> None:
        self._managers.pop(listener_id, None)
        self._minimums.discard(listener_id)
        if (member := self._members.pop(listener_id, None)) is not None:
            member.lapsed = True
            self._drop(listener_id)

    def _drop(self, listener_id: str) -> None:
        """What it said of TaskManagers and nodes holds no longer."""
        self._view.moved(self._view.task_managers.drop(listener_id))
        self._evidence.forget(listener_id)

    def _hear(self, member: Member, report: Report) -> None:
        if report.task_managers is not None:
            self._view.moved(self._view.task_managers.replace(member.id, report.task_managers))
        if report.running_tasks is not None:
            member.running = report.running_tasks
        if report.refused is not None:
            member.refused = report.refused
        if report.nodes is not None:
            member.nodes = node_set(report.nodes, member.nodes)
        if report.evidence is not None:
            self._evidence.say(member.id, report.evidence, self._clock())

    def _ring(self) -> None:
        # Once for all that acknowledge in the same turn of the loop.
        if not self._ringing:
            self._ringing = True
            asyncio.get_running_loop().call_soon(self._rung)

    def _rung(self) -> None:
        self._ringing = False
        self.acks.ring()


def _listener(member: Member | None) -> Listener | None:
    return None if member is None else member.listener


def _new_secret() -> str:
    """As Standard Webhooks has it: 24 random bytes or more, in base64."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
