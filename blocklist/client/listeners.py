"""ListenerRequests: registering a listener and sending its heartbeats."""

from __future__ import annotations

from blocklist.client.response import ApiResponse, Requester
from blocklist.model.errors import ConflictError, UnavailableError
from blocklist.model.listener import FencedError, Registration
from blocklist.model.node import check_node_id
from blocklist.model.report import EMPTY_REPORT, Report
from blocklist.wire.json import Json
from blocklist.wire.listeners import report_fields


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
        report: Report = EMPTY_REPORT,
    ) -> int:
        """Renew the lease of a listener, acknowledge a revision and report its state; return the service's revision.

        `acked` is the revision up to which it has applied the list of `history`. Raises NotFoundError if it must
        register again, FencedError if another session has taken over, InvalidError for a value that the service
        rejects.
        """
        body = {"sessionId": session, **report_fields(report)}
        if acked is not None:
            body["ackedRevision"] = acked
            if history is not None:
                body["history"] = history
        revision = self._listener_request("POST", listener_id, "/heartbeat", json=body).object().get("revision")
        if not isinstance(revision, int) or isinstance(revision, bool):
            raise UnavailableError("The service responded to a heartbeat without a revision.")
        return revision

    def deregister(self, listener_id: str) -> None:
        """Remove a listener. Raises NotFoundError if it is not registered."""
        self._listener_request("DELETE", listener_id)

    def _listener_request(
        self, method: str, listener_id: str, action: str = "", *, json: Json | None = None
    ) -> ApiResponse:
        try:
            return self._request(method, f"/listeners/{check_node_id(listener_id)}{action}", json=json)
        except ConflictError as error:
            raise FencedError(error.detail, error.lines) from error
