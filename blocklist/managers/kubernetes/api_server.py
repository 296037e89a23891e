"""Requests to the API server. A failure is a ManagerError with a sentence that says what was asked."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, Self

import httpx

from blocklist.client.transport import TRANSPORT_ERRORS, AbortableSocket
from blocklist.managers.kubernetes.cluster_access import ClusterAccess, TokenError
from blocklist.managers.plan import ManagerError

Json = dict[str, Any]
"""An object of the API server."""
PAGE: Final = 500
"""Objects in one page of a list."""
FIELD_MANAGER: Final = "blocklist"
_REJECTED: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
"""Statuses for which other credentials may help."""
_PASSING: Final = frozenset(
    {
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.CONFLICT,
        HTTPStatus.GONE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
        HTTPStatus.TOO_MANY_REQUESTS,
    }
)
"""Statuses of a client's error that may be over at the next attempt."""
_MAX_FORMER: Final = 30
"""Replaced clients that stay open, as other threads may be using them: replacements are a second apart at least."""
_JSON_PATCH: Final = "application/json-patch+json"
_TIMEOUT: Final = httpx.Timeout(15, connect=5)
_WATCH_SECONDS: Final = 20
"""After which the API server ends a watch; it is then resumed. One that does not answer any more is noticed so."""
_WATCH_TIMEOUT: Final = httpx.Timeout(_WATCH_SECONDS + 10, connect=5)
_KEEP_ALIVE: Final = [
    # A connection to a machine that has gone is noticed after 25 s, although a watch may be silent for long.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
]


class ApiError(ManagerError):
    """A request failed. `status` is that of the response, None without one; `body` is the response as an object."""

    def __init__(self, message: str, status: int | None = None, body: Json | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = body or {}

    @property
    def for_good(self) -> bool:
        """Whether the same request will be rejected again, unless somebody acts."""
        return self.status is not None and 400 <= self.status < 500 and self.status not in _PASSING


class GoneError(ApiError):
    """The resourceVersion, or the page of a list, is too old: list again."""


class _Clients:
    """The HTTP clients with one set of certificates and credentials."""

    def __init__(self, access: ClusterAccess) -> None:
        self.http = _http_client(access, httpx.Limits(max_connections=32, max_keepalive_connections=8))
        # No idle connections: the socket of a reused one would be unknown.
        self.watch_http = _http_client(access, httpx.Limits(max_keepalive_connections=0))

    def close(self) -> None:
        self.http.close()
        self.watch_http.close()


class ApiServer:
    """The API server of one cluster. Threads may share it, except for one that watches.

    `replaced` is asked after a failure for access with other certificates or credentials: None if there is none.
    """

    def __init__(self, access: ClusterAccess, replaced: Callable[[], ClusterAccess | None] = lambda: None) -> None:
        self.url = access.url
        self._replaced = replaced
        self._lock = threading.Lock()
        self._clients = _Clients(access)
        self._former: list[_Clients] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for clients in (self._clients, *self._former):
            clients.close()

    def get(self, path: str, **params: str) -> Json:
        return self._send("GET", path, params=params)

    def create(self, path: str, body: Json) -> Json:
        return self._send("POST", path, json=body)

    def replace(self, path: str, body: Json) -> Json:
        """Raises ApiError with the status 409 if the object has another resourceVersion."""
        return self._send("PUT", path, json=body)

    def patch(self, path: str, operations: tuple[Mapping[str, Any], ...]) -> Json:
        """Apply a JSON patch; the object after it. Raises ApiError: 422 if a `test` failed, 409 for a conflict."""
        return self._send(
            "PATCH",
            path,
            params={"fieldManager": FIELD_MANAGER},
            content=json.dumps(operations).encode(),
            headers={"Content-Type": _JSON_PATCH},
        )

    def pages(self, path: str, **params: str) -> Iterator[Json]:
        """The pages of a list, each with `items` and `metadata`. Raises GoneError if it took too long."""
        asked = {**params, "limit": str(PAGE)}
        while True:
            page = self.get(path, **asked)
            meta, items = page.get("metadata"), page.get("items")
            if not isinstance(meta, dict) or not isinstance(items, list):
                raise ApiError(f"The API server's answer to GET {path} is not a list.")
            yield page
            if not (token := meta.get("continue")):
                if meta.get("remainingItemCount"):
                    raise ApiError(f"The API server's list at {path} ends before {meta['remainingItemCount']} more.")
                return
            asked["continue"] = token

    def watch(
        self, path: str, version: str, connection: AbortableSocket, on_open: Callable[[], None]
    ) -> Iterator[Json]:
        """The changes after a version, bookmarks included, until the API server ends the watch.

        Raises GoneError if the version is too old. Another thread may abort the connection. `on_open` is called when
        the watch is accepted, which may be long before the first change.
        """
        params = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true"}
        params["timeoutSeconds"] = str(_WATCH_SECONDS)
        clients = self._clients
        try:
            with clients.watch_http.stream(
                "GET", path, params=params, timeout=_WATCH_TIMEOUT, extensions={"trace": connection.trace}
            ) as response:
                if not response.is_success:
                    response.read()
                    raise _error("GET", path, response)
                on_open()
                for line in response.iter_lines():
                    yield _change(json.loads(line), path)
        except (*TRANSPORT_ERRORS, ValueError) as error:
            self._replace(clients)
            lost = f"The watch of {path} was lost: {_text(error)}."
            raise ApiError(str(error) if isinstance(error, TokenError) else lost) from error
        except ApiError as error:
            if error.status in _REJECTED:
                self._replace(clients)
            raise

    def _send(self, method: str, path: str, **options: Any) -> Json:
        clients = self._clients
        try:
            return self._send_with(clients, method, path, options)
        except ApiError as error:
            # Without a status it may have been carried out: it is for the caller to try it again.
            if error.status is None:
                self._replace(clients)
                raise
            if error.status not in _REJECTED or not self._replace(clients):
                raise
        return self._send_with(self._clients, method, path, options)

    def _send_with(self, clients: _Clients, method: str, path: str, options: Mapping[str, Any]) -> Json:
        try:
            response = clients.http.request(method, path, **options)
            if response.is_success:
                return _object(response.json())
        except TokenError as error:
            raise ApiError(str(error)) from error
        except (*TRANSPORT_ERRORS, ValueError, RecursionError) as error:
            raise ApiError(f"The API server at {self.url} did not answer {method} {path}: {_text(error)}.") from error
        raise _error(method, path, response)

    def _replace(self, failed: _Clients) -> bool:
        """Whether there are other clients than those which have failed."""
        with self._lock:
            if self._clients is failed and (access := self._replaced()) is not None:
                self._former.append(self._clients)
                self._clients = _Clients(access)
                if len(self._former) > _MAX_FORMER:
                    self._former.pop(0).close()
            return self._clients is not failed


def _http_client(access: ClusterAccess, limits: httpx.Limits) -> httpx.Client:
    transport = httpx.HTTPTransport(
        verify=access.tls, socket_options=_KEEP_ALIVE, proxy=access.proxy, limits=limits, trust_env=False
    )
    return httpx.Client(base_url=access.url, auth=access.auth, transport=transport, timeout=_TIMEOUT, trust_env=False)


def _object(body: object) -> Json:
    if not isinstance(body, dict):
        raise ValueError("the answer is not an object")
    return body


def _change(change: object, path: str) -> Json:
    """A change with `type` and `object`. Raises ApiError for one that ends the watch, ValueError for none."""
    if not isinstance(change, dict) or not isinstance(change.get("object"), dict):
        raise ValueError("it has what is not a change")
    if change.get("type") != "ERROR":
        return change
    status = change["object"]
    kind = GoneError if status.get("code") == HTTPStatus.GONE else ApiError
    raise kind(f"The watch of {path} ended: {status.get('message')}.", status.get("code"), status)


def _error(method: str, path: str, response: httpx.Response) -> ApiError:
    try:
        body = response.json()
    except ValueError:
        body = {}
    body = body if isinstance(body, dict) else {}
    kind = GoneError if response.status_code == HTTPStatus.GONE else ApiError
    reason = str(body.get("message") or response.reason_phrase)[:300].rstrip(".")
    return kind(f"{method} {path}: HTTP {response.status_code}: {reason}.", response.status_code, body)


def _text(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:200].rstrip(".")
