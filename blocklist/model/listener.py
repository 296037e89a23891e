"""Listeners: registration, leases, sessions, and the revision up to which each has applied the list. Pure.

FLIP-224's JobMasters and ResourceManagers, with the leases and session ids of Flink's heartbeats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from blocklist.model.errors import BlocklistError, InvalidError, NotFoundError

MAX_FORMER_SESSIONS: Final = 16
"""Number of former sessions of a listener that stay fenced."""
LEASE_SECONDS: Final = 50
"""Default lease: a listener without a heartbeat for this time lapses (Flink's heartbeat.timeout)."""
HEARTBEAT_SECONDS: Final = 10.0
"""Interval between two heartbeats (Flink's heartbeat.interval)."""
MAX_ENTRIES: Final = 10_000
"""Maximum number of entries in each map of a heartbeat."""
MAX_REASON_LENGTH: Final = 300
"""Maximum length of the reason for refusing a block, and of a node's reported state, in characters."""


class ListenerRole(StrEnum):
    """FLIP-224, Blocklist synchronisation: ResourceManagers are notified before JobMasters."""

    JOB_MASTER = "JOB_MASTER"
    RESOURCE_MANAGER = "RESOURCE_MANAGER"


class FencedError(BlocklistError):
    """Another session of the listener has taken over; this session is rejected from now on."""


def truncate_reasons(reasons: Mapping[str, str], max_entries: int = MAX_ENTRIES) -> dict[str, str]:
    """Truncate a map from node id to reason to what a heartbeat may contain: the first ids, with shortened reasons."""
    return {node_id: reasons[node_id][:MAX_REASON_LENGTH] for node_id in sorted(reasons)[:max_entries]}


@dataclass(frozen=True, kw_only=True, slots=True)
class Registration:
    """A request to register. Without a `callback_url` the listener watches; `lease` is in milliseconds.

    `min_nodes` is the number of its nodes that must stay usable; 0 means no minimum.
    """

    id: str
    role: ListenerRole
    session: str
    callback_url: str | None = None
    lease: int = LEASE_SECONDS * 1000
    min_nodes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Listener:
    """A registered listener. Times are Unix milliseconds; it is live before `lease_end`.

    `acked` is the revision up to which it has applied the list; None until it has applied the whole list once.
    `former_sessions` were taken over, the latest last. `registered_at` is not changed by renewals. `principal` is who
    registered it; None if unknown, or without authentication.
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
    principal: str | None = None

    def is_live(self, now: int) -> bool:
        return now < self.lease_end

    def is_behind(self, revision: int) -> bool:
        """Whether the listener has not applied everything up to this revision."""
        return self.acked is None or self.acked < revision

    @property
    def registration_key(self) -> tuple[str, int]:
        """Identifies the registration: a renewal does not change it."""
        return self.session, self.registered_at

    def with_latest(self, other: Listener) -> Listener:
        """The listener with the later cursor and lease of both, if `other` is the same registration."""
        if self.registration_key != other.registration_key:
            return self
        acked = other.acked if self.acked is None or (other.acked or 0) > self.acked else self.acked
        return replace(self, acked=acked, lease_end=max(self.lease_end, other.lease_end))


def register(
    current: Listener | None,
    requested: Registration,
    *,
    now: int,
    revision: int,
    empty: bool,
    principal: str | None = None,
) -> Listener:
    """The listener after registering, renewing or taking over; `empty` means that nothing is blocked at `revision`.

    A renewal keeps the cursor. A new session or principal, or one whose lease had lapsed, starts from the whole list;
    from an empty list, it is up to date at once (FLIP-224, Register). Raises FencedError for a session that was taken
    over.
    """
    if current is not None and requested.session in current.former_sessions:
        raise FencedError(
            f"Session {requested.session} of listener {requested.id} was taken over by {current.session}."
        )
    renewed = current if current is not None and _is_renewal(current, requested, principal, now) else None
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
        principal=principal,
    )


def _is_renewal(current: Listener, requested: Registration, principal: str | None, now: int) -> bool:
    """What one principal reported must not become another's; an unknown principal becomes known."""
    same_principal = current.principal is None or current.principal == principal
    return current.session == requested.session and same_principal and current.is_live(now)


def _former_sessions(current: Listener | None, session: str) -> tuple[str, ...]:
    if current is None:
        return ()
    taken_over = (current.session,) if current.session != session else ()
    return (*current.former_sessions, *taken_over)[-MAX_FORMER_SESSIONS:]


def heartbeat(
    current: Listener | None,
    session: str,
    acked: int | None,
    *,
    now: int,
    revision: int,
    principal: str | None = None,
    lease_time: int | None = None,
) -> Listener:
    """The listener after a heartbeat that acknowledges the list up to `acked`; None acknowledges nothing.

    A revision lower than the acknowledged one is ignored. Raises NotFoundError if the listener must register again,
    also because another principal registered it, FencedError for a session other than the current one, InvalidError
    for a revision above the current one. `principal` is None without authentication. `lease_time`, by default now, is
    the time up to which all renewals are known.
    """
    if current is None:
        raise NotFoundError("There is no such listener: register again.")
    if current.session != session:
        raise FencedError(f"Listener {current.id} is registered with another session.")
    if principal is not None and principal != current.principal:
        raise NotFoundError(f"Listener {current.id} was not registered with this token: register again.")
    if not current.is_live(now if lease_time is None else lease_time):
        raise NotFoundError(f"The lease of listener {current.id} has lapsed: register again.")
    if acked is not None and acked > revision:
        raise InvalidError(f"ackedRevision: {acked} is above the current revision {revision}.")
    known = current.acked
    latest = known if acked is None or (known is not None and acked < known) else acked
    return replace(current, acked=latest, lease_end=now + current.lease)
