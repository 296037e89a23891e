"""The plain PUT of one node, handled inside uvicorn's HTTP protocol, below ASGI.

An ASGI task, its scope and its messages cost more than everything else that the service does for a PUT. The command
and the response are those of the ordinary route in app.api.nodes, which serves every PUT that is not plain and is the
tests' oracle. Header lines are parsed each time: a cache of them once lent one client's credential to another.
"""

from __future__ import annotations

import re
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import structlog
from fastapi import FastAPI, Request, Response

from app.api.authentication import author
from app.api.nodes import block_command, block_response
from app.api.request_body import MAX_NODE_BODY
from app.api.responses import internal_error, problem_for
from app.auth.credential import AUTH_DISABLED, Principal
from app.engine.handler import Outcome
from app.http.fast_table import FastTableProtocol
from app.http.pending_request import PendingRequest
from app.logs import REQUEST_ID_HEADER, client_request_id, new_request_id
from app.service import Service
from blocklist.model.errors import BlocklistError
from blocklist.model.node import BlockedNode
from blocklist.model.roles import Role

log = structlog.get_logger(__name__)

# Without the colon of an IPv6 address, which the route brings into its one form.
_URL: Final = re.compile(rb"/blocklist/nodes/([A-Za-z0-9][A-Za-z0-9._-]{0,252})")
_USED_BY_PUT: Final = frozenset((b"authorization", b"content-length", b"host"))
_RESPONSE_LINES: Final = (
    b"content-type: application/json\r\ncontent-length: %d\r\nblocklist-revision: %d\r\nblocklist-history: %b\r\n"
)
_STATUS_LINES: Final = {status: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}


class _PendingPut(PendingRequest):
    """A PUT of one node."""

    __slots__ = ("node_id", "principal", "request_id")

    def __init__(self, node_id: str, principal: Principal, request_id: bytes) -> None:
        super().__init__()
        self.node_id = node_id
        self.principal = principal
        self.request_id = request_id


class FastPutProtocol(FastTableProtocol):
    """uvicorn's protocol, except for the plain GET of the list and of the table, and the plain PUT of one node."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._app: FastAPI = self.app_state["app"]
        self._service: Service = self._app.state.service
        self._pending: _PendingPut | None = None

    def on_headers_complete(self) -> None:
        self.check_head()
        self._pending = self._parse_put()
        if self._pending is None:
            super().on_headers_complete()
        else:
            # uvicorn queues pipelined requests until this one has its response.
            self.cycle = self._pending  # type: ignore[assignment]

    def on_message_complete(self) -> None:
        if self._pending is None:
            super().on_message_complete()
            return
        put, self._pending, self._request_complete = self._pending, None, True
        self._submit(put)

    def _submit(self, put: _PendingPut) -> None:
        service = self._service
        try:
            command = block_command(put.node_id, put.body, self._service.clock())
            guarded = service.limit_guard.enforce(command, put.principal.role)
            by = author(put.principal, request_id=put.request_id.decode())
            service.handler.submit_callback(guarded, by, partial(self._on_done, put))
        except BlocklistError as error:
            self._respond(put, problem_for(self._asgi_request(put), error))

    def _on_done(self, put: _PendingPut, outcome: Outcome[BlockedNode] | BlocklistError) -> None:
        try:
            if isinstance(outcome, BlocklistError):
                self._respond(put, problem_for(self._asgi_request(put), outcome))
            else:
                self._respond_blocked(put, outcome)
        except Exception as error:
            log.exception("PUT failed", request_id=put.request_id.decode())
            self._respond(put, internal_error(self._asgi_request(put), error))

    def _respond_blocked(self, put: _PendingPut, outcome: Outcome[BlockedNode]) -> None:
        status, body = block_response(self._service, outcome)
        # The same bytes as from JsonResponse and _respond, rendered at once: that halves the cost of a response.
        body += b"\n"
        fields = (len(body), outcome.revision, self._service.view.tracker.history.encode())
        self._write(put, status, _RESPONSE_LINES % fields, body)

    def _respond(self, put: _PendingPut, response: Response) -> None:
        lines = b"".join([b"%b: %b\r\n" % header for header in response.raw_headers])
        self._write(put, HTTPStatus(response.status_code), lines, bytes(response.body))

    def _write(self, put: _PendingPut, status: HTTPStatus, lines: bytes, body: bytes) -> None:
        put.response_complete = True
        if put.disconnected or self.transport.is_closing():
            return
        self._service.metrics.fast_puts[status] += 1
        default_lines = self._responses.default_lines(self.server_state.default_headers)
        close = b"" if put.keep_alive else b"connection: close\r\n"
        parts = (_STATUS_LINES[status], default_lines, lines, REQUEST_ID_HEADER, put.request_id, close, body)
        self.transport.write(b"%b%b%b%b: %b\r\n%b\r\n%b" % parts)
        if not put.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def _asgi_request(self, put: _PendingPut) -> Request:
        path = f"/blocklist/nodes/{put.node_id}"
        return Request({"type": "http", "app": self._app, "path": path, "raw_path": path.encode(), "headers": []})

    def _parse_put(self) -> _PendingPut | None:
        if (match := _URL.fullmatch(self.url)) is None or (principal := self._parse_headers()) is None:
            return None
        return _PendingPut(match[1].decode(), principal, client_request_id(self.headers) or new_request_id())

    def _parse_headers(self) -> Principal | None:
        """Who sends a plain PUT; None if the ordinary route must answer the request."""
        if (used := self._plain_headers(b"PUT", _USED_BY_PUT)) is None:
            return None
        length = used.get(b"content-length", b"")
        if not length.isdigit() or int(length) > MAX_NODE_BODY:
            return None
        authorized, credential = self._authorize(used, Role.OPERATOR)
        if not authorized:
            return None
        principal = AUTH_DISABLED if credential is None else credential.principal
        return principal if principal.owners is None else None
