"""Reads: what people ask the service for: the list as it was, the log, who has applied what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from blocklist.client.requester import Asks
from blocklist.client.response import as_changes, as_node, as_object, parsed
from blocklist.model.changes import Change, ChangeType
from blocklist.model.errors import CompactedError
from blocklist.model.node import BlockedNode, check_node_id
from blocklist.wire.evidence import EvidenceBody, EvidenceListBody
from blocklist.wire.listeners import ListenerBody, ListenersBody, StatusBody
from blocklist.wire.nodes import ListedNode


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """A node of the list. `created_by` made its last change, of `revision` (None where nobody knows)."""

    node: BlockedNode
    created_by: str | None
    revision: int | None
    task_managers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """The whole list with its details, sorted by id; `revision` is the present one, also of a list of the past."""

    revision: int
    nodes: tuple[Listed, ...]


class Reads(Asks):
    """The half of BlocklistClient that people ask. Errors are those of the client."""

    def listing(self, *, at: int | None = None, min_revision: int | None = None) -> Listing:
        """The list with who, since which revision and TaskManagers; or as it was `at` a moment (Unix milliseconds).

        Raises CompactedError if the log no longer reaches back so far.
        """
        given = {"at": at, "minRevision": min_revision}
        params = {"details": "true", **{name: str(value) for name, value in given.items() if value is not None}}
        answer = self._ask("GET", "/blocklist", params=params)
        nodes = tuple(_listed(node_id, body) for node_id, body in sorted(answer.object().items()))
        return Listing(revision=answer.revision, nodes=nodes)

    def history(self, node_id: str) -> list[Change]:
        """All changes of one node that the log still has, the oldest first."""
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
        """The changes that the log still has, the oldest first: of a node, an author, kinds, a time [begin, end)."""
        given = {
            "node": None if node_id is None else check_node_id(node_id),
            "createdBy": created_by,
            "from": None if begin is None else str(begin),
            "until": None if end is None else str(end),
        }
        params: dict[str, str | list[str]] = {name: value for name, value in given.items() if value is not None}
        params |= {"since": "0", "limit": "1000", "type": [kind.value for kind in types]}
        while True:
            try:
                page = self._ask("GET", "/blocklist/changes", params=params).object()
            except CompactedError as error:
                params["since"] = str(max(0, error.oldest - 1))
                continue
            yield from as_changes(page.get("changes"))
            if page.get("next") is None:
                return
            params["since"] = str(page["next"])

    def status(self, node_id: str) -> StatusBody:
        """Who has applied the node's last change. Raises NotFoundError if the log knows nothing of the node."""
        answer = self._ask("GET", f"/blocklist/nodes/{check_node_id(node_id)}/status")
        return parsed(StatusBody, answer.object())

    def listeners(self) -> list[ListenerBody]:
        """All listeners, live and lapsed, by id."""
        return parsed(ListenersBody, self._ask("GET", "/listeners").object()).listeners

    def evidence(self) -> list[EvidenceBody]:
        """What running applications say of nodes, and whether it counts."""
        return parsed(EvidenceListBody, self._ask("GET", "/evidence").object()).evidence


def _listed(node_id: str, value: object) -> Listed:
    fields = as_object(value)
    body = parsed(ListedNode, fields)
    return Listed(
        node=as_node({**fields, "id": node_id}),
        created_by=body.created_by,
        revision=body.revision or None,
        task_managers=tuple(body.task_managers),
    )
