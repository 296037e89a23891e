"""The plain GET /blocklist/table, answered from cached bytes below ASGI, and waited for there.

Thousands of drivers wait for the next table. As an ASGI task each of them would cost some ten kB while it waits, and a
millisecond at a change. Every request that is not plain goes to the ordinary route, which returns the same bytes and is
the tests' oracle. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any, Final

from app.auth.credential import Credential
from app.engine.cached_list import CachedList, CachedResponse
from app.engine.list_view import ListView
from app.http.fast_get import FastGetProtocol
from app.http.pending_request import PendingRequest
from app.logs import REQUEST_ID_HEADER, client_request_id, isolated
from app.net.addresses import Networks, client_address
from app.watch import ClientKey, ClientSlots, StreamQuota, wait_seconds
from blocklist.model.errors import UnavailableError
from blocklist.model.roles import Role

_URL: Final = b"/blocklist/table"
_USED_BY_TABLE: Final = frozenset((b"accept-encoding", b"authorization", b"host", b"if-none-match", b"prefer"))
RESPONSES_PER_TURN: Final = 100
"""Number of responses that are written in one turn of the event loop: a few milliseconds."""
_MAX_SERIALIZED: Final = 8


class TableRequest(PendingRequest):
    """A GET of the table. `wait` is N of `Prefer: wait=N` if it applies, else None."""

    __slots__ = ("accept_encoding", "credential", "if_none_match", "request_id", "slots", "timer", "wait")

    def __init__(
        self,
        if_none_match: bytes | None,
        accept_encoding: bytes | None,
        credential: Credential | None,
        request_id: bytes | None,
    ) -> None:
        super().__init__()
        self.if_none_match = if_none_match
        self.accept_encoding = accept_encoding
        self.credential = credential
        self.request_id = request_id
        self.wait: int | None = None
        self.slots: ClientSlots | None = None
        self.timer: asyncio.TimerHandle | None = None


class SerializedResponses:
    """The responses of one table, the same object for all equal requests: thousands of copies would fill memory."""

    def __init__(self) -> None:
        self._table: CachedList | None = None
        self._found: dict[tuple[CachedResponse, bytes, bytes], bytes] = {}

    def get(self, table: CachedList, response: CachedResponse, head: bytes, extra: bytes) -> bytes:
        """The bytes of a response of this table; those of the table before are dropped."""
        if table is not self._table or len(self._found) >= _MAX_SERIALIZED:
            self._found.clear()
            self._table = table
        found = self._found.get((response, head, extra))
        if found is None:
            found = self._found[response, head, extra] = response.serialize(head, extra)
        return found


class TableResponses:
    """What all connections share: the connections that wait for another table, and the bytes of its responses."""

    def __init__(self, view: ListView, quota: StreamQuota, trusted_proxies: Networks) -> None:
        self.view = view
        self.table = view.table
        self.quota = quota
        self.trusted_proxies = trusted_proxies
        # In the order in which they began to wait.
        self.waiting: dict[FastTableProtocol, TableRequest] = {}
        self._serialized = SerializedResponses()

    async def run(self) -> None:
        """Answer the waiting requests at each change of the table; never returns."""
        while True:
            changed = self.table.changed.subscribe()
            await self._answer_waiting()
            await changed

    async def _answer_waiting(self) -> None:
        waiting = iter(list(self.waiting.items()))
        while batch := list(islice(waiting, RESPONSES_PER_TURN)):
            for connection, request in batch:
                if self.waiting.get(connection) is request and self.is_due(request):
                    with isolated("response to a driver"):
                        connection.end_wait(request)
            # The next table is sent to the rest if the list changes meanwhile.
            await asyncio.sleep(0)

    def is_due(self, request: TableRequest) -> bool:
        """Whether a waiting request need not wait any longer for a change."""
        return self.view.closed or not self.table.current().matches(request.if_none_match or b"")

    def serialized(self, request: TableRequest, head: bytes, extra: bytes) -> bytes:
        """The response as bytes."""
        table = self.table.current()
        response = table.response_for(request.if_none_match, request.accept_encoding)
        return self._serialized.get(table, response, head, extra)


class FastTableProtocol(FastGetProtocol):
    """uvicorn's protocol, except for the plain GET of the list and of the table."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tables: TableResponses = self.app_state["table_responses"]
        self._table_request: TableRequest | None = None

    def on_headers_complete(self) -> None:
        self.check_head()
        self._table_request = self._parse_table_request()
        if self._table_request is None:
            super().on_headers_complete()
        else:
            # uvicorn queues pipelined requests until this one has its response.
            self.cycle = self._table_request  # type: ignore[assignment]

    def on_message_complete(self) -> None:
        if self._table_request is None:
            super().on_message_complete()
            return
        request, self._table_request, self._request_complete = self._table_request, None, True
        if request.wait and not self._tables.view.closed:
            self._begin_wait(request)
        else:
            self._respond_with_table(request)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def end_wait(self, request: TableRequest) -> None:
        """Answer a request that waits, unless its credential has ended meanwhile."""
        self._stop_waiting()
        if request.credential is not None and not request.credential.use(self._tables.view.clock()):
            request.response_complete = True
            self.transport.close()
            return
        self._respond_with_table(request)

    def _begin_wait(self, request: TableRequest) -> None:
        assert request.wait is not None
        assert request.slots is not None
        request.slots.__enter__()
        request.timer = self.loop.call_later(request.wait, self.end_wait, request)
        self._tables.waiting[self] = request

    def _stop_waiting(self) -> None:
        request = self._tables.waiting.pop(self, None)
        if request is not None and request.slots is not None and request.timer is not None:
            request.timer.cancel()
            request.slots.__exit__()

    def _respond_with_table(self, request: TableRequest) -> None:
        request.response_complete = True
        if request.disconnected or self.transport.is_closing():
            return
        self._tables.table.fast_reads += 1
        head = self._responses.default_lines(self.server_state.default_headers)
        self.transport.write(self._tables.serialized(request, head, self._extra_lines(request)))
        if not request.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def _extra_lines(self, request: TableRequest) -> bytes:
        """The header lines that depend on the request, and on whether the database is available."""
        lines = []
        if (age := self._tables.view.age()) is not None:
            lines.append(b"age: %d\r\n" % age)
        if request.wait is not None:
            lines.append(b"preference-applied: wait=%d\r\n" % request.wait)
        if request.request_id is not None:
            lines.append(b"%b: %b\r\n" % (REQUEST_ID_HEADER, request.request_id))
        if not request.keep_alive:
            lines.append(b"connection: close\r\n")
        return b"".join(lines)

    def _parse_table_request(self) -> TableRequest | None:
        """A plain GET of the table that may be answered here; None if the ordinary route must answer it."""
        if self.url != _URL or (used := self._plain_headers(b"GET", _USED_BY_TABLE)) is None:
            return None
        authorized, credential = self._authorize(used, Role.READER)
        tables, etags = self._tables, used.get(b"if-none-match")
        if not authorized or tables.view.age() is not None:
            return None
        if credential is not None and not credential.use(tables.view.clock()):
            return None
        request = TableRequest(etags, used.get(b"accept-encoding"), credential, client_request_id(self.headers))
        if etags is None or tables.table.current().matches(etags):
            return self._with_wait(request, used.get(b"prefer"))
        return request if tables.table.revision_ahead(etags) is None else None

    def _with_wait(self, request: TableRequest, prefer: bytes | None) -> TableRequest | None:
        """The request with its wait, if it asks for one; None if the client has too many waiting requests."""
        seconds = None if prefer is None else wait_seconds([prefer.decode("latin-1")])
        if seconds is None or request.if_none_match is None:
            return request
        try:
            request.slots = self._tables.quota.slots_of(self._client_key(request.credential))
        except UnavailableError:
            return None
        request.wait = seconds
        return request

    def _client_key(self, credential: Credential | None) -> ClientKey:
        forwarded = [value.decode("latin-1") for name, value in self.headers if name == b"x-forwarded-for"]
        peer = self.client[0] if self.client else ""
        name = None if credential is None else credential.principal.name
        return ClientKey(name, client_address(peer, forwarded, self._tables.trusted_proxies))
