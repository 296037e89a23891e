"""The bodies that /listeners answers: leases and states of listeners."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from blocklist.wire.body import Body, Doc, Millis, matching
from blocklist.wire.json import Json

if TYPE_CHECKING:
    from blocklist.model.listener import Listener

ListenerRoleName = Literal["JOB_MASTER", "RESOURCE_MANAGER"]


@dataclass(kw_only=True)
class SecretBody(Body):
    """The secret that signs pushes; shown only once."""

    secret: Annotated[str, matching("^whsec_")]


@dataclass(kw_only=True)
class LeaseBody(Body):
    """The response to a heartbeat."""

    revision: int
    lease_end: Millis
    reported: Annotated[
        list[str],
        Doc(
            "The fields of the listener's report that the service has, evidence excepted. Send a field"
            " that is missing here again: the service has restarted."
        ),
    ]


@dataclass(kw_only=True)
class ListenerBody(Body):
    """A listener, and how far it lags behind."""

    id: str
    role: ListenerRoleName
    session_id: str
    callback_url: str | None
    state: Literal["live", "lapsed"]
    acked_revision: Annotated[int, Doc("0 until it has applied the first list.")]
    lag_revisions: int
    lag_ms: Annotated[int, Doc("Age of the oldest change that it has not applied, in milliseconds.")]
    last_error: str | None
    min_nodes: int
    usable_nodes: Annotated[int | None, Doc("Number of its usable nodes; null if it reports none.")]
    lease_end: Millis
    revision: Annotated[int, Doc("The current revision.")]
    secret: Annotated[str | None, Doc("Only in the response that creates the listener.")] = None


@dataclass(kw_only=True)
class ListenersBody(Body):
    """All listeners, by id."""

    listeners: list[ListenerBody]


def listener_body(
    listener: Listener, *, now: int, revision: int, lag: int, error: str | None, usable: int | None
) -> Json:
    """A listener in /listeners; `lag` is in milliseconds, `usable` is the number of its usable nodes."""
    acked = listener.acked or 0
    return {
        "id": listener.id,
        "role": listener.role.value,
        "sessionId": listener.session,
        "callbackUrl": listener.callback_url,
        "state": "live" if listener.is_live(now) else "lapsed",
        "ackedRevision": acked,
        "lagRevisions": revision - acked if listener.is_behind(revision) else 0,
        "lagMs": lag,
        "lastError": error,
        "minNodes": listener.min_nodes,
        "usableNodes": usable,
        "leaseEnd": str(listener.lease_end),
        "revision": revision,
    }
