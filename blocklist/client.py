"""BlocklistClient: the service's API for Python. Synchronous; one client may be shared by threads."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Final, Self

import httpx

from blocklist.changes import Snapshot
from blocklist.connection import FAILURES, connect, retry_after, service_url
from blocklist.errors import (
    BlocklistError,
    CompactedError,
    ConflictError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from blocklist.node import PERMANENT, BlockAction, BlockedNode, check_node_id, check_text
from blocklist.watch import Watch
from blocklist.wire import Json, NodeBody

__all__ = ["DEFAULT_URL", "BlocklistClient", "Watch"]

DEFAULT_URL: Final = "http://127.0.0.1:8224"
_REVISION: Final = re.compile(r"[0-9]{1,16}", re.ASCII)


class BlocklistClient:
    """Reads and changes the list of a blocklist service.

    `url` defaults to the environment's BLOCKLIST_URL, else to the service's default address. `timeout` is in
    seconds, for each of connecting, sending and each read. Every method raises UnavailableError when the service is
    out of reach, times out or answers what is no answer of its own: a 404 of a proxy does not say that a node is free.
    """

    def __init__(self, url: str | None = None, *, timeout: float = 5.0) -> None:
        """Raises InvalidError for a URL that is none; connects to nothing yet."""
        self.url = service_url(url or os.environ.get("BLOCKLIST_URL") or DEFAULT_URL)
        self._timeout = timeout
        self._http = connect(self.url, timeout)

    def snapshot(self, *, min_revision: int | None = None) -> Snapshot:
        """The whole list. With `min_revision` the answer is of that revision or later."""
        params = {} if min_revision is None else {"minRevision": str(min_revision)}
        answer = self._ask("GET", "/blocklist", params=params)
        nodes = {node_id: _node({**_object(body), "id": node_id}) for node_id, body in answer.object().items()}
        return Snapshot(revision=answer.revision, history=answer.history, nodes=nodes)

    def get(self, node_id: str) -> BlockedNode:
        """One blocked node. Raises NotFoundError if it is not blocked."""
        return _node(self._ask("GET", _path(node_id)).object())

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
        return _node(self._ask("PUT", _path(node_id), json=body).object())

    def block_many(self, nodes: Iterable[BlockedNode], *, allow_merge: bool = False) -> dict[str, BlockedNode]:
        """Block several nodes, all or none, in one revision each; their `start` is not sent: it is now.

        Raises ConflictError with every conflict, InvalidError for a node given twice and what the service refuses.
        """
        body: Json = {}
        for node in nodes:
            if node.id in body:
                raise InvalidError(f"Node {node.id} is given more than once.")
            body[node.id] = _request(node.action, node.cause, node.end, allow_merge)
        answer = self._ask("PUT", "/blocklist/nodes", json=body)
        return {node_id: _node(node) for node_id, node in answer.object().items()}

    def unblock(self, node_id: str) -> None:
        """Free a node before its end. Raises NotFoundError if it is not blocked."""
        self._ask("DELETE", _path(node_id))

    def watch(self, since: str | int | None = None) -> Watch:
        """The list's changes as they happen, for ever: see Watch.

        `since` is a revision, or `<revision>-<history>`; without it the first is a Snapshot. Raises InvalidError for
        a `since` that is neither.
        """
        return Watch(self.url, None if since is None else str(since), timeout=self._timeout)

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
            with self._http.stream(method, self.url + path, params=params, json=json) as response:
                # Looked at before the body is read: a stranger's may have no end.
                ours = "Blocklist-Revision" in response.headers
                if ours:
                    response.read()
        except FAILURES as error:
            raise UnavailableError(f"{self.url} is out of reach: {str(error) or type(error).__name__}") from error
        if not ours:
            raise self._stranger(response)
        if not response.is_success:
            raise _refusal(response)
        return _Answer(response)

    def _stranger(self, response: httpx.Response) -> UnavailableError:
        if response.is_success:
            return UnavailableError(f"{self.url} does not answer as a blocklist service does.")
        return _unavailable(response, response.reason_phrase)


class _Answer:
    """What the service answered. Each part raises UnavailableError if it is not what a service of ours would send."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response

    @property
    def revision(self) -> int:
        text = self._response.headers.get("Blocklist-Revision", "")
        if not _REVISION.fullmatch(text):
            raise UnavailableError(f"The service answered a revision that is none: {text[:64]!a}.")
        return int(text)

    @property
    def history(self) -> str:
        return str(self._response.headers.get("Blocklist-History", ""))

    def object(self) -> Json:
        try:
            return _object(self._response.json())
        except (ValueError, RecursionError) as error:
            raise UnavailableError(f"The answer of {self._response.url} is not JSON.") from error


def _path(node_id: str) -> str:
    return f"/blocklist/nodes/{check_node_id(node_id)}"


def _request(action: BlockAction, cause: str, end: int, allow_merge: bool) -> Json:
    return {"action": action.name, "cause": check_text(cause), "endTimestamp": str(end), "allowMerge": allow_merge}


def _object(value: object) -> Json:
    if not isinstance(value, dict):
        raise UnavailableError("The service answered something else than an object.")
    return value


def _node(value: object) -> BlockedNode:
    try:
        return NodeBody.parse(value).value()
    except InvalidError as error:
        raise UnavailableError(f"The service answered what is no node: {error}") from error


def _refusal(response: httpx.Response) -> BlocklistError:
    problem = _problem(response)
    detail, errors = str(problem.get("detail") or response.reason_phrase), problem.get("errors")
    lines = [str(line) for line in errors] if isinstance(errors, list) else []
    match response.status_code:
        case 400 | 413:
            return InvalidError(detail, lines)
        case 404:
            return NotFoundError(detail, lines)
        case 409:
            return ConflictError(detail, _conflicts(problem), lines)
        case 410:
            oldest = problem.get("oldest")
            return CompactedError(detail, oldest if isinstance(oldest, int) else 0)
        case _:
            return _unavailable(response, detail)


def _unavailable(response: httpx.Response, detail: str) -> UnavailableError:
    return UnavailableError(f"HTTP {response.status_code}: {detail}", retry_after(response))


def _conflicts(problem: Json) -> dict[str, BlockedNode]:
    bodies = list(_object(problem.get("blockedNodes") or {}).values())
    if one := problem.get("blockedNode"):
        bodies.append(one)
    return {node.id: node for node in map(_node, bodies)}


def _problem(response: httpx.Response) -> Json:
    if response.headers.get("Content-Type", "").partition(";")[0] != "application/problem+json":
        return {}
    try:
        return _object(response.json())
    except (ValueError, RecursionError, UnavailableError):
        return {}
