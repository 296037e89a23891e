"""ListenerRequests: registering a listener and sending its heartbeats."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from blocklist.client.response import ApiResponse, Requester
from blocklist.model.errors import ConflictError, UnavailableError
from blocklist.model.node import check_node_id
from blocklist.wire.json import Json

if TYPE_CHECKING:
    from blocklist.model.listener import Registration, Report


class HeartbeatResult(NamedTuple):
    """The revision of the service, and the fields of the report that it has; None if it does not tell."""

    revision: int
    reported: frozenset[str] | None


class ListenerRequests(Requester):
    """The part of BlocklistClient for listeners. All methods also raise the errors of BlocklistClient."""

    def register(self, registration: Registration) -> str | None:
        """Register a listener, renew its lease, or take over from another session.

        Returns the secret that signs pushes if the listener is new; the service shows it only once. Raises FencedError
        for a session that was taken over, InvalidError for a value that the service rejects.
        """
        body = {
            "role": registration.role.value,
            "sessionId": registration.session,
            "leaseSeconds": max(1, registration.lease // 1000),
        }
        if registration.callback_url is not None:
            body["callbackUrl"] = registration.callback_url
        if registration.min_nodes:
            body["minNodes"] = registration.min_nodes
        secret = self._listener_request("PUT", registration.id, json=body).object().get("secret")
        return secret if isinstance(secret, str) else None

    def heartbeat(
        self,
        listener_id: str,
        session: str,
        *,
        acked: int | None = None,
        history: str | None = None,
        report: Report | None = None,
    ) -> int:
        """`send_heartbeat`, for the revision of the service alone."""
        return self.send_heartbeat(listener_id, session, acked=acked, history=history, report=report).revision

    def send_heartbeat(
        self,
        listener_id: str,
        session: str,
        *,
        acked: int | None = None,
        history: str | None = None,
        report: Report | None = None,
    ) -> HeartbeatResult:
        """Renew the lease of a listener, acknowledge a revision and report its state.

        `acked` is the revision up to which it has applied the list of `history`. Raises NotFoundError if it must
        register again, FencedError if another session has taken over, InvalidError for a value that the service
        rejects.
        """
        from blocklist.wire.reports import REPORT_FIELDS, report_fields

        body = {"sessionId": session, **({} if report is None else report_fields(report))}
        if acked is not None:
            body["ackedRevision"] = acked
            if history is not None:
                body["history"] = history
        response = self._listener_request("POST", listener_id, "/heartbeat", json=body).object()
        revision, reported = response.get("revision"), response.get("reported")
        if not isinstance(revision, int) or isinstance(revision, bool):
            raise UnavailableError("The service responded to a heartbeat without a revision.")
        names = {api_name: name for name, api_name in REPORT_FIELDS.items()}
        held = frozenset(names[it] for it in reported if it in names) if isinstance(reported, list) else None
        return HeartbeatResult(revision, held)

    def deregister(self, listener_id: str, session: str | None = None) -> None:
        """Remove a listener; with `session` only if this is its session.

        Raises NotFoundError if it is not registered, FencedError if another session has taken over.
        """
        query = "" if session is None else f"?sessionId={check_node_id(session)}"
        self._listener_request("DELETE", listener_id, query)

    def _listener_request(
        self, method: str, listener_id: str, action: str = "", *, json: Json | None = None
    ) -> ApiResponse:
        try:
            return self._request(method, f"/listeners/{check_node_id(listener_id)}{action}", json=json)
        except ConflictError as error:
            if not error.lines:
                # Another server's 409: no listener must stop for good because of it.
                raise UnavailableError(f"HTTP 409 that does not come from the service: {error.detail}") from error
            from blocklist.model.listener import FencedError

            raise FencedError(error.detail, error.lines) from error
