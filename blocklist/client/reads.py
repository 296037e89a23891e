"""Reads: the list with details, the change log, and the state of listeners and evidence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from blocklist.client.response import Requester, parse_body, parse_changes, parse_node, parse_object
from blocklist.model.changes import Change, ChangeType
from blocklist.model.errors import CompactedError
from blocklist.model.node import BlockedNode, check_node_id
from blocklist.wire.evidence import EvidenceBody, EvidenceListBody
from blocklist.wire.listeners import ListenerBody, ListenersBody
from blocklist.wire.node_status import NodeStatusBody
from blocklist.wire.nodes import ListedNode


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeDetails:
    """A node of the list. `created_by` and `revision` are those of its last change, None if unknown."""

    node: BlockedNode
    created_by: str | None
    revision: int | None
    task_managers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeListing:
    """The whole list with details, sorted by id. `revision` is the current one, even for a list of the past."""

    revision: int
    nodes: tuple[NodeDetails, ...]


class Reads(Requester):
    """The part of BlocklistClient that reads. All methods also raise the errors of BlocklistClient."""

    def listing(self, *, at: int | None = None, min_revision: int | None = None) -> NodeListing:
        """The list with authors, revisions and TaskManagers: now, or as it was `at` a time (Unix milliseconds).

        Raises CompactedError if the change log does not reach back that far.
        """
        optional = {"at": at, "minRevision": min_revision}
        params = {"details": "true", **{name: str(value) for name, value in optional.items() if value is not None}}
        response = self._request("GET", "/blocklist", params=params)
        nodes = tuple(_node_details(node_id, body) for node_id, body in sorted(response.object().items()))
        return NodeListing(revision=response.revision, nodes=nodes)

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
            yield from parse_changes(page.get("changes"))
            if page.get("next") is None:
                return
            params["since"] = str(page["next"])

    def status(self, node_id: str) -> NodeStatusBody:
        """Which listeners have applied the node's last change. Raises NotFoundError if the log has no change of it."""
        response = self._request("GET", f"/blocklist/nodes/{check_node_id(node_id)}/status")
        return parse_body(NodeStatusBody, response.object())

    def listeners(self) -> list[ListenerBody]:
        """All listeners, live and lapsed, sorted by id."""
        return parse_body(ListenersBody, self._request("GET", "/listeners").object()).listeners

    def evidence(self) -> list[EvidenceBody]:
        """The evidence that running applications report, and whether it counts."""
        return parse_body(EvidenceListBody, self._request("GET", "/evidence").object()).evidence


def _node_details(node_id: str, value: object) -> NodeDetails:
    fields = parse_object(value)
    body = parse_body(ListedNode, fields)
    return NodeDetails(
        node=parse_node({**fields, "id": node_id}),
        created_by=body.created_by,
        revision=body.revision or None,
        task_managers=tuple(body.task_managers),
    )
