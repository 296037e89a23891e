"""BlocklistClient: the service's API for Python. Synchronous; one client may be shared by threads."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Final, Self

import httpx
from pydantic import ValidationError

from blocklist.changes import Snapshot
from blocklist.errors import (
    BlocklistError,
    CompactedError,
    ConflictError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from blocklist.node import PERMANENT, BlockAction, BlockedNode, check_node_id
from blocklist.watch import Watch
from blocklist.wire import Json, NodeBody

__all__ = ["DEFAULT_URL", "BlocklistClient", "Watch"]

DEFAULT_URL: Final = "http://127.0.0.1:8224"
log = logging.getLogger(__name__)


class BlocklistClient:
    """Reads and changes the list of a blocklist service.

    `url` defaults to the environment's BLOCKLIST_URL, else to the service's default address. `timeout` is in
    seconds, for each of connecting, sending and each read. Every method raises UnavailableError when the service is
    out of reach, times out or answers what is no answer of its own.
    """

    def __init__(self, url: str | None = None, *, timeout: float = 5.0) -> None:
        self.url = (url or os.environ.get("BLOCKLIST_URL") or DEFAULT_URL).rstrip("/")
        self._http = httpx.Client(base_url=self.url, timeout=timeout, follow_redirects=False)

    def snapshot(self, *, min_revision: int | None = None) -> Snapshot:
        """The whole list. With `min_revision` the answer is of that revision or later."""
        params = {} if min_revision is None else {"minRevision": str(min_revision)}
        answer = self._ask("GET", "/blocklist", params=params)
        nodes = {node_id: _node({**_object(body), "id": node_id}) for node_id, body in _object(answer.json()).items()}
        revision, history = answer.headers["Blocklist-Revision"], answer.headers["Blocklist-History"]
        return Snapshot(revision=int(revision), history=history, nodes=nodes)

    def get(self, node_id: str) -> BlockedNode:
        """One blocked node. Raises NotFoundError if it is not blocked."""
        return _node(self._ask("GET", _path(node_id)).json())

    def block(
        self,
        node_id: str,
        cause: str,
        *,
        action: BlockAction = BlockAction.MARK_BLOCKED,
        end: int = PERMANENT,
        allow_merge: bool = False,
    ) -> BlockedNode:
        """Block a node until `end` (Unix milliseconds); returns it as blocked, or merged with its present block.

        Raises ConflictError if it is blocked and `allow_merge` is false, InvalidError for what the service refuses.
        """
        body = _request(action, cause, end, allow_merge)
        return _node(self._ask("PUT", _path(node_id), json=body).json())

    def block_many(self, nodes: Iterable[BlockedNode], *, allow_merge: bool = False) -> dict[str, BlockedNode]:
        """Block several nodes, all or none, in one revision each; their `start` is not sent: it is now.

        Raises ConflictError with every conflict, InvalidError for what the service refuses.
        """
        body = {node.id: _request(node.action, node.cause, node.end, allow_merge) for node in nodes}
        answer = self._ask("PUT", "/blocklist/nodes", json=body).json()
        return {node_id: _node(node) for node_id, node in _object(answer).items()}

    def unblock(self, node_id: str) -> None:
        """Free a node before its end. Raises NotFoundError if it is not blocked."""
        self._ask("DELETE", _path(node_id))

    def watch(self, since: str | int | None = None) -> Watch:
        """The list's changes as they happen, for ever: see Watch.

        `since` is a revision, or `<revision>-<history>`; without it the first is a Snapshot.
        """
        return Watch(self.url, None if since is None else str(since), timeout=self._http.timeout.read or 5.0)

    def close(self) -> None:
        """Close the connections. Watches live on."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(
        self, method: str, path: str, *, params: Mapping[str, str] | None = None, json: Json | None = None
    ) -> _Answer:
        try:
            response = self._http.request(method, path, params=params, json=json)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UnavailableError(f"{self.url} is out of reach: {str(error) or type(error).__name__}") from error
        if not response.is_success:
            raise _refusal(response)
        if "Blocklist-Revision" not in response.headers:
            raise UnavailableError(f"{self.url} does not answer as a blocklist service does.")
        return _Answer(response)


class _Answer:
    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.headers = response.headers

    def json(self) -> object:
        try:
            return self._response.json()
        except ValueError as error:
            raise UnavailableError(f"The answer of {self._response.url} is not JSON.") from error


def _path(node_id: str) -> str:
    return f"/blocklist/nodes/{check_node_id(node_id)}"


def _request(action: BlockAction, cause: str, end: int, allow_merge: bool) -> Json:
    return {"action": action.name, "cause": cause, "endTimestamp": str(end), "allowMerge": allow_merge}


def _object(value: object) -> Json:
    if not isinstance(value, dict):
        raise UnavailableError("The service answered something else than an object.")
    return value


def _node(value: object) -> BlockedNode:
    try:
        return NodeBody.model_validate(value).value()
    except (ValidationError, InvalidError) as error:
        raise UnavailableError(f"The service answered what is no node: {error}") from error


def _refusal(response: httpx.Response) -> BlocklistError:
    problem = _problem(response)
    detail, lines = str(problem.get("detail") or response.reason_phrase), [str(e) for e in problem.get("errors") or ()]
    match response.status_code:
        case 400 | 413:
            return InvalidError(detail, lines)
        case 404:
            return NotFoundError(detail, lines)
        case 409:
            one, many = problem.get("blockedNode"), problem.get("blockedNodes")
            blocked = [_node(body) for body in ([one] if one else (many or {}).values())]
            return ConflictError(detail, {node.id: node for node in blocked}, lines)
        case 410:
            return CompactedError(detail, int(problem.get("oldest", 0)))
        case status:
            return UnavailableError(f"HTTP {status}: {detail}", _seconds(response.headers.get("Retry-After")))


def _problem(response: httpx.Response) -> Json:
    if response.headers.get("Content-Type", "").partition(";")[0] != "application/problem+json":
        return {}
    try:
        return _object(response.json())
    except (ValueError, UnavailableError):
        return {}


def _seconds(value: str | None) -> float | None:
    return float(value) if value and value.isascii() and value.isdigit() else None
