"""BlocklistClient: the Python client of the service. Synchronous; threads may share one client.

A method imports the bodies that it alone reads: a command needs those of one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from http import HTTPStatus
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Self, TypeVar
from urllib.parse import quote

import httpx

from blocklist import __version__
from blocklist.client import DEFAULT_URL
from blocklist.client.answers import (
    ApiResponse,
    AppliedCount,
    BlockNodesResult,
    KnownNodeListing,
    Params,
    UnblockResult,
    UnblockSelectedResult,
    error_from,
    parse_body,
    parse_node,
    parse_object,
)
from blocklist.client.credentials import TokenFileError
from blocklist.client.transport import (
    TRANSPORT_ERRORS,
    BearerAuth,
    ServiceClock,
    http_client,
    read_at_most,
    resolve_auth,
    retry_after,
    service_url,
    unreachable_message,
    via_proxy,
)
from blocklist.model.claims import check_owner
from blocklist.model.errors import CompactedError, ConflictError, InvalidError, UnavailableError
from blocklist.model.listing import NodeDetails, NodeListing
from blocklist.model.node import (
    ALL_LISTENERS,
    PERMANENT,
    AppliedBy,
    BlockAction,
    BlockedNode,
    check_id,
    check_node_id,
    check_text,
)
from blocklist.wire.body import Json, Page
from blocklist.wire.nodes import ClaimsPage, DryRunBody, ListedNode, NodeClaims, RemovedClaimBody

if TYPE_CHECKING:
    from blocklist.client.watch import Watch
    from blocklist.model.changes import Change, ChangeType, Snapshot
    from blocklist.model.claims import Claim, NewToken, Role, Token
    from blocklist.model.listener import Mode, Registration, Report
    from blocklist.wire.audit import AuditKind, AuditRecord
    from blocklist.wire.listeners import (
        DriftListBody,
        EvidenceBody,
        JobsBody,
        KnownNodeBody,
        ListenerBody,
        ModeRecordBody,
        NodeStatusBody,
    )
    from blocklist.wire.nodes import OwnedClaim
    from blocklist.wire.tokens import IdentityBody, IssuerBody

_NODES_PATH = "/blocklist/nodes"
_MAX_BODY: Final = 256 << 20
"""In bytes, after decompression. A list of 100,000 nodes with details takes 40 MB."""
_MAX_PAGE: Final = 1000
P = TypeVar("P", bound=Page)


class HeartbeatResult(NamedTuple):
    """The service's revision, the fields that it has of the report (None: not told), and the mode that it wants."""

    revision: int
    reported: frozenset[str] | None
    mode: str = "apply"


class BlocklistClient:
    """Reads and changes the list of a blocklist service.

    `url` defaults to BLOCKLIST_URL, then to http://127.0.0.1:8224. `token` defaults to BLOCKLIST_TOKEN, then to the
    content of the file BLOCKLIST_TOKEN_FILE, which is read again when the service rejects the token. `timeout` is in
    seconds, for connecting, sending and each read. Every method raises UnavailableError if the service is unreachable,
    times out, or if the response is not from a blocklist service (a 404 of a proxy does not mean that a node is not
    blocked), UnauthorizedError for missing or invalid credentials, and ForbiddenError if their role is insufficient.
    """

    product: ClassVar[str] = "blocklist-client"
    """What its User-Agent names."""

    def __init__(self, url: str | None = None, *, token: str | BearerAuth | None = None, timeout: float = 5.0) -> None:
        """Does not connect yet. Raises InvalidError for an invalid URL or a malformed token."""
        self.url = service_url(url or os.environ.get("BLOCKLIST_URL") or DEFAULT_URL)
        self._timeout = timeout
        self._auth = resolve_auth(token)
        self._http = http_client(self.url, timeout, token=self._auth)
        self._http.headers["User-Agent"] = f"{self.product}/{__version__}"
        self.clock = ServiceClock()
        """The service's clock, from the last response, and from the start of the last watch."""

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

    def listing(
        self, *, at: int | None = None, min_revision: int | None = None, selector: str | None = None
    ) -> NodeListing:
        """The list with authors, revisions and TaskManagers: now, or as it was `at` a time (Unix milliseconds).

        `selector` leaves only nodes with these labels, in kubectl's syntax. Raises CompactedError if the change log
        does not reach back that far, InvalidError for an invalid selector.
        """
        optional = {"at": at, "minRevision": min_revision, "selector": selector}
        params = {"details": "true", **{name: str(value) for name, value in optional.items() if value is not None}}
        response = self._request("GET", "/blocklist", params=params)
        nodes = tuple(_node_details(node_id, body) for node_id, body in sorted(response.object().items()))
        return NodeListing(revision=response.revision, nodes=nodes, warnings=response.warnings)

    def history(self, node_id: str) -> list[Change]:
        """All changes of one node in the change log, the oldest first."""
        return list(self.changes(node_id=node_id))

    def changes(
        self,
        *,
        node_id: str | None = None,
        created_by: str | None = None,
        types: Iterable[ChangeType] = (),
        begin: int | None = None,
        end: int | None = None,
        last: int | None = None,
    ) -> Iterator[Change]:
        """The changes in the log, the oldest first; filtered by node, author, types, and time in [begin, end).

        With `last` only the last ones of these, up to that number.
        """
        from blocklist.wire.changes import ChangesPage

        optional = {
            "node": None if node_id is None else check_node_id(node_id),
            "createdBy": created_by,
            "from": None if begin is None else str(begin),
            "until": None if end is None else str(end),
        }
        params: dict[str, str | list[str]] = {name: value for name, value in optional.items() if value is not None}
        params |= {"type": [kind.value for kind in types]}
        if last is not None:
            limit = str(min(last, _MAX_PAGE))
            pages = self._pages("/blocklist/changes", ChangesPage, params | {"newest": "true", "limit": limit})
            latest = islice((change for page, _ in pages for change in page.changes), last)
            yield from reversed([change.value() for change in latest])
            return
        since = 0
        while True:
            try:
                for page, _ in self._pages("/blocklist/changes", ChangesPage, params | {"since": str(since)}):
                    for change in page.changes:
                        yield change.value()
                        since = change.revision
            except CompactedError as error:
                since = max(since, error.oldest - 1)
            else:
                return

    def status(self, node_id: str) -> NodeStatusBody:
        """Which listeners have applied the node's last change. Raises NotFoundError if the log has no change of it."""
        from blocklist.wire.listeners import NodeStatusBody

        response = self._request("GET", f"{node_path(node_id)}/status")
        return parse_body(NodeStatusBody, response.object())

    def claims(self, node_id: str) -> list[Claim]:
        """The claims that keep a node blocked, in the order in which they were made.

        Raises NotFoundError if it is not blocked.
        """
        return self.claims_with_etag(node_id)[0]

    def claims_with_etag(self, node_id: str) -> tuple[list[Claim], str]:
        """As claims, with the ETag of them: a change with it as `if_match` is refused if they have changed."""
        response = self._request("GET", f"{node_path(node_id)}/claims")
        body = parse_body(NodeClaims, response.object())
        return [claim.value(body.id) for claim in body.claims], response.etag

    def known_node(self, node_id: str) -> KnownNodeBody:
        """What anybody reports about a node, blocked or not, under any of its names and addresses.

        Raises NotFoundError if nobody reports it, AmbiguousNodeError if several nodes have the name.
        """
        from blocklist.wire.listeners import KnownNodeBody

        return parse_body(KnownNodeBody, self._request("GET", f"/nodes/{check_node_id(node_id)}").object())

    def known_nodes(self, *, selector: str | None = None) -> KnownNodeListing:
        """All nodes that anybody reports, blocked or not, in order of their ids; with `selector` those that it selects.

        Raises InvalidError for an invalid selector.
        """
        from blocklist.wire.listeners import KnownNodesPage

        params = {} if selector is None else {"selector": selector}
        nodes: list[KnownNodeBody] = []
        warnings: tuple[str, ...] = ()
        for page, response in self._pages("/nodes", KnownNodesPage, params):
            nodes += page.nodes
            warnings = response.warnings
        return KnownNodeListing(nodes=tuple(nodes), warnings=warnings)

    def known_nodes_after(self, node_id: str | None = None, *, limit: int = 1000) -> list[KnownNodeBody]:
        """Up to `limit` (1 to 1,000) of these nodes, behind this id; None: the first ones."""
        from blocklist.wire.listeners import KnownNodesPage

        params = {"limit": str(limit)} | ({} if node_id is None else {"after": check_node_id(node_id)})
        return parse_body(KnownNodesPage, self._request("GET", "/nodes", params=params).object()).nodes

    def all_claims(self, *, owner: str | None = None) -> list[OwnedClaim]:
        """The claims on all nodes, by node id; with `owner` only those of it (a final `*` stands for any end)."""
        pages = self._pages("/claims", ClaimsPage, {} if owner is None else {"owner": owner})
        return [claim for page, _ in pages for claim in page.claims]

    def _pages(self, path: str, body_type: type[P], params: Params) -> Iterator[tuple[P, ApiResponse]]:
        """All pages of a list, of 1,000 entries unless `params` have a `limit`."""
        asked = {"limit": str(_MAX_PAGE), **params}
        while True:
            response = self._request("GET", path, params=asked)
            page = parse_body(body_type, response.object())
            yield page, response
            if page.next is None:
                return
            asked["after"] = page.next

    def listeners(self) -> list[ListenerBody]:
        """All listeners, live and lapsed, sorted by id."""
        from blocklist.wire.listeners import ListenersBody

        return parse_body(ListenersBody, self._request("GET", "/listeners").object()).listeners

    def jobs(self) -> JobsBody:
        """The jobs that run, those without an agent first, and who reports them."""
        from blocklist.wire.listeners import JobsBody

        return parse_body(JobsBody, self._request("GET", "/jobs").object())

    def evidence(self) -> list[EvidenceBody]:
        """The evidence that running applications report, and whether it counts."""
        from blocklist.wire.listeners import EvidenceListBody

        return parse_body(EvidenceListBody, self._request("GET", "/evidence").object()).evidence

    def modes(self) -> list[ModeRecordBody]:
        """The modes that are set for listeners, by pattern."""
        return self._modes("GET")

    def set_mode(self, pattern: str, mode: Mode) -> list[ModeRecordBody]:
        """Set the mode of the listeners whose ids match; all modes then. Raises ForbiddenError."""
        return self._modes("PUT", json={"pattern": pattern, "mode": mode.value})

    def remove_mode(self, pattern: str) -> list[ModeRecordBody]:
        """The opposite; all modes then. Raises NotFoundError."""
        return self._modes("DELETE", params={"pattern": pattern})

    def _modes(self, method: str, **request: Any) -> list[ModeRecordBody]:
        from blocklist.wire.listeners import ModesBody

        return parse_body(ModesBody, self._request(method, "/listeners/modes", **request).object()).modes

    def drift(self) -> DriftListBody:
        """Where listeners report something else than the list says, and since when."""
        from blocklist.wire.listeners import DriftListBody

        return parse_body(DriftListBody, self._request("GET", "/drift").object())

    def block_nodes(
        self,
        nodes: Iterable[BlockedNode],
        *,
        allow_merge: bool = False,
        replace_own: bool = False,
        force: str | None = None,
        strict: bool = False,
        wait: int | None = None,
        applied_by: AppliedBy = ALL_LISTENERS,
    ) -> BlockNodesResult:
        """Block several nodes, all or none, in one revision each.

        Their `start` and `canary` are ignored: blocks start now, and only put_claim leaves a canary.

        With `replace_own` the caller's own claims become these blocks, which may be shorter or weaker; those of others
        stay. `force` is the reason for bypassing limits, which requires the role admin. `wait` is the maximum number of
        seconds (at most 60) to wait until the live listeners, or those of `applied_by`, have applied the change. Raises
        ConflictError with every conflict, LimitError, and InvalidError for a duplicate node or a value that the service
        rejects; if `strict`, UnknownNodeError for a node that is not known.
        """
        params = _block_params(force, strict=strict, replace_own=replace_own)
        body = _block_bodies(nodes, allow_merge)
        answer = self._request("PUT", _NODES_PATH, params=params, json=body, wait=wait, applied_by=applied_by)
        result = _block_result(answer)
        if missing := body.keys() - result.nodes.keys():
            raise UnavailableError(f"The service's response does not have node {min(missing)}.", passed_on=True)
        return result

    def block_selected(
        self,
        selector: str,
        block: BlockedNode,
        *,
        allow_merge: bool = False,
        force: str | None = None,
        strict: bool = False,
        wait: int | None = None,
    ) -> BlockNodesResult:
        """Block all nodes that a selector in kubectl's syntax selects in the service, as `block` says, but for its id.

        The other parameters are as in block_nodes; if `strict`, every label in the selector must exist. Raises
        NotFoundError if no node is selected, InvalidError for an invalid selector, and the errors of block_nodes.
        """
        params = {"selector": selector} | _block_params(force, strict=strict)
        body = block_body(block.action, block.cause, block.end, allow_merge)
        return _block_result(self._request("PUT", _NODES_PATH, params=params, json=body, wait=wait))

    def unblock_selected(self, selector: str, *, wait: int | None = None) -> UnblockSelectedResult:
        """Unblock those of the selected nodes that are blocked, all or none; `wait` is as in block_nodes.

        Raises NotFoundError if no node is selected, or none of them is blocked, InvalidError for an invalid selector.
        """
        response = self._request("DELETE", _NODES_PATH, params={"selector": selector}, wait=wait)
        names = {node_id: parse_object(body).get("id") for node_id, body in response.object().items()}
        return UnblockSelectedResult(
            unblocked={node_id: str(name) for node_id, name in names.items() if name is not None},
            not_blocked=frozenset(node_id for node_id, name in names.items() if name is None),
            applied=response.applied,
            warnings=response.warnings,
        )

    def unblock(self, node_id: str, *, wait: int | None = None) -> AppliedCount | None:
        """Unblock a node before its end; with `wait`, see block_nodes, return how many listeners have applied it.

        Raises NotFoundError if it is not blocked.
        """
        return self.unblock_node(node_id, wait=wait).applied

    def unblock_node(
        self,
        node_id: str,
        *,
        only_own: bool = False,
        if_match: str | None = None,
        wait: int | None = None,
        applied_by: AppliedBy = ALL_LISTENERS,
    ) -> UnblockResult:
        """As unblock, and return the name under which the node was blocked: `node_id`, if a proxy has removed it.

        With `only_own` only the caller's claim is removed. Raises NotFoundError if the caller has none, and with
        `if_match` PreconditionFailedError if the claims are not those of this ETag.
        """
        response = self._request(
            "DELETE",
            node_path(node_id),
            params=_own_params(only_own),
            if_match=if_match,
            wait=wait,
            applied_by=applied_by,
        )
        if not only_own:
            return UnblockResult(id=response.node_id or node_id, applied=response.applied)
        body = parse_body(RemovedClaimBody, response.object())
        return UnblockResult(id=body.node.id, applied=response.applied, blocked=body.blocked)

    def put_claim(
        self,
        node_id: str,
        owner: str,
        cause: str,
        *,
        action: BlockAction = BlockAction.MARK_BLOCKED,
        end: int = PERMANENT,
        canary: bool = False,
        last_evidence: int | None = None,
        force: str | None = None,
        wait: int | None = None,
    ) -> BlockedNode:
        """Create or replace the claim of an owner on a node; return the node as all claims together have it.

        `end` is in Unix milliseconds, as is `last_evidence`: when what the claim rests on was last observed. A `canary`
        leaves one executor of each Spark application on the node. `force` and `wait` are as in block_nodes. Raises
        LimitError, DismissedError if the owner was dismissed on the node since the last evidence, and InvalidError for
        what is not an owner and for a canary that evacuates.
        """
        body: Json = {"action": action.name, "cause": cause, "endTimestamp": str(end)}
        if canary:
            body["canary"] = True
        if last_evidence is not None:
            body["lastEvidenceTimestamp"] = str(last_evidence)
        params = _block_params(force, strict=False)
        response = self._request("PUT", _claim_path(node_id, owner), params=params, json=body, wait=wait)
        return parse_node(response.object().get("node"))

    def remove_claim(self, node_id: str, owner: str, *, wait: int | None = None) -> BlockedNode | None:
        """Remove the claim of an owner; return the node as the other claims have it, None if it is unblocked.

        Raises NotFoundError if the owner has no claim on it.
        """
        body = parse_body(RemovedClaimBody, self._request("DELETE", _claim_path(node_id, owner), wait=wait).object())
        return body.node.value() if body.blocked else None

    def dry_run_block(
        self,
        nodes: Iterable[BlockedNode],
        *,
        allow_merge: bool = False,
        replace_own: bool = False,
        force: str | None = None,
        strict: bool = False,
    ) -> DryRunBody:
        """The effect that block_nodes would have. Raises the same errors, but `refused` names a limit."""
        params = {"dryRun": "true"} | _block_params(force, strict=strict, replace_own=replace_own)
        response = self._request("PUT", _NODES_PATH, params=params, json=_block_bodies(nodes, allow_merge))
        return _dry_run(response)

    def dry_run_block_selected(
        self,
        selector: str,
        block: BlockedNode,
        *,
        allow_merge: bool = False,
        force: str | None = None,
        strict: bool = False,
    ) -> DryRunBody:
        """The effect that block_selected would have. Raises the same errors, but `refused` names a limit."""
        params = {"dryRun": "true", "selector": selector} | _block_params(force, strict=strict)
        body = block_body(block.action, block.cause, block.end, allow_merge)
        return _dry_run(self._request("PUT", _NODES_PATH, params=params, json=body))

    def dry_run_unblock(self, node_id: str, *, only_own: bool = False) -> DryRunBody:
        """The effect that unblock_node would have. Raises NotFoundError as it does."""
        params = {"dryRun": "true"} | _own_params(only_own)
        return _dry_run(self._request("DELETE", node_path(node_id), params=params))

    def register(self, registration: Registration) -> str | None:
        """Register a listener, renew its lease, or take over from another session.

        Returns the secret that signs pushes if the listener is new; the service shows it only once. Raises FencedError
        for a session that was taken over, InvalidError for a value that the service rejects.
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
        if registration.cluster is not None:
            body["cluster"] = registration.cluster
        if registration.mode.value != "apply":
            body["mode"] = registration.mode.value
        body |= {name: text for name, text in registration.software._asdict().items() if text is not None}
        secret = self._listener_request("PUT", registration.id, json=body).object().get("secret")
        return secret if isinstance(secret, str) else None

    def heartbeat(
        self,
        listener_id: str,
        session: str,
        *,
        acked: int | None = None,
        history: str | None = None,
        report: Report | None = None,
    ) -> int:
        """`send_heartbeat`, for the revision of the service alone."""
        return self.send_heartbeat(listener_id, session, acked=acked, history=history, report=report).revision

    def send_heartbeat(
        self,
        listener_id: str,
        session: str,
        *,
        acked: int | None = None,
        history: str | None = None,
        report: Report | None = None,
    ) -> HeartbeatResult:
        """Renew the lease of a listener, acknowledge a revision and report its state.

        `acked` is the revision up to which it has applied the list of `history`. Raises NotFoundError if it must
        register again, FencedError if another session has taken over, InvalidError for a value that the service
        rejects.
        """
        from blocklist.wire.listeners import REPORT_FIELDS, report_fields

        body = {"sessionId": session, **({} if report is None else report_fields(report))}
        if acked is not None:
            body["ackedRevision"] = acked
            if history is not None:
                body["history"] = history
        response = self._listener_request("POST", listener_id, "/heartbeat", json=body).object()
        revision, reported = response.get("revision"), response.get("reported")
        if not isinstance(revision, int) or isinstance(revision, bool):
            raise UnavailableError("The service responded to a heartbeat without a revision.")
        names = {api_name: name for name, api_name in REPORT_FIELDS.items()}
        held = frozenset(names[it] for it in reported if it in names) if isinstance(reported, list) else None
        return HeartbeatResult(revision, held, str(response.get("mode", "apply")))

    def deregister(self, listener_id: str, session: str | None = None) -> None:
        """Remove a listener; with `session` only if this is its session.

        Raises NotFoundError if it is not registered, FencedError if another session has taken over.
        """
        query = "" if session is None else f"?sessionId={check_id(session)}"
        self._listener_request("DELETE", listener_id, query)

    def _listener_request(
        self, method: str, listener_id: str, action: str = "", *, json: Json | None = None
    ) -> ApiResponse:
        try:
            return self._request(method, f"/listeners/{check_id(listener_id)}{action}", json=json)
        except ConflictError as error:
            # Another server's 409: no listener must stop for good because of it.
            raise UnavailableError(f"HTTP 409 that does not come from the service: {error.detail}") from error

    def whoami(self) -> tuple[str | None, Role]:
        """The name of the credentials, which is the author of their changes (None without a name), and their role."""
        from blocklist.model.claims import Role

        identity = self.identity()
        return identity.name, Role(identity.role)

    def identity(self) -> IdentityBody:
        """As whoami, with what the service recommends to its clients."""
        from blocklist.wire.tokens import IdentityBody

        return parse_body(IdentityBody, self._request("GET", "/whoami").object())

    def issuers(self) -> list[IssuerBody]:
        """Where people log in with the command."""
        from blocklist.wire.tokens import IssuersBody

        return parse_body(IssuersBody, self._request("GET", "/issuers").object()).issuers

    def create_token(
        self,
        name: str,
        role: Role,
        *,
        end: int = PERMANENT,
        owners: Sequence[str] | None = None,
        listeners: Sequence[str] | None = None,
    ) -> NewToken:
        """Create a token that is valid until `end` (Unix milliseconds); its text is returned only here.

        `owners` are the owners whose claims a token of an operator may change, `listeners` the ids under which one of a
        listener or manager may register, with a final `*` those that begin so; None for all. Raises InvalidError for a
        name without the form of a node id, an end that is not in the future, or what is not an owner or an id.
        """
        from blocklist.model.claims import check_token_name
        from blocklist.wire.tokens import CreatedTokenBody

        body: dict[str, object] = {"name": check_token_name(name), "role": role.value, "endTimestamp": str(end)}
        if owners is not None:
            body["owners"] = list(owners)
        if listeners is not None:
            body["listeners"] = list(listeners)
        return parse_body(CreatedTokenBody, self._request("POST", "/tokens", json=body).object()).value()

    def tokens(self) -> list[Token]:
        """All tokens, including revoked and expired ones, the oldest first."""
        from blocklist.wire.tokens import TokensBody

        return [token.value() for token in parse_body(TokensBody, self._request("GET", "/tokens").object()).tokens]

    def revoke_token(self, token_id: str) -> None:
        """Revoke a token at once. Raises NotFoundError, and ConflictError for the last token of an admin."""
        self._request("DELETE", f"/tokens/{check_id(token_id)}")

    def audit(
        self,
        *,
        kinds: Iterable[AuditKind] = (),
        principal: str | None = None,
        begin: int | None = None,
        end: int | None = None,
        after: int | None = None,
        last: int | None = None,
    ) -> Iterator[AuditRecord]:
        """The records of the audit log in order; filtered by kinds, principal, and time in [begin, end).

        With `after` only those after the record with this id; with `last` only the last ones, up to that number, and
        `after` has no effect.
        """
        from blocklist.wire.audit import AuditPage

        optional = {"principal": principal, "from": begin, "until": end, "after": after}
        params: dict[str, str | list[str]] = {name: str(it) for name, it in optional.items() if it is not None}
        params |= {"kind": [kind.value for kind in kinds]}
        if last is None:
            yield from (record for page, _ in self._pages("/audit", AuditPage, params) for record in page.records)
            return
        params.pop("after", None)
        pages = self._pages("/audit", AuditPage, params | {"newest": "true", "limit": str(min(last, _MAX_PAGE))})
        yield from reversed(list(islice((record for page, _ in pages for record in page.records), last)))

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
        applied_by: AppliedBy = ALL_LISTENERS,
        if_match: str | None = None,
    ) -> ApiResponse:
        others = "" if applied_by == ALL_LISTENERS else f", applied-by={applied_by}"
        headers = {} if wait is None else {"Prefer": f"wait={wait}{others}"}
        headers |= {} if not if_match else {"If-Match": if_match}
        timeouts = httpx.Timeout(self._timeout, read=self._timeout + (wait or 0))
        try:
            with self._http.stream(
                method, self.url + path, params=params, json=json, headers=headers, timeout=timeouts
            ) as response:
                # Checked before reading the body, which may be endless if another server responds.
                is_service = "Blocklist-Revision" in response.headers or _is_refused_by_service(response)
                if is_service:
                    self.clock.on_date(response.headers.get("Date"))
                    answer = ApiResponse(response, _read_body(response))
        except TokenFileError as error:
            # The service is not to blame: no request was sent.
            raise UnavailableError(f"{error}.") from error
        except TRANSPORT_ERRORS as error:
            raise UnavailableError(unreachable_message(self.url, error)) from error
        if not is_service or answer.is_not_found_elsewhere:
            raise self._not_the_service(response)
        if not response.is_success:
            raise error_from(answer)
        return answer

    def _not_the_service(self, response: httpx.Response) -> UnavailableError:
        """The error of a response that a proxy, a log-in page or another server has sent in place of the service."""
        code = response.status_code
        status = f"HTTP {code} {response.reason_phrase}".strip()
        via = via_proxy(self.url)
        if response.is_success:
            return UnavailableError(
                f"The server at {self.url} is not a blocklist service: its response has no Blocklist-Revision header."
                f" It may be a log-in page or another server: check the URL.{via}",
                passed_on=True,
            )
        if response.is_redirect:
            return UnavailableError(
                f"{status}: the server at {self.url} redirects to {response.headers.get('Location', '')[:200]}. A"
                f" blocklist service does not: that is a log-in page, or the service has another URL.{via}"
            )
        if code == HTTPStatus.NOT_FOUND:
            return UnavailableError(
                f"{self.url} is not the URL of a blocklist service: it has nothing at {response.url.path}."
                f" BLOCKLIST_URL is http://host:port, without the path of a request.{via}"
            )
        if code == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
            scheme = response.url.scheme.upper()
            return UnavailableError(
                f"{status}: the proxy wants a password. Give {scheme}_PROXY as http://user:password@host:port, or name"
                " the service in NO_PROXY."
            )
        detail = f"{status}, from a server in front of the service.{via}"
        return UnavailableError(detail, retry_after(response), passed_on=response.is_server_error)


def _is_refused_by_service(response: httpx.Response) -> bool:
    """Whether the service has refused a request that reached no route, as with too many connections."""
    is_problem = response.headers.get("Content-Type") == "application/problem+json"
    return not response.is_success and is_problem and "Blocklist-Version" in response.headers


def _node_details(node_id: str, value: object) -> NodeDetails:
    try:
        return ListedNode.parse(value).value(node_id)
    except InvalidError as error:
        raise UnavailableError(f"The service sent an invalid node: {error}") from error


def _read_body(response: httpx.Response) -> bytes:
    """The whole body. Raises httpx.ReadError if it is longer than any list."""
    body = read_at_most(response, _MAX_BODY)
    if body is None:
        raise httpx.ReadError(f"the response is longer than {_MAX_BODY >> 20} MiB")
    return body


def node_path(node_id: str) -> str:
    """The path of a node. Raises InvalidError for an invalid id."""
    return f"{_NODES_PATH}/{check_node_id(node_id)}"


def _claim_path(node_id: str, owner: str) -> str:
    """The path of a claim. Raises InvalidError for an invalid id or owner."""
    return f"{node_path(node_id)}/claims/{quote(check_owner(owner), safe='')}"


def block_body(action: BlockAction, cause: str, end: int, allow_merge: bool) -> Json:
    """The body of a request to block a node."""
    return {"action": action.name, "cause": check_text(cause), "endTimestamp": str(end), "allowMerge": allow_merge}


def _own_params(only_own: bool) -> dict[str, str]:
    return {"owner": "me"} if only_own else {}


def _block_params(force: str | None, *, strict: bool, replace_own: bool = False) -> dict[str, str]:
    flags = {"strict": strict, "replace": replace_own}
    return ({} if force is None else {"force": force}) | {name: "true" for name, given in flags.items() if given}


def _dry_run(response: ApiResponse) -> DryRunBody:
    return parse_body(DryRunBody, response.object())


def _block_result(response: ApiResponse) -> BlockNodesResult:
    bodies = {node_id: parse_object(body) for node_id, body in response.object().items()}
    unknown = {node_id: body for node_id, body in bodies.items() if body.get("known") is False}
    return BlockNodesResult(
        nodes={node_id: parse_node(body) for node_id, body in bodies.items()},
        merged=frozenset(node_id for node_id, body in bodies.items() if body.get("status") == 202),
        applied=response.applied,
        unknown={node_id: body.get("didYouMean") for node_id, body in unknown.items() if not body.get("ambiguous")},
        ambiguous={node_id: body["ambiguous"] for node_id, body in unknown.items() if body.get("ambiguous")},
        several={node_id: body["means"] for node_id, body in bodies.items() if body.get("means")},
        warnings=response.warnings,
    )


def _block_bodies(nodes: Iterable[BlockedNode], allow_merge: bool) -> Json:
    body: Json = {}
    for node in nodes:
        node_id = check_node_id(node.id)
        if node_id in body:
            raise InvalidError(f"Node {node_id} is given more than once.")
        body[node_id] = block_body(node.action, node.cause, node.end, allow_merge)
    return body
