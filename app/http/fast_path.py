"""The fast path: the three requests that programs repeat, answered without a route from the parsed head and body.

They are `GET /blocklist`, `GET /blocklist/table`, and the PUT of one node. An ASGI task with its scope and messages
costs more than everything else that the service does for them; and thousands of drivers that wait for the next table
would take ten kB each as tasks. Every other request, and every one that is not plain, goes to the ordinary route, which
returns the same bytes and is the tests' oracle. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import lru_cache, partial
from http import HTTPStatus
from itertools import islice
from typing import Final, NamedTuple

import structlog
from fastapi import FastAPI, Request, Response
from uvicorn.server import ServerState

from app.api.nodes import block_command, block_response, several_warning
from app.api.parameters import author
from app.api.responses import internal_error, problem_for
from app.auth.credential import AUTH_DISABLED, Credential
from app.engine.cached_list import CachedList, CachedResponse
from app.engine.handler import Outcome
from app.engine.list_view import ListView
from app.logs import REQUEST_ID_HEADER, client_request_id, isolated, new_request_id
from app.net.addresses import HostPolicy, client_address
from app.requests import MAX_NODE_BODY
from app.service import Service
from app.watch import ClientKey, ClientSlots, wait_seconds
from blocklist.model.claims import Role
from blocklist.model.errors import BlocklistError, UnavailableError
from blocklist.model.node import BlockedNode

log = structlog.get_logger(__name__)

Fields = dict[bytes, bytes]
Headers = list[tuple[bytes, bytes]]
LATER: Final = b""
"""Returned in the place of a response that comes later."""
RESPONSES_PER_TURN: Final = 100
"""Number of waiting requests that are answered in one turn of the event loop: a few milliseconds."""

_READ_FIELDS: Final = (
    b"Host", b"If-None-Match", b"Accept-Encoding", b"Authorization", b"Prefer", b"X-Forwarded-For",
)  # fmt: skip
"""Fields that decide about the response to a read: with one of them twice, it is not plain."""
_IGNORED_BY_READS: Final = (b"Accept", b"Accept-Language", b"Cache-Control", b"Pragma", b"User-Agent", b"X-Real-IP")


def _plain_put(root_path: bytes) -> re.Pattern[bytes]:
    """The first line of a plain PUT."""
    # Without the colon of an IPv6 address, which the route brings into its one form.
    return re.compile(rb"PUT %b/blocklist/nodes/([A-Za-z0-9][A-Za-z0-9._-]{0,252}) HTTP/1\.1" % root_path)


def _plain_read(root_path: bytes) -> re.Pattern[bytes]:
    """The whole head of a plain read; its groups are `/table`, and the values of `_READ_FIELDS`.

    A request with any other field, or with a name in an unusual case, is for the ordinary route. A parser with its
    callbacks would take longer than everything else that such a response needs.
    """
    names = [b"(?:%b|%b)" % (name, name.lower()) for name in (*_READ_FIELDS, *_IGNORED_BY_READS)]
    value = rb"[\t\x20-\x7e\x80-\xff]*+"
    # The condition fails if the group has a value already.
    used = [rb"(?(%d)(?!))%b:[\t ]*+(%b)" % (number, names[number - 2], value) for number in range(2, 8)]
    ignored = rb"(?:%b):%b" % (b"|".join(names[6:]), value)
    line = b"|".join([*used, ignored, b"[Cc]onnection: [Kk]eep-[Aa]live"])
    head = rb"GET %b/blocklist(/table)? HTTP/1\.1\r\n(?:(?>%b)\r\n){1,100}+\r\n"
    return re.compile(head % (root_path, line))


_USED_BY_PUT: Final = frozenset((b"authorization", b"content-length", b"host", REQUEST_ID_HEADER))
_NOT_IN_PLAIN_PUT: Final = _USED_BY_PUT | {
    b"expect", b"if-match", b"if-none-match", b"origin", b"prefer", b"sec-fetch-site", b"transfer-encoding",
    b"upgrade", b"x-forwarded-user",
}  # fmt: skip
"""A PUT with one of these fields, or with one that is used a second time, is not plain."""
_EVERYBODY: Final = Credential(AUTH_DISABLED)
"""Of every request while authentication is off."""
_MAX_SERIALIZED: Final = 8
_PUT_FIELDS: Final = (
    b"content-type: application/json\r\ncontent-length: %d\r\nblocklist-revision: %d\r\nblocklist-history: %b\r\n"
)
_STATUS_LINES: Final = {status: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}


class FastRequest:
    """A plain request that has no response yet: its head, and its body once that is complete.

    `fields` are those that decide about the response. `respond` sends one, or closes the connection for None. In its
    connection it takes the place of uvicorn's RequestResponseCycle, with the attributes that uvicorn reads.
    """

    __slots__ = (
        "body", "client", "disconnected", "fields", "keep_alive", "node_id", "on_lost", "principal", "request_id",
        "respond", "response_complete", "server_state",
    )  # fmt: skip
    message_event: Final = asyncio.Event()

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.body = b""
        self.client: tuple[str, int] | None = None
        self.server_state: ServerState
        self.respond: Callable[[FastRequest, bytes | None], None]
        self.on_lost: Callable[[], object] = _nothing
        self.node_id = ""
        self.request_id = b""
        self.principal = AUTH_DISABLED
        self.keep_alive = True
        self.disconnected = False
        self.response_complete = False


BeginWaiting = Callable[[Fields], FastRequest]


def _nothing() -> None:
    return


class FastPath:
    """Shared by all connections. Without `puts`, PUTs go to the ordinary route."""

    def __init__(self, app: FastAPI, host_policy: HostPolicy | None, root_path: bytes, *, puts: bool) -> None:
        self._app = app
        self._root_path = root_path.decode()
        # A proxy may have stripped it.
        optional = b"(?:%b)?" % re.escape(root_path) if root_path else b""
        self._plain_read, self._plain_put = _plain_read(optional), _plain_put(optional)
        self._service: Service = app.state.service
        self._view: ListView = self._service.view
        self._table = self._view.table
        self._auth = self._service.authenticator if self._service.authenticator.enabled else None
        self._accepts_host = None if host_policy is None else lru_cache(64)(host_policy.accepts)
        self._puts = puts
        self._default_headers: Headers = []
        self._default_lines = b""
        # In the order in which they began to wait.
        self._waiting: dict[FastRequest, _Wait] = {}
        self._serialized_of: CachedList | None = None
        self._serialized: dict[tuple[CachedResponse, bytes, bytes], bytes] = {}

    def _authorize(self, header: bytes | None, required: Role) -> Credential | None:
        """The credential of a request that is known, without a query, to be allowed.

        None sends the request to the ordinary route, which verifies or refuses it.
        """
        if self._auth is None:
            return _EVERYBODY if header is None else None
        credential = None if header is None else self._auth.authenticate_cached(header)
        if credential is None or not credential.principal.role.allows(required):
            return None
        return credential if credential.use(self._view.clock()) else None

    def _lines(self, default_headers: Headers) -> bytes:
        """The fields that uvicorn adds to each response; it makes a new list of them each second, for Date."""
        if default_headers is not self._default_headers:
            self._default_lines = b"".join(b"%b: %b\r\n" % header for header in default_headers)
            self._default_headers = default_headers
        return self._default_lines

    # GET /blocklist and GET /blocklist/table, which may wait

    def read(self, head: bytes, default_headers: Headers, begin_waiting: BeginWaiting) -> bytes | None:
        """The response to a read with this head, LATER, or None if only the ordinary route can give it.

        `default_headers` are those that uvicorn adds to each response; `begin_waiting` makes the read one that waits.
        """
        match = self._plain_read.fullmatch(head)
        if match is None:
            return None
        table, host, etags, accept_encoding, authorization, prefer, _ = match.groups()
        if host is None or not (self._accepts_host is None or self._accepts_host(host)):
            return None
        is_open = self._auth is None and authorization is None
        credential = _EVERYBODY if is_open else self._authorize(authorization, Role.READER)
        if credential is None or self._view.age() is not None:
            return None
        if table is not None:
            return self._read_table(match, default_headers, begin_waiting, credential)
        if prefer is not None:
            return None
        self._view.fast_reads += 1
        response = self._view.current_list().response_for(etags, accept_encoding)
        return response.serialized(self._lines(default_headers))

    def _read_table(
        self, match: re.Match[bytes], default_headers: Headers, begin_waiting: BeginWaiting, credential: Credential
    ) -> bytes | None:
        given = zip(_READ_FIELDS, match.groups()[1:], strict=True)
        fields = {name: value for name, value in given if value is not None}
        etags = fields.get(b"If-None-Match")
        if etags is not None and not self._table.current().matches(etags):
            if self._table.revision_ahead(etags) is not None:
                return None
        elif (
            etags is not None and (seconds := wait_seconds([fields.get(b"Prefer", b"").decode("latin-1")])) is not None
        ):
            return self._begin_wait(begin_waiting(fields), credential, seconds)
        return self._render(fields, default_headers)

    def _begin_wait(self, request: FastRequest, credential: Credential, seconds: int) -> bytes | None:
        header = request.fields.get(b"X-Forwarded-For")
        forwarded = [] if header is None else [header.decode("latin-1")]
        peer = request.client[0] if request.client else ""
        client = ClientKey(credential.principal.name, client_address(peer, forwarded, self._service.trusted_proxies))
        try:
            slots = self._service.stream_quota.slots_of(client)
        except UnavailableError:
            request.response_complete = True
            return None
        slots.__enter__()
        timer = asyncio.get_running_loop().call_later(seconds, self._end_wait, request)
        self._waiting[request] = _Wait(credential, seconds, slots, timer)
        request.on_lost = partial(self._stop_waiting, request)
        if not seconds or self._view.closed:
            self._end_wait(request)
        return LATER

    async def run(self) -> None:
        """Answer the requests that wait at each change of the table; never returns."""
        while True:
            changed = self._table.changed.subscribe()
            waiting = iter(list(self._waiting))
            while batch := list(islice(waiting, RESPONSES_PER_TURN)):
                for request in batch:
                    with isolated("response to a driver"):
                        if request in self._waiting and self._is_due(request):
                            self._end_wait(request)
                # The next table is sent to the rest if the list changes meanwhile.
                await asyncio.sleep(0)
            await changed

    def _is_due(self, request: FastRequest) -> bool:
        """Whether a waiting request need not wait any longer for a change."""
        return self._view.closed or not self._table.current().matches(request.fields[b"If-None-Match"])

    def _stop_waiting(self, request: FastRequest) -> _Wait:
        wait = self._waiting.pop(request)
        wait.timer.cancel()
        wait.slots.__exit__()
        request.on_lost = _nothing
        return wait

    def _end_wait(self, request: FastRequest) -> None:
        """Answer a request that waits, unless its credential has ended meanwhile."""
        wait = self._stop_waiting(request)
        if not wait.credential.use(self._view.clock()):
            request.respond(request, None)
            return
        extra = b"preference-applied: wait=%d\r\n" % wait.seconds
        if not request.keep_alive:
            extra += b"connection: close\r\n"
        request.respond(request, self._render(request.fields, request.server_state.default_headers, extra))

    def _render(self, fields: Fields, default_headers: Headers, extra: bytes = b"") -> bytes:
        """The response with the table, the same object for all equal requests: thousands of copies fill memory."""
        self._table.fast_reads += 1
        if (age := self._view.age()) is not None:
            extra = b"age: %d\r\n%b" % (age, extra)
        table = self._table.current()
        if table is not self._serialized_of or len(self._serialized) >= _MAX_SERIALIZED:
            self._serialized.clear()
            self._serialized_of = table
        response = table.response_for(fields.get(b"If-None-Match"), fields.get(b"Accept-Encoding"))
        key = (response, self._lines(default_headers), extra)
        if key not in self._serialized:
            self._serialized[key] = response.serialize(*key[1:])
        return self._serialized[key]

    # PUT /blocklist/nodes/{node_id}: the functions of its route

    def claim_put(self, line: bytes, headers: Headers) -> FastRequest | None:
        """The PUT with this head if it is plain, and its credential allows it; then `put` gets it with its body."""
        match = self._plain_put.fullmatch(line) if self._puts else None
        fields = None if match is None else self._plain_fields(headers)
        if match is None or fields is None:
            return None
        length = fields.get(b"content-length", b"")
        credential = self._authorize(fields.get(b"authorization"), Role.OPERATOR)
        if credential is None or credential.principal.owners is not None:
            return None
        request = FastRequest(fields)
        request.principal = credential.principal
        request.node_id = match[1].decode()
        request.request_id = client_request_id(headers) or new_request_id()
        return request if length.isdigit() and int(length) <= MAX_NODE_BODY else None

    def _plain_fields(self, headers: Headers) -> Fields | None:
        """The fields of a plain PUT that decide about it, each at most once; None if it is not plain."""
        fields: Fields = {}
        for name, value in headers:
            if name in _USED_BY_PUT and name not in fields:
                fields[name] = value
            elif name in _NOT_IN_PLAIN_PUT or (name == b"connection" and value.lower() != b"keep-alive"):
                return None
        host = fields.get(b"host")
        return fields if self._accepts_host is None or self._accepts_host(host) else None

    def put(self, request: FastRequest) -> None:
        service = self._service
        try:
            command = block_command(request.node_id, request.body, service.clock())
            guarded = service.limit_guard.enforce(command, request.principal.role)
            by = author(request.principal, request_id=request.request_id.decode())
            service.handler.submit_callback(guarded, by, partial(self._on_outcome, request))
        except BlocklistError as error:
            self._put_problem(request, problem_for(self._asgi_request(request), error))

    def _on_outcome(self, request: FastRequest, outcome: Outcome[BlockedNode] | BlocklistError) -> None:
        try:
            if isinstance(outcome, BlocklistError):
                self._put_problem(request, problem_for(self._asgi_request(request), outcome))
            else:
                status, body = block_response(self._service, outcome)
                # The same bytes as from JsonResponse, rendered at once: that halves the cost of a response.
                fields = (len(body) + 1, outcome.revision, self._view.tracker.history.encode())
                warnings = several_warning(self._service, outcome.value.id)
                lines = b"".join([b"%b: %b\r\n" % header for header in warnings])
                self._put_response(request, status, _PUT_FIELDS % fields + lines, body + b"\n")
        except Exception as error:
            log.exception("PUT failed", request_id=request.request_id.decode())
            self._put_problem(request, internal_error(self._asgi_request(request), error))

    def _put_problem(self, request: FastRequest, response: Response) -> None:
        lines = b"".join([b"%b: %b\r\n" % header for header in response.raw_headers])
        self._put_response(request, HTTPStatus(response.status_code), lines, bytes(response.body))

    def _put_response(self, request: FastRequest, status: HTTPStatus, lines: bytes, body: bytes) -> None:
        self._service.metrics.fast_puts[status] += 1
        close = b"" if request.keep_alive else b"connection: close\r\n"
        head = _STATUS_LINES[status] + self._lines(request.server_state.default_headers) + lines
        parts = (head, REQUEST_ID_HEADER, request.request_id, close, body)
        request.respond(request, b"%b%b: %b\r\n%b\r\n%b" % parts)

    def _asgi_request(self, request: FastRequest) -> Request:
        path = f"/blocklist/nodes/{request.node_id}"
        scope = {"path": path, "raw_path": path.encode(), "root_path": self._root_path, "headers": []}
        return Request({"type": "http", "app": self._app, **scope})


class _Wait(NamedTuple):
    """A request that waits: with this credential, for at most this many seconds."""

    credential: Credential
    seconds: int
    slots: ClientSlots
    timer: asyncio.TimerHandle
