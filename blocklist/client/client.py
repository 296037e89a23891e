"""BlocklistClient: the Python client of the service. Synchronous; threads may share one client."""

from __future__ import annotations

import os
from collections.abc import Iterable
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING, Self

import httpx

from blocklist.client import DEFAULT_URL
from blocklist.client.clock import ServiceClock, clock_offset
from blocklist.client.credentials import BearerAuth, resolve_auth
from blocklist.client.listeners import ListenerRequests
from blocklist.client.reads import Reads
from blocklist.client.response import (
    ApiResponse,
    Params,
    error_from,
    is_about_path,
    parse_node,
    parse_object,
    unavailable_error,
)
from blocklist.client.token_file import TokenFileError
from blocklist.client.tokens import TokenAdministration
from blocklist.client.transport import TRANSPORT_ERRORS, http_client, service_url, unreachable_message
from blocklist.client.writes import Writes, block_body, node_path
from blocklist.model.errors import UnavailableError
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode
from blocklist.wire.json import Json

if TYPE_CHECKING:
    from blocklist.client.watch import Watch
    from blocklist.model.changes import Snapshot


class BlocklistClient(Reads, Writes, ListenerRequests, TokenAdministration):
    """Reads and changes the list of a blocklist service.

    `url` defaults to BLOCKLIST_URL, then to http://127.0.0.1:8224. `token` defaults to BLOCKLIST_TOKEN, then to the
    content of the file BLOCKLIST_TOKEN_FILE, which is read again when the service rejects the token. `timeout` is in
    seconds, for connecting, sending and each read. Every method raises UnavailableError if the service is unreachable,
    times out, or if the response is not from a blocklist service (a 404 of a proxy does not mean that a node is not
    blocked), UnauthorizedError for missing or invalid credentials, and ForbiddenError if their role is insufficient.
    """

    def __init__(self, url: str | None = None, *, token: str | BearerAuth | None = None, timeout: float = 5.0) -> None:
        """Does not connect yet. Raises InvalidError for an invalid URL or a malformed token."""
        self.url = service_url(url or os.environ.get("BLOCKLIST_URL") or DEFAULT_URL)
        self._timeout = timeout
        self._auth = resolve_auth(token)
        self._http = http_client(self.url, timeout, token=self._auth)
        self.clock = ServiceClock()
        """The service's clock, from the last response, and from the start of the last watch."""
        self.clock_offset: int | None = None
        """Milliseconds by which the clock of the service is ahead, from the last response; None before the first."""

    def snapshot(self, *, min_revision: int | None = None) -> Snapshot:
        """The whole list; with `min_revision`, at that revision or a later one."""
        from blocklist.model.changes import Snapshot

        params = {} if min_revision is None else {"minRevision": str(min_revision)}
        response = self._request("GET", "/blocklist", params=params)
        nodes = {
            node_id: parse_node({**parse_object(body), "id": node_id}) for node_id, body in response.object().items()
        }
        return Snapshot(revision=response.revision, history=response.history, nodes=nodes)

    def get(self, node_id: str) -> BlockedNode:
        """One blocked node. Raises NotFoundError if it is not blocked."""
        return parse_node(self._request("GET", node_path(node_id)).object())

    def block(
        self,
        node_id: str,
        cause: str,
        *,
        action: BlockAction = BlockAction.MARK_BLOCKED,
        end: int = PERMANENT,
        allow_merge: bool = False,
    ) -> BlockedNode:
        """Block a node until `end` (Unix milliseconds); return it, merged with its existing block if there is one.

        Raises ConflictError if it is blocked and `allow_merge` is false, InvalidError for a value that the service
        rejects.
        """
        body = block_body(action, cause, end, allow_merge)
        return parse_node(self._request("PUT", node_path(node_id), json=body).object())

    def block_many(self, nodes: Iterable[BlockedNode], *, allow_merge: bool = False) -> dict[str, BlockedNode]:
        """Block several nodes, all or none, in one revision each; `start` and `canary` are ignored: see block_nodes.

        Raises ConflictError with every conflict, InvalidError for a duplicate node or a value that the service rejects.
        """
        return dict(self.block_nodes(nodes, allow_merge=allow_merge).nodes)

    def watch(self, since: str | int | None = None) -> Watch:
        """An endless iterator over changes as they happen: see Watch.

        `since` is a revision or `<revision>-<history>`; without it, the first item is a Snapshot. Raises InvalidError
        for an invalid `since`.
        """
        from blocklist.client.watch import Watch

        cursor = None if since is None else str(since)
        return Watch(self.url, cursor, token=self._auth, timeout=self._timeout, on_date=self.clock.on_date)

    def close(self) -> None:
        """Close the connections. Watches stay open."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        json: Json | None = None,
        wait: int | None = None,
    ) -> ApiResponse:
        headers = {} if wait is None else {"Prefer": f"wait={wait}"}
        timeouts = httpx.Timeout(self._timeout, read=self._timeout + (wait or 0))
        try:
            with self._http.stream(
                method, self.url + path, params=params, json=json, headers=headers, timeout=timeouts
            ) as response:
                # Checked before reading the body, which may be endless if another server responds.
                is_service = "Blocklist-Revision" in response.headers
                if is_service:
                    date = response.headers.get("Date")
                    self.clock.on_date(date)
                    self.clock_offset = clock_offset(date)
                    response.read()
        except TokenFileError as error:
            # The service is not to blame: no request was sent.
            raise UnavailableError(f"{error}.") from error
        except TRANSPORT_ERRORS as error:
            raise UnavailableError(unreachable_message(self.url, error)) from error
        if not is_service or is_about_path(response):
            raise self._not_the_service(response)
        if not response.is_success:
            raise error_from(response)
        return ApiResponse(response)

    def _not_the_service(self, response: httpx.Response) -> UnavailableError:
        if response.is_success:
            return UnavailableError(
                f"The server at {self.url} is not a blocklist service: its response has no Blocklist-Revision header."
            )
        if response.status_code == HTTPStatus.NOT_FOUND:
            return UnavailableError(
                f"{self.url} is not the URL of a blocklist service: it has nothing at {response.url.path}."
                " BLOCKLIST_URL is http://host:port, without the path of a request."
            )
        return unavailable_error(response, response.reason_phrase)
