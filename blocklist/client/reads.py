"""Reads: the list with details, the change log, and the state of listeners and evidence.

Each method imports the bodies that it reads: a command needs those of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from blocklist.client.response import Requester, parse_body
from blocklist.model.errors import CompactedError, InvalidError, UnavailableError
from blocklist.model.listing import NodeDetails, NodeListing
from blocklist.model.node import check_node_id
from blocklist.wire.nodes import ListedNode

if TYPE_CHECKING:
    from blocklist.client.results import KnownNodeListing
    from blocklist.model.changes import Change, ChangeType
    from blocklist.model.claims import Claim
    from blocklist.wire.claims import OwnedClaim
    from blocklist.wire.drift import DriftListBody
    from blocklist.wire.evidence import EvidenceBody
    from blocklist.wire.inventory import KnownNodeBody
    from blocklist.wire.listeners import ListenerBody
    from blocklist.wire.node_status import NodeStatusBody


class Reads(Requester):
    """The part of BlocklistClient that reads. All methods also raise the errors of BlocklistClient."""

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
    ) -> Iterator[Change]:
        """The changes in the log, the oldest first; filtered by node, author, types, and time in [begin, end)."""
        optional = {
            "node": None if node_id is None else check_node_id(node_id),
            "createdBy": created_by,
            "from": None if begin is None else str(begin),
            "until": None if end is None else str(end),
        }
        params: dict[str, str | list[str]] = {name: value for name, value in optional.items() if value is not None}
        params |= {"since": "0", "limit": "1000", "type": [kind.value for kind in types]}
        while True:
            try:
                page = self._request("GET", "/blocklist/changes", params=params).object()
            except CompactedError as error:
                params["since"] = str(max(0, error.oldest - 1))
                continue
            yield from _changes(page.get("changes"))
            if page.get("next") is None:
                return
            params["since"] = str(page["next"])

    def status(self, node_id: str) -> NodeStatusBody:
        """Which listeners have applied the node's last change. Raises NotFoundError if the log has no change of it."""
        from blocklist.wire.node_status import NodeStatusBody

        response = self._request("GET", f"/blocklist/nodes/{check_node_id(node_id)}/status")
        return parse_body(NodeStatusBody, response.object())

    def claims(self, node_id: str) -> list[Claim]:
        """The claims that keep a node blocked, in the order in which they were made.

        Raises NotFoundError if it is not blocked.
        """
        from blocklist.wire.claims import NodeClaims

        response = self._request("GET", f"/blocklist/nodes/{check_node_id(node_id)}/claims")
        body = parse_body(NodeClaims, response.object())
        return [claim.value(body.id) for claim in body.claims]

    def known_node(self, node_id: str) -> KnownNodeBody:
        """What anybody reports about a node, blocked or not, under any of its names and addresses.

        Raises NotFoundError if nobody reports it, AmbiguousNodeError if several nodes have the name.
        """
        from blocklist.wire.inventory import KnownNodeBody

        return parse_body(KnownNodeBody, self._request("GET", f"/nodes/{check_node_id(node_id)}").object())

    def known_nodes(self, *, selector: str | None = None) -> KnownNodeListing:
        """All nodes that anybody reports, blocked or not, in order of their ids; with `selector` those that it selects.

        Raises InvalidError for an invalid selector.
        """
        from blocklist.client.results import KnownNodeListing
        from blocklist.wire.inventory import KnownNodesPage

        params = {"limit": "1000"} | ({} if selector is None else {"selector": selector})
        nodes: list[KnownNodeBody] = []
        while True:
            response = self._request("GET", "/nodes", params=params)
            page = parse_body(KnownNodesPage, response.object())
            nodes += page.nodes
            if page.next is None:
                return KnownNodeListing(nodes=tuple(nodes), warnings=response.warnings)
            params["after"] = page.next

    def known_nodes_after(self, node_id: str | None = None, *, limit: int = 1000) -> list[KnownNodeBody]:
        """Up to `limit` (1 to 1,000) of these nodes, behind this id; None: the first ones."""
        from blocklist.wire.inventory import KnownNodesPage

        params = {"limit": str(limit)} | ({} if node_id is None else {"after": check_node_id(node_id)})
        return parse_body(KnownNodesPage, self._request("GET", "/nodes", params=params).object()).nodes

    def all_claims(self, *, owner: str | None = None) -> list[OwnedClaim]:
        """The claims on all nodes, by node id; with `owner` only those of it (a final `*` stands for any end)."""
        from blocklist.wire.claims import ClaimsPage

        params = {"limit": "1000"} | ({} if owner is None else {"owner": owner})
        found: list[OwnedClaim] = []
        while True:
            page = parse_body(ClaimsPage, self._request("GET", "/claims", params=params).object())
            found += page.claims
            if page.next is None:
                return found
            params["after"] = page.next

    def listeners(self) -> list[ListenerBody]:
        """All listeners, live and lapsed, sorted by id."""
        from blocklist.wire.listeners import ListenersBody

        return parse_body(ListenersBody, self._request("GET", "/listeners").object()).listeners

    def evidence(self) -> list[EvidenceBody]:
        """The evidence that running applications report, and whether it counts."""
        from blocklist.wire.evidence import EvidenceListBody

        return parse_body(EvidenceListBody, self._request("GET", "/evidence").object()).evidence

    def drift(self) -> DriftListBody:
        """Where listeners report something else than the list says, and since when."""
        from blocklist.wire.drift import DriftListBody

        return parse_body(DriftListBody, self._request("GET", "/drift").object())


def _node_details(node_id: str, value: object) -> NodeDetails:
    try:
        return ListedNode.parse(value).value(node_id)
    except InvalidError as error:
        raise UnavailableError(f"The service sent an invalid node: {error}") from error


def _changes(value: object) -> list[Change]:
    """Parse a list of changes. Raises UnavailableError if it is invalid."""
    from blocklist.wire.changes import ChangeBody

    if not isinstance(value, list):
        raise UnavailableError("The service sent changes that are not a list.")
    try:
        return [ChangeBody.parse(change).value() for change in value]
    except InvalidError as error:
        raise UnavailableError(f"The service sent an invalid change: {error}") from error
