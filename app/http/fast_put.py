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
from app.api.nodes import block_answer, block_command
from app.api.problems import broken, refused
from app.api.responses import ONE_NODE
from app.auth.credential import Credential
from app.auth.principal import ANYBODY, Principal
from app.components import Service
from app.engine.handler import Outcome
from app.http.fast_get import FastPathProtocol, PlainPut
from app.logs.request_ids import HEADER, given_id, new_id
from blocklist.model.errors import BlocklistError
from blocklist.model.node import BlockedNode
from blocklist.model.roles import Access

log = structlog.get_logger(__name__)

_URL: Final = re.compile(rb"/blocklist/nodes/([A-Za-z0-9][A-Za-z0-9._:-]{0,252})")
_LINE: Final = re.compile(b"PUT " + _URL.pattern)
_NOT_PLAIN: Final = frozenset(
    (b"authorization", b"expect", b"prefer", b"transfer-encoding", b"upgrade", b"x-forwarded-user")
)
_ANSWERED: Final = (
    b"content-type: application/json\r\ncontent-length: %d\r\nblocklist-revision: %d\r\nblocklist-history: %b\r\n"
)
_STATUS_LINES: Final = {status: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}


class _Exchange:
    """A PUT under way: what uvicorn asks of a request that has no answer yet."""

    __slots__ = ("body", "disconnected", "keep_alive", "node_id", "request_id", "response_complete", "who")
    message_event: Final = asyncio.Event()

    def __init__(self, node_id: str, who: Principal, request_id: bytes, body: bytes = b"") -> None:
        self.node_id = node_id
        self.who = who
        self.request_id = request_id
        self.body = body
        self.disconnected = False
        self.keep_alive = True
        self.response_complete = False


class FastPutProtocol(FastPathProtocol):
    """uvicorn's protocol, but for the plain GET /blocklist and the plain PUT of one node."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._app: FastAPI = self.app_state["app"]
        self._service: Service = self._app.state.service
        self._put: _Exchange | None = None
        self._read: PlainPut | None = None

    def on_headers_complete(self) -> None:
        self.head_ends()
        self._put = self._read_put()
        if self._put is None:
            super().on_headers_complete()
        else:
            # Requests that come before the answer see one under way, and wait for it.
            self.cycle = self._put  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        if self._put is None:
            super().on_body(body)
        else:
            self._put.body += body

    def on_message_complete(self) -> None:
        if self._put is None:
            super().on_message_complete()
            return
        put, self._put, self._complete = self._put, None, True
        self._carry_out(put)

    def _takes(self, data: bytes) -> bool:
        line, lines, body = _parts(data)
        plain = self._ready.puts.get(lines)
        if plain is None or len(body) != plain.length or (match := _LINE.fullmatch(line)) is None:
            return False
        if not (self._complete and self.timeout_keep_alive_task and self._idle()):
            return False
        if plain.credential is not None and not plain.credential.admits(self._service.clock()):
            return False
        put = _Exchange(match[1].decode(), _principal(plain.credential), new_id(), body)
        self.cycle = put  # type: ignore[assignment]
        self._carry_out(put)
        return True

    def _learn(self, data: bytes) -> None:
        super()._learn(data)
        plain, self._read = self._read, None
        if plain is not None and self._begun == 1 and self._complete:
            self._ready.puts.learn(_parts(data)[1], plain)

    def _carry_out(self, put: _Exchange) -> None:
        service = self._service
        try:
            command = block_command(put.node_id, put.body, service.clock())
            guarded = service.guard.guarded(command, put.who.access)
            by = author(put.who, request_id=put.request_id.decode())
            service.handler.take(guarded, by, partial(self._done, put))
        except BlocklistError as error:
            self._answer(put, refused(self._request(put), error))

    def _done(self, put: _Exchange, outcome: Outcome[BlockedNode] | BlocklistError) -> None:
        try:
            if isinstance(outcome, BlocklistError):
                self._answer(put, refused(self._request(put), outcome))
            else:
                self._blocked(put, outcome)
        except Exception as error:
            log.exception("a PUT failed", request_id=put.request_id.decode())
            self._answer(put, broken(self._request(put), error))

    def _blocked(self, put: _Exchange, outcome: Outcome[BlockedNode]) -> None:
        status, body = block_answer(self._service, outcome)
        # What JsonAnswer and _answer would write, in one piece: half of the cost of an answer.
        fields = (len(body), outcome.revision, self._service.view.tracker.history.encode())
        self._write(put, status, _ANSWERED % fields, body)

    def _answer(self, put: _Exchange, response: Response) -> None:
        lines = b"".join([b"%b: %b\r\n" % header for header in response.raw_headers])
        self._write(put, HTTPStatus(response.status_code), lines, bytes(response.body))

    def _write(self, put: _Exchange, status: HTTPStatus, lines: bytes, body: bytes) -> None:
        put.response_complete = True
        if put.disconnected:
            return
        self._service.metrics.fast_puts[status] += 1
        head = self._ready.head(self.server_state.default_headers)
        close = b"" if put.keep_alive else b"connection: close\r\n"
        parts = (_STATUS_LINES[status], head, lines, HEADER, put.request_id, close, body)
        self.transport.write(b"%b%b%b%b: %b\r\n%b\r\n%b" % parts)
        if not put.keep_alive:
            self.transport.close()
        if self.timeout_keep_alive_task is None or self.pipeline:
            self.on_response_complete()
        else:
            self._answered_at = self.loop.time()

    def _request(self, put: _Exchange) -> Request:
        path = f"/blocklist/nodes/{put.node_id}"
        return Request({"type": "http", "app": self._app, "path": path, "raw_path": path.encode(), "headers": []})

    def _read_put(self) -> _Exchange | None:
        match = _URL.fullmatch(self.url)
        if match is None or self.parser.get_method() != b"PUT" or not self._idle():
            return None
        if self.parser.get_http_version() != "1.1" or not self.parser.should_keep_alive():
            return None
        plain = self._read_lines()
        if plain is None:
            return None
        given = given_id(self.headers)
        # One with an id of its own comes once: there is nothing to learn.
        self._read = plain if given is None else None
        return _Exchange(match[1].decode(), _principal(plain.credential), given or new_id())

    def _read_lines(self) -> PlainPut | None:
        length = authorization = None
        for name, value in self.headers:
            if name in _NOT_PLAIN or (name == b"connection" and value.lower() != b"keep-alive"):
                if name != b"authorization" or authorization is not None or self._ready.auth is None:
                    return None
                authorization = value
            if name == b"content-length":
                length = value
        if length is None or not length.isdigit() or int(length) > ONE_NODE:
            return None
        if self._ready.auth is None:
            return PlainPut(int(length), None)
        credential = self._credential(authorization, Access.OPERATOR)
        return None if credential is None else PlainPut(int(length), credential)


def _parts(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Of a request its first line without the version, its header lines and its body."""
    line, _, rest = data.partition(b" HTTP/1.1\r\n")
    lines, _, body = rest.partition(b"\r\n\r\n")
    return line, lines, body


def _principal(credential: Credential | None) -> Principal:
    """Who puts."""
    return ANYBODY if credential is None else credential.principal
