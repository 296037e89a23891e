"""NodePatcher: patches one node until it is as wanted, while others write the same node."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from blocklist.managers.kubernetes.api_server import ApiError, ApiServer
from blocklist.managers.kubernetes.kubernetes_node import Json, KubernetesNode
from blocklist.managers.kubernetes.node_cache import NODES, read_node
from blocklist.managers.kubernetes.plan import NodeChange, reason_of
from blocklist.managers.kubernetes.taint_patch import Assessment, Condition, OwnTaint, assess, is_tainted
from blocklist.managers.plan import ManagerError

ATTEMPTS: Final = 10
"""Of one patch, while others write the same node."""
_CHANGED_MEANWHILE: Final = frozenset({HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY})


class NodePatcher:
    """`on_read` receives each node as the API server answers it; `is_active` is whether this process may act.

    `restores` is whether a taint that somebody removes meanwhile is put back.
    """

    def __init__(
        self,
        api: ApiServer,
        taint: OwnTaint,
        on_read: Callable[[KubernetesNode], None],
        is_active: Callable[[], bool],
        *,
        restores: bool,
    ) -> None:
        self._api = api
        self._restores = restores
        self._taint = taint
        self._on_read = on_read
        self._is_active = is_active

    def change(self, change: NodeChange, *, was_tainted: bool) -> KubernetesNode | str:
        """The node as the API server has stored it, as wanted; or why it is not. Raises ManagerError."""
        try:
            return self._change(change, was_tainted)
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return f"Kubernetes has no node {change.node.name}."
            raise

    def _change(self, change: NodeChange, was_tainted: bool) -> KubernetesNode | str:
        node, found = change.node, change.assessment
        for attempt in range(ATTEMPTS):
            if (after := self._patch(node.name, found)) is not None and self._is_as_wanted(after, change):
                return after
            # Others write the same node: read what is there, and decide again.
            time.sleep(random.uniform(0, 0.02) * attempt)  # noqa: S311
            node = self._parse(self._api.get(f"{NODES}/{node.name}"))
            found = assess(node, change.wanted, self._taint, was_tainted=was_tainted)
            if found.condition is Condition.AS_WANTED:
                return node
            left_so = found.condition is Condition.DRIFTED and not self._restores
            if left_so or not found.patch:
                return reason_of(node, found, change.wanted, self._taint)
        return f"The taints of node {node.name} keep changing: {ATTEMPTS} attempts failed."

    def _patch(self, name: str, found: Assessment) -> KubernetesNode | None:
        """The node after the patch; None if the node was changed meanwhile."""
        if not self._is_active():
            raise ManagerError("This manager does not hold the lease: nothing is changed.")
        try:
            return self._parse(self._api.patch(f"{NODES}/{name}", found.patch))
        except ApiError as error:
            if error.status in _CHANGED_MEANWHILE:
                return None
            raise

    def _is_as_wanted(self, node: KubernetesNode, change: NodeChange) -> bool:
        return is_tainted(node, self._taint) == (change.wanted is not None)

    def _parse(self, body: Json) -> KubernetesNode:
        node = read_node(body, self._taint.key)
        self._on_read(node)
        return node
