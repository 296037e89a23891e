"""The plain GET /blocklist, answered from ready bytes inside uvicorn's HTTP protocol, below ASGI.

Only requests whose answer is known from the method, the path and two headers; all else falls through to the ordinary
route, which answers the same bytes (it is the tests' oracle). And since a poller sends the same bytes each time, a
request that was once parsed and found plain is known by its bytes, and not parsed again. One thread: the event loop's.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeVar

from app.auth.authenticator import Authenticator
from app.auth.credential import Credential
from app.engine.list_view import CachedResponse, ListView
from app.http.connection_limits import LimitingProtocol
from app.logs.request_ids import REQUEST_ID_HEADER, client_request_id
from app.watch.event_stream import DIRECT
from blocklist.model.roles import Role

# A request that carries one of these is not plain: it has a body, waits, wants something of the connection, or says
# twice what should be said once. Credentials are plain where there are tokens, if they are known.
_NOT_PLAIN: Final = frozenset(
    (
        b"accept-encoding",
        b"authorization",
        b"content-length",
        b"expect",
        b"if-none-match",
        b"prefer",
        b"transfer-encoding",
        b"upgrade",
        b"x-forwarded-user",
    )
)
MAX_ENTRIES: Final = 512
"""Requests known by their bytes: each ETag makes new ones, so they are forgotten all at once when there are many."""
MAX_REQUEST_BYTES: Final = 1024
"""Bytes of a request that may be known."""

T = TypeVar("T")


class ParseCache(dict[bytes, T]):
    """What was once parsed, by its bytes."""

    def add(self, data: bytes, parsed: T) -> None:
        if len(data) > MAX_REQUEST_BYTES:
            return
        if len(self) >= MAX_ENTRIES:
            self.clear()
        self[data] = parsed


class PlainGet(NamedTuple):
    """What the answer to a plain request depends on, besides the list; the credential, where there are tokens."""

    if_none_match: bytes | None
    accept_encoding: bytes | None
    credential: Credential | None = None


class PlainPut(NamedTuple):
    """What the header lines of a plain PUT say (see app.http.fast_put)."""

    length: int
    credential: Credential | None


class CachedResponses:
    """What all connections share: the view, requests and PUTs' header lines known by their bytes, an answer's head.

    `auth` is None where anybody may do anything. A request known by its bytes is known with the credential in them,
    which is asked each time whether it has ended: a token that is revoked ends for known requests, too.
    """

    def __init__(self, view: ListView, auth: Authenticator) -> None:
        self.view = view
        self.auth = auth if auth.enabled else None
        self.gets = ParseCache[PlainGet]()
        self.puts = ParseCache[PlainPut]()
        self._default_lines = b""
        self._default_headers: object = None

    def response_to(self, request: PlainGet, default_headers: list[tuple[bytes, bytes]]) -> bytes | None:
        """The whole answer at this moment; None if only the ordinary route can give it."""
        rendering = self.view.list_unless_stale()
        if rendering is None:
            return None
        if_none_match, accept_encoding, credential = request
        if credential is not None and not credential.use(self.view.clock()):
            return None
        self.view.fast_reads += 1
        answer: CachedResponse = rendering.response_for(if_none_match, accept_encoding)
        return answer.serialized(self.default_lines(default_headers))

    def default_lines(self, default_headers: list[tuple[bytes, bytes]]) -> bytes:
        """Uvicorn's own header lines; it makes a new list each second, for the date."""
        if default_headers is not self._default_headers:
            self._default_lines = b"".join(b"%b: %b\r\n" % header for header in default_headers)
            self._default_headers = default_headers
        return self._default_lines


class FastGetProtocol(LimitingProtocol):
    """uvicorn's protocol, but for the plain GET /blocklist."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._responses: CachedResponses = self.app_state["cached_responses"]
        self._plain_get: PlainGet | None = None
        self._requests_begun = 0
        self._request_complete = True
        self._responded_at = 0.0

    def data_received(self, data: bytes) -> None:
        request = self._responses.gets.get(data)
        if request is not None and self._request_complete and self.timeout_keep_alive_task and self._is_idle():
            answer = self._responses.response_to(request, self.server_state.default_headers)
            if answer is not None:
                # The keep-alive timer runs on: see its handler. To set it anew would cost as much as the rest.
                self._responded_at = self.loop.time()
                self.transport.write(answer)
                return
        elif self._try_cached(data):
            return
        self._requests_begun, self._plain_get = 0, None
        super().data_received(data)
        self._cache_parsed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        # Undone, or all that belonged to the connection waits in a circle for the collector: 10 kB for each watcher.
        self.cycle = None  # type: ignore[assignment]
        self.scope = None  # type: ignore[assignment]

    def _try_cached(self, data: bytes) -> bool:  # noqa: ARG002 - for app.http.fast_put
        """Whether these bytes are known for something else, which is now under way."""
        return False

    def _cache_parsed(self, data: bytes) -> None:
        """Keep what was parsed just now, if it came whole and alone."""
        if self._plain_get is not None and self._requests_begun == 1 and self._request_complete:
            self._responses.gets.add(data, self._plain_get)

    def on_message_begin(self) -> None:
        self._requests_begun += 1
        self._request_complete = False
        self._plain_get = None
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self.check_head()
        self._plain_get = self._parse_get()
        if self._plain_get is None:
            if self.url.startswith(b"/blocklist/watch"):
                self.scope["extensions"] = {DIRECT: {"write": self.write_chunk}}
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._request_complete = True
        if self._plain_get is None:
            super().on_message_complete()
            return
        answer = self._responses.response_to(self._plain_get, self.server_state.default_headers)
        if answer is not None:
            if (given := client_request_id(self.headers)) is not None:
                answer = _with_request_id(answer, given)
                self._plain_get = None  # The next one has another id: there is nothing to learn.
            self.transport.write(answer)
            self.on_response_complete()
            return
        self._plain_get = None
        super().on_headers_complete()
        super().on_message_complete()

    def timeout_keep_alive_handler(self) -> None:
        now = self.loop.time()
        if self.cycle is not None and not self.cycle.response_complete:
            self._responded_at = now  # or later: a PUT that is known by its bytes leaves the timer alone, too
        left = self._responded_at + self.timeout_keep_alive - now
        if left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def _parse_get(self) -> PlainGet | None:
        if self.url != b"/blocklist" or self.parser.get_method() != b"GET" or not self._is_idle():
            return None
        if self.parser.get_http_version() != "1.1" or not self.parser.should_keep_alive():
            return None
        etag = encoding = authorization = None
        for name, value in self.headers:
            if name == b"if-none-match" and etag is None:
                etag = value
            elif name == b"accept-encoding" and encoding is None:
                encoding = value
            elif name in _NOT_PLAIN or (name == b"connection" and value.lower() != b"keep-alive"):
                if name != b"authorization" or authorization is not None or self._responses.auth is None:
                    return None
                authorization = value
        return self._authorized_get(etag, encoding, authorization)

    def _authorized_get(
        self, etag: bytes | None, encoding: bytes | None, authorization: bytes | None
    ) -> PlainGet | None:
        if self._responses.auth is None:
            return PlainGet(etag, encoding)
        credential = self._credential(authorization, Role.READER)
        return None if credential is None else PlainGet(etag, encoding, credential)

    def _credential(self, authorization: bytes | None, required_role: Role) -> Credential | None:
        """The credential of a plain request; None if it is not known, or too weak: the ordinary route says so."""
        auth = self._responses.auth
        credential = None if auth is None or authorization is None else auth.authenticate_cached(authorization)
        return credential if credential is not None and credential.principal.role.allows(required_role) else None

    def write_chunk(self, data: bytes) -> bool:
        """A piece of a chunked body, for app.watch.event_stream: what ASGI's `send` does, in a third of its time."""
        if self.flow.write_paused or self.transport.is_closing():
            return False
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def _is_idle(self) -> bool:
        """Nothing else is under way on this connection, nor piling up in it."""
        return not self.flow.write_paused and (self.cycle is None or self.cycle.response_complete)


def _with_request_id(answer: bytes, request_id: bytes) -> bytes:
    head, _, body = answer.partition(b"\r\n\r\n")
    return b"%b\r\n%b: %b\r\n\r\n%b" % (head, REQUEST_ID_HEADER, request_id, body)
