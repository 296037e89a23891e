"""BlocklistClient: the service's API for Python. Synchronous; one client may be shared by threads."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from types import TracebackType
from typing import Final, Self

import httpx

from blocklist.client.credentials import BearerAuth, resolve_auth
from blocklist.client.reads import Reads
from blocklist.client.requester import Params
from blocklist.client.response import ApiResponse, error_from, parse_node, parse_object, unavailable_error
from blocklist.client.tokens import TokenAdministration
from blocklist.client.transport import TRANSPORT_ERRORS, http_client, service_url
from blocklist.client.watch import Watch
from blocklist.client.writes import Writes, block_body, node_path
from blocklist.model.changes import Snapshot
from blocklist.model.errors import ConflictError, UnavailableError
from blocklist.model.evidence import Finding
from blocklist.model.listener import FencedError, Registration
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode, check_node_id
from blocklist.wire.evidence import findings_body
from blocklist.wire.nodes import Json

__all__ = ["DEFAULT_URL", "BlocklistClient", "Watch"]

DEFAULT_URL: Final = "http://127.0.0.1:8224"


class BlocklistClient(Reads, Writes, TokenAdministration):
    """Reads and changes the list of a blocklist service.

    `url` defaults to the environment's BLOCKLIST_URL, else to the service's default address; `token` to its
    BLOCKLIST_TOKEN, else to what the file BLOCKLIST_TOKEN_FILE holds, which is read again when the service refuses it.
    `timeout` is in seconds, for each of connecting, sending and each read. Every method raises UnavailableError when
    the service is out of reach, times out or answers what is no answer of its own: a 404 of a proxy does not say that
    a node is free; UnauthorizedError and ForbiddenError when the credentials are not good, or not good for that.
    """

    def __init__(self, url: str | None = None, *, token: str | BearerAuth | None = None, timeout: float = 5.0) -> None:
        """Raises InvalidError for a URL that is none, or a token that could be none; connects to nothing yet."""
        self.url = service_url(url or os.environ.get("BLOCKLIST_URL") or DEFAULT_URL)
        self._timeout = timeout
        self._auth = resolve_auth(token)
        self._http = http_client(self.url, timeout, token=self._auth)

    def snapshot(self, *, min_revision: int | None = None) -> Snapshot:
        """The whole list. With `min_revision` the answer is of that revision or later."""
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
        """Block a node until `end` (Unix milliseconds); returns it as blocked, or merged with its present block.

        Raises ConflictError if it is blocked and `allow_merge` is false, InvalidError for what the service refuses.
        """
        body = block_body(action, cause, end, allow_merge)
        return parse_node(self._request("PUT", node_path(node_id), json=body).object())

    def block_many(self, nodes: Iterable[BlockedNode], *, allow_merge: bool = False) -> dict[str, BlockedNode]:
        """Block several nodes, all or none, in one revision each; their `start` is not sent: it is now.

        Raises ConflictError with every conflict, InvalidError for a node given twice and what the service refuses.
        """
        return dict(self.block_nodes(nodes, allow_merge=allow_merge).nodes)

    def watch(self, since: str | int | None = None) -> Watch:
        """The list's changes as they happen, for ever: see Watch.

        `since` is a revision, or `<revision>-<history>`; without it the first is a Snapshot. Raises InvalidError for
        a `since` that is neither.
        """
        return Watch(self.url, None if since is None else str(since), token=self._auth, timeout=self._timeout)

    def register(self, registration: Registration) -> str | None:
        """Register a listener, renew its lease, or take over from another session of it.

        Returns the secret that pushes are signed with when the listener is new; it is shown this once. Raises
        FencedError for a session that was taken over, InvalidError for what the service refuses.
        """
        body = {
            "role": registration.role.value,
            "sessionId": registration.session,
            "leaseSeconds": max(1, registration.lease // 1000),
        }
        if registration.callback_url is not None:
            body["callbackUrl"] = registration.callback_url
        if registration.min_nodes:
            body["minNodes"] = registration.min_nodes
        secret = self._listener_request("PUT", registration.id, json=body).object().get("secret")
        return secret if isinstance(secret, str) else None

    def heartbeat(
        self,
        listener_id: str,
        session: str,
        *,
        acked: int | None = None,
        task_managers: Mapping[str, str] | None = None,
        running_tasks: Mapping[str, int] | None = None,
        refused: Mapping[str, str] | None = None,
        evidence: Mapping[str, Finding] | None = None,
        nodes: Collection[str] | None = None,
    ) -> int:
        """Say that the listener lives, and what has changed; returns the service's revision.

        `acked` is the revision up to which it has applied the list. Each map is the whole: TaskManager to node id,
        TaskManager to number of tasks, node id to the sentence why its block is not carried out, node id to what the
        application found out about it; `nodes` are all that it may use; None leaves what was said before. Raises
        NotFoundError if it has to register again, FencedError if another session has taken over, InvalidError for what
        the service refuses.
        """
        optional = {
            "ackedRevision": acked,
            "taskManagers": task_managers,
            "runningTasks": running_tasks,
            "refused": refused,
            "evidence": None if evidence is None else findings_body(evidence),
            "nodes": None if nodes is None else list(nodes),
        }
        body = {"sessionId": session, **{name: value for name, value in optional.items() if value is not None}}
        revision = self._listener_request("POST", listener_id, "/heartbeat", json=body).object().get("revision")
        if not isinstance(revision, int) or isinstance(revision, bool):
            raise UnavailableError("The service answered a heartbeat without a revision.")
        return revision

    def deregister(self, listener_id: str) -> None:
        """The listener is no more. Raises NotFoundError if it was not registered."""
        self._listener_request("DELETE", listener_id)

    def close(self) -> None:
        """Close the connections. Watches live on."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _listener_request(
        self, method: str, listener_id: str, action: str = "", *, json: Json | None = None
    ) -> ApiResponse:
        try:
            return self._request(method, f"/listeners/{check_node_id(listener_id)}{action}", json=json)
        except ConflictError as error:
            raise FencedError(error.detail, error.lines) from error

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
                # Looked at before the body is read: a stranger's may have no end.
                is_service = "Blocklist-Revision" in response.headers
                if is_service:
                    response.read()
        except TRANSPORT_ERRORS as error:
            raise UnavailableError(f"{self.url} is out of reach: {str(error) or type(error).__name__}") from error
        if not is_service:
            raise self._not_the_service(response)
        if not response.is_success:
            raise error_from(response)
        return ApiResponse(response)

    def _not_the_service(self, response: httpx.Response) -> UnavailableError:
        if response.is_success:
            return UnavailableError(f"{self.url} does not answer as a blocklist service does.")
        return unavailable_error(response, response.reason_phrase)
