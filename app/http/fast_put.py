"""The plain PUT of one node, handled inside uvicorn's HTTP protocol, below ASGI.

An ASGI task, its scope and its messages cost more than all that the service does for a PUT. The command and the answer
are those of the ordinary route in app.api.nodes, which serves every request that is not plain and is the tests' oracle.
And since one client's header lines are the same each time, those that were once parsed and found plain are known by
their bytes: of the next request with them only the first line and the body are read.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import structlog
from fastapi import FastAPI, Request, Response

from app.api.authorization import author
from app.api.nodes import block_command, block_response
from app.api.problems import internal_error, problem_for
from app.api.responses import MAX_NODE_BODY
from app.auth.credential import Credential
from app.auth.principal import AUTH_DISABLED, Principal
from app.components import Components
from app.engine.handler import Outcome
from app.http.fast_get import FastGetProtocol, PlainPut
from app.logs.request_ids import REQUEST_ID_HEADER, client_request_id, new_request_id
from blocklist.model.errors import BlocklistError
from blocklist.model.node import BlockedNode
from blocklist.model.roles import Role

log = structlog.get_logger(__name__)

_URL: Final = re.compile(rb"/blocklist/nodes/([A-Za-z0-9][A-Za-z0-9._:-]{0,252})")
_REQUEST_LINE: Final = re.compile(b"PUT " + _URL.pattern)
_NOT_PLAIN: Final = frozenset(
    (b"authorization", b"expect", b"prefer", b"transfer-encoding", b"upgrade", b"x-forwarded-user")
)
_RESPONSE_LINES: Final = (
    b"content-type: application/json\r\ncontent-length: %d\r\nblocklist-revision: %d\r\nblocklist-history: %b\r\n"
)
_STATUS_LINES: Final = {status: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}


class _PendingPut:
    """A PUT under way: what uvicorn asks of a request that has no answer yet."""

    __slots__ = ("body", "disconnected", "keep_alive", "node_id", "principal", "request_id", "response_complete")
    message_event: Final = asyncio.Event()

    def __init__(self, node_id: str, principal: Principal, request_id: bytes, body: bytes = b"") -> None:
        self.node_id = node_id
        self.principal = principal
        self.request_id = request_id
        self.body = body
        self.disconnected = False
        self.keep_alive = True
        self.response_complete = False


class FastPutProtocol(FastGetProtocol):
    """uvicorn's protocol, but for the plain GET /blocklist and the plain PUT of one node."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._app: FastAPI = self.app_state["app"]
        self._service: Components = self._app.state.service
        self._pending: _PendingPut | None = None
        self._parsed_headers: PlainPut | None = None

    def on_headers_complete(self) -> None:
        self.check_head()
        self._pending = self._parse_put()
        if self._pending is None:
            super().on_headers_complete()
        else:
            # Requests that come before the answer see one under way, and wait for it.
            self.cycle = self._pending  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        if self._pending is None:
            super().on_body(body)
        else:
            self._pending.body += body

    def on_message_complete(self) -> None:
        if self._pending is None:
            super().on_message_complete()
            return
        put, self._pending, self._request_complete = self._pending, None, True
        self._submit(put)

    def _try_cached(self, data: bytes) -> bool:
        line, lines, body = _split_request(data)
        plain = self._responses.puts.get(lines)
        if plain is None or len(body) != plain.length or (match := _REQUEST_LINE.fullmatch(line)) is None:
            return False
        if not (self._request_complete and self.timeout_keep_alive_task and self._is_idle()):
            return False
        if plain.credential is not None and not plain.credential.use(self._service.clock()):
            return False
        put = _PendingPut(match[1].decode(), _principal_of(plain.credential), new_request_id(), body)
        self.cycle = put  # type: ignore[assignment]
        self._submit(put)
        return True

    def _cache_parsed(self, data: bytes) -> None:
        super()._cache_parsed(data)
        plain, self._parsed_headers = self._parsed_headers, None
        if plain is not None and self._requests_begun == 1 and self._request_complete:
            self._responses.puts.add(_split_request(data)[1], plain)

    def _submit(self, put: _PendingPut) -> None:
        service = self._service
        try:
            command = block_command(put.node_id, put.body, service.clock())
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
            log.exception("a PUT failed", request_id=put.request_id.decode())
            self._respond(put, internal_error(self._asgi_request(put), error))

    def _respond_blocked(self, put: _PendingPut, outcome: Outcome[BlockedNode]) -> None:
        status, body = block_response(self._service, outcome)
        # What JsonResponse and _respond would write, in one piece: half of the cost of an answer.
        fields = (len(body), outcome.revision, self._service.view.tracker.history.encode())
        self._write(put, status, _RESPONSE_LINES % fields, body)

    def _respond(self, put: _PendingPut, response: Response) -> None:
        lines = b"".join([b"%b: %b\r\n" % header for header in response.raw_headers])
        self._write(put, HTTPStatus(response.status_code), lines, bytes(response.body))

    def _write(self, put: _PendingPut, status: HTTPStatus, lines: bytes, body: bytes) -> None:
        put.response_complete = True
        if put.disconnected:
            return
        self._service.metrics.fast_puts[status] += 1
        head = self._responses.default_lines(self.server_state.default_headers)
        close = b"" if put.keep_alive else b"connection: close\r\n"
        parts = (_STATUS_LINES[status], head, lines, REQUEST_ID_HEADER, put.request_id, close, body)
        self.transport.write(b"%b%b%b%b: %b\r\n%b\r\n%b" % parts)
        if not put.keep_alive:
            self.transport.close()
        if self.timeout_keep_alive_task is None or self.pipeline:
            self.on_response_complete()
        else:
            self._responded_at = self.loop.time()

    def _asgi_request(self, put: _PendingPut) -> Request:
        path = f"/blocklist/nodes/{put.node_id}"
        return Request({"type": "http", "app": self._app, "path": path, "raw_path": path.encode(), "headers": []})

    def _parse_put(self) -> _PendingPut | None:
        match = _URL.fullmatch(self.url)
        if match is None or self.parser.get_method() != b"PUT" or not self._is_idle():
            return None
        if self.parser.get_http_version() != "1.1" or not self.parser.should_keep_alive():
            return None
        plain = self._parse_headers()
        if plain is None:
            return None
        given = client_request_id(self.headers)
        # One with an id of its own comes once: there is nothing to learn.
        self._parsed_headers = plain if given is None else None
        return _PendingPut(match[1].decode(), _principal_of(plain.credential), given or new_request_id())

    def _parse_headers(self) -> PlainPut | None:
        length = authorization = None
        for name, value in self.headers:
            if name in _NOT_PLAIN or (name == b"connection" and value.lower() != b"keep-alive"):
                if name != b"authorization" or authorization is not None or self._responses.auth is None:
                    return None
                authorization = value
            if name == b"content-length":
                length = value
        if length is None or not length.isdigit() or int(length) > MAX_NODE_BODY:
            return None
        if self._responses.auth is None:
            return PlainPut(int(length), None)
        credential = self._credential(authorization, Role.OPERATOR)
        return None if credential is None else PlainPut(int(length), credential)


def _split_request(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Of a request its first line without the version, its header lines and its body."""
    line, _, rest = data.partition(b" HTTP/1.1\r\n")
    lines, _, body = rest.partition(b"\r\n\r\n")
    return line, lines, body


def _principal_of(credential: Credential | None) -> Principal:
    """Who puts."""
    return AUTH_DISABLED if credential is None else credential.principal
