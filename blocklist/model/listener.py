"""Listeners: who must be told, up to which revision they have applied the list, and until when their word holds.

Pure; told the time. FLIP-224's JobMasters and ResourceManagers, with the leases and session ids of Flink's heartbeats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from blocklist.model.errors import BlocklistError, InvalidError, NotFoundError

MAX_FORMER_SESSIONS: Final = 16
"""Former sessions that a listener remembers: none of them may come back."""
LEASE_SECONDS: Final = 50
"""How long a listener that says nothing is taken to live, unless it asks otherwise (Flink's heartbeat.timeout)."""
HEARTBEAT_SECONDS: Final = 10.0
"""How often it says something (Flink's heartbeat.interval)."""
MAX_ENTRIES: Final = 10_000
"""Entries that each map of a heartbeat may have."""
MAX_REFUSAL_LENGTH: Final = 300
"""Characters that a sentence in it may have."""


class ListenerRole(StrEnum):
    """FLIP-224, Blocklist synchronisation: ResourceManagers are told before JobMasters."""

    JOB_MASTER = "JOB_MASTER"
    RESOURCE_MANAGER = "RESOURCE_MANAGER"


class FencedError(BlocklistError):
    """Another session of the listener has taken over; this one has no say any more."""


def truncate_refused(refused: Mapping[str, str], max_entries: int = MAX_ENTRIES) -> dict[str, str]:
    """As much of it as a heartbeat may carry: the first `most` by id, each sentence cut."""
    return {node_id: refused[node_id][:MAX_REFUSAL_LENGTH] for node_id in sorted(refused)[:max_entries]}


@dataclass(frozen=True, kw_only=True, slots=True)
class Registration:
    """What a listener asks for. Without a `callback_url` it watches; `lease` is in milliseconds.

    `min_nodes` is how many of its nodes must stay usable; 0 asks for nothing.
    """

    id: str
    role: ListenerRole
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
    role: ListenerRole
    session: str
    callback_url: str | None
    lease: int
    lease_end: int
    acked: int | None
    former_sessions: tuple[str, ...] = ()
    min_nodes: int = 0
    registered_at: int = 0

    def is_live(self, now: int) -> bool:
        return now < self.lease_end

    def is_behind(self, revision: int) -> bool:
        """Whether there is anything to tell it at this revision."""
        return self.acked is None or self.acked < revision

    @property
    def registration_key(self) -> tuple[str, int]:
        """What a renewal leaves as it is."""
        return self.session, self.registered_at

    def with_latest(self, other: Listener) -> Listener:
        """With the cursor and the lease of the other where those are further, if that is the same registration."""
        if self.registration_key != other.registration_key:
            return self
        acked = other.acked if self.acked is None or (other.acked or 0) > self.acked else self.acked
        return replace(self, acked=acked, lease_end=max(self.lease_end, other.lease_end))


def register(current: Listener | None, requested: Registration, *, now: int, revision: int, empty: bool) -> Listener:
    """The listener after it registered, renewed or took over; `empty` says that nothing is blocked at `revision`.

    A renewal keeps its cursor. A new session, and one whose lease had lapsed, starts from the whole list; there is
    nothing to be told of an empty one (FLIP-224, Register). Raises FencedError for a session that was taken over.
    """
    if current is not None and requested.session in current.former_sessions:
        raise FencedError(
            f"Session {requested.session} of listener {requested.id} was taken over by {current.session}."
        )
    renewed = current if current is not None and current.session == requested.session and current.is_live(now) else None
    return Listener(
        id=requested.id,
        role=requested.role,
        session=requested.session,
        callback_url=requested.callback_url,
        lease=requested.lease,
        lease_end=now + requested.lease,
        acked=renewed.acked if renewed is not None else (revision if empty else None),
        former_sessions=_former_sessions(current, requested.session),
        min_nodes=requested.min_nodes,
        registered_at=renewed.registered_at if renewed is not None else now,
    )


def _former_sessions(current: Listener | None, session: str) -> tuple[str, ...]:
    if current is None:
        return ()
    taken_over = (current.session,) if current.session != session else ()
    return (*current.former_sessions, *taken_over)[-MAX_FORMER_SESSIONS:]


def heartbeat(current: Listener | None, session: str, acked: int | None, *, now: int, revision: int) -> Listener:
    """The listener after a sign of life that says it has applied the list up to `acked`; None says nothing of it.

    A lower revision than known is passed over. Raises NotFoundError if it has to register again, FencedError for
    another session than the present one, InvalidError for a revision that is still to come.
    """
    if current is None:
        raise NotFoundError("There is no such listener: register again.")
    if current.session != session:
        raise FencedError(f"Listener {current.id} is registered with another session.")
    if not current.is_live(now):
        raise NotFoundError(f"The lease of listener {current.id} has lapsed: register again.")
    if acked is not None and acked > revision:
        raise InvalidError(f"ackedRevision: {acked} is still to come; the present revision is {revision}.")
    known = current.acked
    latest = known if acked is None or (known is not None and acked < known) else acked
    return replace(current, acked=latest, lease_end=now + current.lease)
