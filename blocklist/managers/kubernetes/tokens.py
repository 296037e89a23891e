"""Tokens for the API server that change while this process runs.

A pod's ServiceAccount has a token that the kubelet replaces before it expires (after an hour); a cloud's command makes
one for minutes. A rejected token is read again at once. While it cannot be read again, the former one is used: it may
be valid still. A token never appears in a repr, a log line or an error.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Generator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import httpx

from blocklist.managers.command import run
from blocklist.managers.plan import ManagerError
from blocklist.model.errors import InvalidError

log = logging.getLogger("blocklist.managers")

_FILE_SECONDS: Final = 60.0
"""A token from a file is read again after this time, as Kubernetes' own clients do."""
_COMMAND_TIMEOUT: Final = 60.0
_MARGIN_SECONDS: Final = 60.0
"""A token is replaced this long before it expires, or after half of the time that it has left."""
_KEEP_SECONDS: Final = 10.0
"""A token that could not be read again is used for this time before the next attempt."""


class TokenError(httpx.RequestError):
    """There is no token; the message is a sentence without it."""


def check_token(text: object, source: str) -> str:
    """The token without blanks around it. Raises ManagerError for what no header may have, which httpx would quote."""
    token = text.strip() if isinstance(text, str) else ""
    if not token or not token.isascii() or not token.isprintable():
        raise ManagerError(f"{source} is not a token.")
    return token


class RotatingToken(httpx.Auth):
    """Sends a token that is read again when it is old, and when it is rejected. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._token = ""
        self._fresh_until = 0.0
        self._failure = ""

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """The requests that httpx sends. Raises TokenError if there is none."""
        sent = self._current(request)
        request.headers["Authorization"] = f"Bearer {sent}"
        response = yield request
        if response.status_code == httpx.codes.UNAUTHORIZED and (token := self._current(request, sent)) != sent:
            request.headers["Authorization"] = f"Bearer {token}"
            yield request

    @abstractmethod
    def _read(self) -> tuple[str, float]:
        """The token, and the time (monotonic, in seconds) until which to use it. Raises ManagerError."""

    def _current(self, request: httpx.Request, rejected: str | None = None) -> str:
        with self._lock:
            if time.monotonic() >= self._fresh_until or self._token == rejected:
                try:
                    self._token, self._fresh_until = self._read()
                    self._failure = ""
                except ManagerError as error:
                    if not self._token or self._token == rejected:
                        raise TokenError(str(error), request=request) from error
                    self._keep(str(error))
            return self._token

    def _keep(self, failure: str) -> None:
        self._fresh_until = time.monotonic() + _KEEP_SECONDS
        if failure != self._failure:
            log.warning("%s The former token is used.", failure)
        self._failure = failure


class FileToken(RotatingToken):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def _read(self) -> tuple[str, float]:
        try:
            text = self._path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ManagerError(f"The token {self._path} cannot be read: {error}.") from error
        return check_token(text, str(self._path)), time.monotonic() + _FILE_SECONDS


class CommandToken(RotatingToken):
    """The token that the command of a kubeconfig prints (client.authentication.k8s.io), as clouds have them."""

    def __init__(self, command: Mapping[str, Any], folder: Path, cluster: Mapping[str, Any]) -> None:
        """`folder` is the kubeconfig's: a command with a slash is relative to it. Raises InvalidError."""
        super().__init__()
        if not isinstance(command, dict) or not command.get("command"):
            raise InvalidError("The kubeconfig has an exec entry without a command.")
        word = str(command["command"])
        self._words = [str(folder / word) if "/" in word else word, *map(str, command.get("args") or ())]
        info = {
            "apiVersion": command.get("apiVersion", "client.authentication.k8s.io/v1"),
            "kind": "ExecCredential",
            "spec": {"interactive": False, **({"cluster": dict(cluster)} if command.get("provideClusterInfo") else {})},
        }
        try:
            given = {str(each["name"]): str(each["value"]) for each in command.get("env") or ()}
        except (KeyError, TypeError):
            raise InvalidError("The kubeconfig has an exec entry whose env is no list of names and values.") from None
        self._environment = {**given, "KUBERNETES_EXEC_INFO": json.dumps(info)}

    def _read(self) -> tuple[str, float]:
        output = run(self._words, timeout=_COMMAND_TIMEOUT, variables=self._environment, secret=True)
        try:
            status = json.loads(output.stdout)["status"]
            token = status["token"]
        except (ValueError, KeyError, TypeError):
            raise ManagerError(f"{self._words[0]} printed no token: client certificates are not supported.") from None
        fresh_seconds = _seconds_until(status.get("expirationTimestamp"))
        return check_token(token, f"What {self._words[0]} printed"), time.monotonic() + fresh_seconds


def _seconds_until(timestamp: object) -> float:
    """Until the token has to be replaced; without an end it is read again only when it is rejected."""
    if not isinstance(timestamp, str):
        return float("inf")
    try:
        end = datetime.fromisoformat(timestamp).timestamp()
    except ValueError:
        return 0.0
    left = max(0.0, end - time.time())
    return left - min(_MARGIN_SECONDS, left / 2)
