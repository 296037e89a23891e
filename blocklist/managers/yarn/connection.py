"""HTTP to one ResourceManager: the whole answer within a deadline, limited in size, with whatever credentials."""

from __future__ import annotations

import importlib
import json
import logging
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from blocklist.client.proxies import proxy_of
from blocklist.client.transport import TRANSPORT_ERRORS, AbortableSocket
from blocklist.managers.plan import ManagerError
from blocklist.managers.yarn.interruptible import Stop
from blocklist.model.errors import InvalidError

REQUEST_SECONDS: Final = 10.0
"""For a whole answer."""
_MAX_BYTES: Final = 256 * 1024 * 1024
"""About 100,000 nodes."""
_PATH: Final = "/ws/v1/cluster"
_MAX_PAGE: Final = 4096
_TITLE: Final = re.compile("<title>(.+?)</title>", re.IGNORECASE | re.DOTALL)
# The ResourceManager may want the last one against requests that a browser was made to send.
_HEADERS: Final = {"Accept": "application/json", "X-XSRF-Header": "blocklist"}


class NoAnswerError(ManagerError):
    """A ResourceManager is down, a standby, or does not answer."""


class RejectedError(ManagerError):
    """A ResourceManager answered that it does not do this; `status` is that of HTTP, 0 if it was not in an answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """How to speak to a ResourceManager: as `user` where it believes names, with `auth` where it wants proof.

    `ca` is a file with the certificates of trusted authorities; None for those of the system.
    """

    user: str | None = None
    auth: httpx.Auth | None = None
    ca: Path | None = None

    def client(self, url: str, seconds: float) -> httpx.Client:
        """Raises ManagerError if the file of authorities is not usable."""
        try:
            # Loading trusted certificates takes most of the time to create a client.
            plain = url.startswith("http://")
            verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as error:
            raise ManagerError(f"The certificates in {self.ca} cannot be read: {error}.") from error
        params = {} if self.user is None else {"user.name": self.user}
        return httpx.Client(
            base_url=url + _PATH,
            auth=self.auth,
            params=params,
            headers=_HEADERS,
            timeout=seconds,
            verify=verify,
            trust_env=False,
            proxy=proxy_of(url),
        )


class Connection:
    """To the ResourceManager at `url`. Errors name the URL and what was asked. Used by one thread at a time."""

    def __init__(self, url: str, access: Access, stop: Stop, seconds: float = REQUEST_SECONDS) -> None:
        self.url = url
        self._access = access
        self._stop = stop
        self._seconds = seconds
        self._socket = AbortableSocket()
        self._client: httpx.Client | None = None

    def get(self, path: str, **params: str) -> Any:
        """The answer as JSON. Raises NoAnswerError and RejectedError."""
        return self._request("GET", path, params, None)

    def post(self, path: str, body: object, *, seconds: float | None = None) -> Any:
        """As `get`; None if the answer is empty. `seconds` replaces the deadline, and a stop does not end it then."""
        return self._request("POST", path, {}, body, seconds)

    def close(self) -> None:
        """Close it; the next request opens another one."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _request(
        self, method: str, path: str, params: Mapping[str, str], body: object, seconds: float | None = None
    ) -> Any:
        if self._client is None:
            self._client, self._socket = self._access.client(self.url, self._seconds), AbortableSocket()
        client, connection = self._client, self._socket
        # Kept only after a whole answer: the rest of one that was given up must not reach another request.
        self._client = None
        stop, limit = (self._stop, self._seconds) if seconds is None else (Stop(), seconds)
        try:
            status, headers, data = stop.call(
                lambda: _exchange(client, connection, method, path, params, body), limit, connection.abort
            )
        except (*TRANSPORT_ERRORS, ValueError) as error:
            reason = str(error) or type(error).__name__
            raise NoAnswerError(f"The ResourceManager {self.url} does not answer {method} {path}: {reason}.") from error
        self._client = client
        return self._parse(f"{method} {path}", status, headers, data)

    def _parse(self, request: str, status: int, headers: httpx.Headers, data: bytes) -> Any:
        if status in {301, 302, 303, 307, 308}:
            raise NoAnswerError(
                f"The ResourceManager {self.url} is a standby, or has another URL: it redirects {request} to"
                f" {headers.get('Location')}."
            )
        if status >= 400:
            self._raise_rejected(request, status, data)
        if not data.strip():
            return None
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise NoAnswerError(
                f"The ResourceManager {self.url} answered {request} without JSON: {_text(data)}"
            ) from error

    def _raise_rejected(self, request: str, status: int, data: bytes) -> None:
        reason = _exception_message(data)
        if status in {502, 503, 504}:
            raise NoAnswerError(f"The ResourceManager {self.url} answered {request} with {status}: {reason}.")
        hint = ""
        # The ResourceManager answers 401, too, to a user that it knows, but who is no administrator.
        if status == 403 or "not authorized" in reason:
            hint = " The manager's user must be an administrator of YARN (yarn.admin.acl)."
        elif status == 401 and self._access.auth is not None:
            hint = " Kerberos gave no login: run klist, then kinit, or name a keytab in KRB5_CLIENT_KTNAME."
        elif status == 401:
            hint = " It wants a login: use --kerberos, after kinit, or --user."
        elif status == 404 and request == "GET /info":
            hint = " Give the address of its web interface, such as http://rm:8088."
        raise RejectedError(f"The ResourceManager {self.url} rejected {request} with {status}: {reason}.{hint}", status)


def _exchange(
    client: httpx.Client,
    connection: AbortableSocket,
    method: str,
    path: str,
    params: Mapping[str, str],
    body: object,
) -> tuple[int, httpx.Headers, bytes]:
    content = None if body is None else json.dumps(body).encode()
    headers = {} if body is None else {"Content-Type": "application/json"}
    request = client.build_request(
        method,
        path,
        params=dict(params) or None,
        content=content,
        headers=headers,
        extensions={"trace": connection.trace, "timeout": client.timeout.as_dict()},
    )
    response = client.send(request, stream=True)
    try:
        data = bytearray()
        for part in response.iter_bytes():
            data += part
            if len(data) > _MAX_BYTES:
                raise ValueError(f"the response is larger than {_MAX_BYTES >> 20} MiB")
        return response.status_code, response.headers, bytes(data)
    finally:
        response.close()


def _exception_message(data: bytes) -> str:
    """What the ResourceManager, or the Jetty before it, says in its error, without the end of the sentence."""
    try:
        error = json.loads(data)
        text = str(error.get("RemoteException", error)["message"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        text = _text(data)
    return " ".join(text.split())[:300].rstrip(".") or "no reason"


def _text(data: bytes) -> str:
    """The beginning of an answer that is not JSON, in one line; of a page its title."""
    text = data[:_MAX_PAGE].decode(errors="replace")
    title = _TITLE.search(text)
    return " ".join((text if title is None else title[1]).split())[:200]


# SPNEGO, for a ResourceManager whose REST API wants Kerberos. Needs the extra `kerberos` of this package.

_LIBRARY_LOG: Final = "httpx_gssapi.gssapi_"


class _NewErrors(logging.Filter):
    """Lets the library report why there is no login in one line, and once: it does so twice for each request."""

    _last = ""

    def filter(self, record: logging.LogRecord) -> bool:
        record.exc_info = None
        last, self._last = self._last, record.getMessage()
        return last != self._last


def kerberos_auth() -> httpx.Auth:
    """Proves the identity of the ticket in the credentials cache, or of KRB5_CLIENT_KTNAME, a keytab.

    The ResourceManager must prove its own. Raises InvalidError if the library, or what it needs, is not installed.
    """
    try:
        library = importlib.import_module("httpx_gssapi")
    except ImportError as error:
        raise InvalidError(
            f"--kerberos needs the package httpx-gssapi, which cannot be loaded ({error}). Install it with pip install"
            " httpx-gssapi. The package gssapi, which it needs, has no builds for Linux and is compiled against the"
            " system's Kerberos: on Debian, apt-get install gcc python3-dev libkrb5-dev first."
        ) from error
    logging.getLogger(_LIBRARY_LOG).addFilter(_NewErrors())
    # Not opportunistic: once logged in by its cookie, the ResourceManager proves its identity no more.
    auth: httpx.Auth = library.HTTPSPNEGOAuth(mutual_authentication=library.REQUIRED)
    return auth
