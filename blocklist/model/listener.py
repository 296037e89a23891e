"""Listeners: who must be told, up to which revision they have applied the list, and until when their word holds.

Pure; told the time. FLIP-224's JobMasters and ResourceManagers, with the leases and session ids of Flink's heartbeats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from blocklist.model.errors import BlocklistError, InvalidError, NotFoundError

REMEMBERED: Final = 16
"""Former sessions that a listener remembers: none of them may come back."""
LEASE_SECONDS: Final = 50
"""How long a listener that says nothing is taken to live, unless it asks otherwise (Flink's heartbeat.timeout)."""
HEARTBEAT_SECONDS: Final = 10.0
"""How often it says something (Flink's heartbeat.interval)."""
MAX_ENTRIES: Final = 10_000
"""Entries that each map of a heartbeat may have."""
MAX_SENTENCE: Final = 300
"""Characters that a sentence in it may have."""


class Role(StrEnum):
    """FLIP-224, Blocklist synchronisation: ResourceManagers are told before JobMasters."""

    JOB_MASTER = "JOB_MASTER"
    RESOURCE_MANAGER = "RESOURCE_MANAGER"


class FencedError(BlocklistError):
    """Another session of the listener has taken over; this one has no say any more."""


def fitting(refused: Mapping[str, str], most: int = MAX_ENTRIES) -> dict[str, str]:
    """As much of it as a heartbeat may carry: the first `most` by id, each sentence cut."""
    return {node_id: refused[node_id][:MAX_SENTENCE] for node_id in sorted(refused)[:most]}


@dataclass(frozen=True, kw_only=True, slots=True)
class Registration:
    """What a listener asks for. Without a `callback_url` it watches; `lease` is in milliseconds.

    `min_nodes` is how many of its nodes must stay usable; 0 asks for nothing.
    """

    id: str
    role: Role
    session: str
    callback_url: str | None = None
    lease: int = LEASE_SECONDS * 1000
    min_nodes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Listener:
    """A registered listener. Times are Unix milliseconds; it lives in [.., lease_end).

    `acked` is the revision up to which it has applied the list; None while it has yet to get the whole list.
    `former` are the sessions taken over, the latest last. `since` is when it registered, renewals apart.
    """

    id: str
    role: Role
    session: str
    callback_url: str | None
    lease: int
    lease_end: int
    acked: int | None
    former: tuple[str, ...] = ()
    min_nodes: int = 0
    since: int = 0

    def live(self, now: int) -> bool:
        return now < self.lease_end

    def behind(self, revision: int) -> bool:
        """Whether there is anything to tell it at this revision."""
        return self.acked is None or self.acked < revision

    @property
    def registration(self) -> tuple[str, int]:
        """What a renewal leaves as it is."""
        return self.session, self.since

    def with_latest(self, other: Listener) -> Listener:
        """With the cursor and the lease of the other where those are further, if that is the same registration."""
        if self.registration != other.registration:
            return self
        acked = other.acked if self.acked is None or (other.acked or 0) > self.acked else self.acked
        return replace(self, acked=acked, lease_end=max(self.lease_end, other.lease_end))


def register(present: Listener | None, wanted: Registration, *, now: int, revision: int, empty: bool) -> Listener:
    """The listener after it registered, renewed or took over; `empty` says that nothing is blocked at `revision`.

    A renewal keeps its cursor. A new session, and one whose lease had lapsed, starts from the whole list; there is
    nothing to be told of an empty one (FLIP-224, Register). Raises FencedError for a session that was taken over.
    """
    if present is not None and wanted.session in present.former:
        raise FencedError(f"Session {wanted.session} of listener {wanted.id} was taken over by {present.session}.")
    renewed = present if present is not None and present.session == wanted.session and present.live(now) else None
    return Listener(
        id=wanted.id,
        role=wanted.role,
        session=wanted.session,
        callback_url=wanted.callback_url,
        lease=wanted.lease,
        lease_end=now + wanted.lease,
        acked=renewed.acked if renewed is not None else (revision if empty else None),
        former=_former(present, wanted.session),
        min_nodes=wanted.min_nodes,
        since=renewed.since if renewed is not None else now,
    )


def _former(present: Listener | None, session: str) -> tuple[str, ...]:
    if present is None:
        return ()
    taken_over = (present.session,) if present.session != session else ()
    return (*present.former, *taken_over)[-REMEMBERED:]


def heartbeat(present: Listener | None, session: str, acked: int | None, *, now: int, revision: int) -> Listener:
    """The listener after a sign of life that says it has applied the list up to `acked`; None says nothing of it.

    A lower revision than known is passed over. Raises NotFoundError if it has to register again, FencedError for
    another session than the present one, InvalidError for a revision that is still to come.
    """
    if present is None:
        raise NotFoundError("There is no such listener: register again.")
    if present.session != session:
        raise FencedError(f"Listener {present.id} is registered with another session.")
    if not present.live(now):
        raise NotFoundError(f"The lease of listener {present.id} has lapsed: register again.")
    if acked is not None and acked > revision:
        raise InvalidError(f"ackedRevision: {acked} is still to come; the present revision is {revision}.")
    known = present.acked
    later = known if acked is None or (known is not None and acked < known) else acked
    return replace(present, acked=later, lease_end=now + present.lease)
