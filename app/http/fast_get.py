"""The plain GET /blocklist, answered from cached bytes inside uvicorn's HTTP protocol, below ASGI.

The response to a plain request follows from its method, its path and a few headers. Every other request goes to the
ordinary route, which returns the same bytes and is the tests' oracle. A poller sends the same bytes each time, so a
request that was parsed and found plain is recognized by its bytes and not parsed again. Runs on the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

from app.auth.authenticator import Authenticator
from app.auth.credential import Credential
from app.engine.cached_list import CachedResponse
from app.engine.list_view import ListView
from app.http.connection_limits import LimitingProtocol
from app.logs import REQUEST_ID_HEADER, client_request_id
from app.net.addresses import HostPolicy
from app.watch import DIRECT
from blocklist.model.roles import Role

_EXCLUDED: Final = frozenset(
    (
        b"content-length",
        b"expect",
        b"origin",
        b"prefer",
        b"sec-fetch-site",
        b"transfer-encoding",
        b"upgrade",
        b"x-forwarded-user",
    )
)
"""A request with one of these headers is not plain, unless the header is one that this kind of request uses."""
_USED_BY_GET: Final = frozenset((b"accept-encoding", b"authorization", b"host", b"if-none-match"))
MAX_ENTRIES: Final = 512
"""Maximum number of entries of the parse cache. Each new ETag makes new requests, so a full cache is emptied."""
MAX_REQUEST_BYTES: Final = 1024
"""Longer requests are not cached."""


class PlainGet(NamedTuple):
    """What the response to a plain GET depends on, besides the list. `credential` is None without authentication."""

    if_none_match: bytes | None
    accept_encoding: bytes | None
    credential: Credential | None


class ParseCache(dict[bytes, PlainGet]):
    """What whole requests were parsed to, by their bytes."""

    def add(self, data: bytes, parsed: PlainGet) -> None:
        if len(data) > MAX_REQUEST_BYTES:
            return
        if len(self) >= MAX_ENTRIES:
            self.clear()
        self[data] = parsed


class CachedResponses:
    """What all connections share: the list's cached responses and the parse cache.

    `auth` is None if authentication is off. The credential of a cached request is checked at each use, so a token that
    is revoked is refused for cached requests too.
    """

    def __init__(self, view: ListView, auth: Authenticator, host_policy: HostPolicy | None) -> None:
        self.view = view
        self.auth = auth if auth.enabled else None
        self.host_policy = host_policy
        self.gets = ParseCache()
        self._default_lines = b""
        self._default_headers: object = None

    def response_to(self, request: PlainGet, default_headers: list[tuple[bytes, bytes]]) -> bytes | None:
        """The whole response, as of now; None if only the ordinary route can give it."""
        cached_list = self.view.list_unless_stale()
        if cached_list is None:
            return None
        if_none_match, accept_encoding, credential = request
        if credential is not None and not credential.use(self.view.clock()):
            return None
        self.view.fast_reads += 1
        response: CachedResponse = cached_list.response_for(if_none_match, accept_encoding)
        return response.serialized(self.default_lines(default_headers))

    def default_lines(self, default_headers: list[tuple[bytes, bytes]]) -> bytes:
        """The header lines that uvicorn adds; rendered again when it makes a new list, each second, for Date."""
        if default_headers is not self._default_headers:
            self._default_lines = b"".join(b"%b: %b\r\n" % header for header in default_headers)
            self._default_headers = default_headers
        return self._default_lines


class FastGetProtocol(LimitingProtocol):
    """uvicorn's protocol, except for the plain GET /blocklist."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._responses: CachedResponses = self.app_state["cached_responses"]
        self._plain_get: PlainGet | None = None
        self._requests_begun = 0
        self._responded_at = 0.0

    def data_received(self, data: bytes) -> None:
        request = self._responses.gets.get(data)
        if request is not None and self._request_complete and self.timeout_keep_alive_task and self._is_idle():
            response = self._responses.response_to(request, self.server_state.default_headers)
            if response is not None:
                # The keep-alive timer is left running (see its handler): resetting it would double the cost.
                self._responded_at = self.loop.time()
                self.transport.write(response)
                return
        idle = self._request_complete and self._is_idle()
        self._requests_begun, self._plain_get = 0, None
        super().data_received(data)
        if idle:
            self._cache_parsed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        # Breaks reference cycles, which would keep 10 kB for each watcher until the garbage collector runs.
        self.cycle = None  # type: ignore[assignment]
        self.scope = None  # type: ignore[assignment]

    def _cache_parsed(self, data: bytes) -> None:
        """Cache the request that was just parsed, if `data` is that one request and all of it.

        `data` began on an idle connection: bytes that began inside another request, or its body, mean something else on
        another connection.
        """
        if self._plain_get is not None and self._requests_begun == 1 and self._request_complete:
            self._responses.gets.add(data, self._plain_get)

    def on_message_begin(self) -> None:
        self._requests_begun += 1
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
        response = self._responses.response_to(self._plain_get, self.server_state.default_headers)
        if response is None:
            self._plain_get = None
            super().on_headers_complete()
            super().on_message_complete()
            return
        if (request_id := client_request_id(self.headers)) is not None:
            response = _with_request_id(response, request_id)
            self._plain_get = None  # not worth caching: the next request has another id
        self.transport.write(response)
        self.on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        # A cached response leaves the timer running; a request that is parsed stops it.
        left = self._responded_at + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def write_chunk(self, data: bytes) -> bool:
        """Write one chunk of a chunked body, for app.watch, in a third of the time of ASGI's `send`."""
        if self.flow.write_paused or self.transport.is_closing():
            return False
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def _parse_get(self) -> PlainGet | None:
        if self.url != b"/blocklist" or (used := self._plain_headers(b"GET", _USED_BY_GET)) is None:
            return None
        authorized, credential = self._authorize(used, Role.READER)
        if not authorized:
            return None
        return PlainGet(used.get(b"if-none-match"), used.get(b"accept-encoding"), credential)

    def _plain_headers(self, method: bytes, used: AbstractSet[bytes]) -> dict[bytes, bytes] | None:
        """The `used` headers of a plain request of this method; None if the ordinary route must serve it.

        A plain request is the only one in progress, HTTP/1.1, kept alive, and has each used header at most once.
        """
        if self.parser.get_method() != method or not self._is_idle():
            return None
        if self.parser.get_http_version() != "1.1" or not self.parser.should_keep_alive():
            return None
        found: dict[bytes, bytes] = {}
        for name, value in self.headers:
            if name in used and name not in found:
                found[name] = value
            elif name in used or name in _EXCLUDED or (name == b"connection" and value.lower() != b"keep-alive"):
                return None
        policy = self._responses.host_policy
        return found if policy is None or policy.accepts(found.get(b"host")) else None

    def _authorize(self, headers: Mapping[bytes, bytes], required_role: Role) -> tuple[bool, Credential | None]:
        """Whether it is known, without a query, that the request is allowed; and its credential.

        The credential is None if authentication is off. A request that is not allowed goes to the ordinary route,
        which verifies or refuses it.
        """
        auth, header = self._responses.auth, headers.get(b"authorization")
        if auth is None or header is None:
            return auth is None and header is None, None
        credential = auth.authenticate_cached(header)
        return credential is not None and credential.principal.role.allows(required_role), credential

    def _is_idle(self) -> bool:
        """Whether the connection is open, no other request of it is in progress, and its write buffer is not full."""
        if self.flow.write_paused or self.transport.is_closing():
            return False
        return self.cycle is None or self.cycle.response_complete


def _with_request_id(response: bytes, request_id: bytes) -> bytes:
    head, _, body = response.partition(b"\r\n\r\n")
    return b"%b\r\n%b: %b\r\n\r\n%b" % (head, REQUEST_ID_HEADER, request_id, body)
