"""An evacuation: a NodeManager has no resources for a moment, and YARN ends its containers as preempted.

The moment lasts until the scheduler knows, and what it takes is remembered in the node's label: a NodeManager that has
learned that it has no resources, and then registers, is refused and exits.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from blocklist.managers.plan import ManagerError
from blocklist.managers.yarn.cluster_state import YarnNode
from blocklist.managers.yarn.connection import NoAnswerError, RejectedError
from blocklist.managers.yarn.interruptible import Stop, StoppedError
from blocklist.managers.yarn.mark import Capacity, MarkLabels, NodeMark
from blocklist.managers.yarn.resource_manager import ResourceManager

log = logging.getLogger("blocklist.managers")

_NODES_AT_ONCE: Final = 50
_TAKE_SECONDS: Final = 5.0
"""How long to wait until nodes have no resources."""
_EMPTY_SECONDS: Final = 10.0
"""How long to wait until the NodeManagers have ended the containers."""
_RESTORE_SECONDS: Final = 5.0
"""For all nodes of a batch, also when the manager is to stop."""
_POLL_SECONDS: Final = 0.05
_KILL_SECONDS: Final = 1.5
"""A NodeManager learns at its next heartbeat (1 s) which containers to end, and waits 0.25 s before SIGKILL."""
_MAX_NAMED: Final = 3
"""Nodes that a sentence names."""


class Evacuation:
    """Empties NodeManagers, some at a time."""

    def __init__(self, resource_manager: ResourceManager, marks: MarkLabels, stop: Stop) -> None:
        self._resource_manager = resource_manager
        self._marks = marks
        self._stop = stop

    def run(self, node_ids: Sequence[str]) -> dict[str, str]:
        """Empty these nodes; a sentence for each that is not empty, by node id. Raises ManagerError.

        Whatever happens, resources are given back as far as the ResourceManager can be reached; what is missing then
        is read from the labels by the next plan.
        """
        refused: dict[str, str] = {}
        rest = iter(node_ids)
        while batch := set(islice(rest, _NODES_AT_ONCE)):
            nodes = [node for node in self._read(batch) if node.live and not node.capacity.is_zero]
            refused |= self._end_containers(nodes)
        self._wait_until_empty(set(node_ids) - refused.keys())
        self._stop.sleep(_KILL_SECONDS)
        left = {
            node.id: f"{node.containers} containers still run on node {node.id}; the evacuation is tried again."
            for node in self._read(set(node_ids))
            if node.containers
        }
        return left | refused

    def restore(self, capacities: Mapping[str, Capacity]) -> dict[str, str]:
        """Give back what an interrupted evacuation has left at nothing; a sentence for each node that has it not.

        Raises ManagerError. A stop ends it at once: the labels still remember the rest.
        """
        if not capacities:
            return {}
        failed: dict[str, str] = {}
        try:
            for node_id, capacity in capacities.items():
                try:
                    self._resource_manager.set_capacity(node_id, capacity)
                except RejectedError as error:
                    failed[node_id] = f"Node {node_id} has no resources, and does not get them back: {error}"
            nodes = self._wait_until_restored(capacities.keys() - failed.keys())
        except StoppedError:
            _log_left(capacities)
            raise
        return {node.id: _not_restored(node.id) for node in nodes if _is_empty(node)} | failed

    def _read(self, node_ids: Collection[str]) -> list[YarnNode]:
        return [node for node in self._resource_manager.read_nodes() if node.id in node_ids]

    def _end_containers(self, nodes: Sequence[YarnNode]) -> dict[str, str]:
        """Of nodes that have resources; a sentence for each of which it is known that it is not done."""
        remembering, refused = self._labels(nodes)
        self._resource_manager.add_labels(sorted(set(remembering.values())))
        self._resource_manager.set_labels(remembering)
        taken: dict[str, Capacity] = {}
        try:
            for node in nodes:
                if node.id in remembering:
                    self._stop.check()
                    taken[node.id] = node.capacity
                    refused |= self._take(node)
            self._wait_until_taken(taken, taken.keys() - refused.keys())
        finally:
            self._restore(taken)
        return refused | self._forget(nodes, remembering)

    def _labels(self, nodes: Sequence[YarnNode]) -> tuple[dict[str, str], dict[str, str]]:
        """The labels that remember the resources of nodes, and a sentence for each node without one."""
        remembering, refused = {}, {}
        for node in nodes:
            mark = self._marks.mark(node.label)
            label = None if mark is None else self._marks.name(NodeMark(own=mark.own, capacity=node.capacity))
            if mark is None:
                refused[node.id] = f"Node {node.id} has lost its label; it is not evacuated."
            elif label is None:
                refused[node.id] = f"Node {node.id} is not evacuated: its label {mark.own} is too long."
            else:
                remembering[node.id] = label
        return remembering, refused

    def _take(self, node: YarnNode) -> Mapping[str, str]:
        """Take a node's resources away; a sentence if YARN rejects it."""
        try:
            # A stop does not end it: a request that is still under way could overtake the one that gives them back.
            self._resource_manager.set_capacity(node.id, _nothing(node.capacity), seconds=_RESTORE_SECONDS)
        except RejectedError as error:
            return {node.id: f"Node {node.id} is not evacuated: {error}"}
        return {}

    def _wait_until_taken(self, taken: dict[str, Capacity], node_ids: Collection[str]) -> None:
        """Wait until the scheduler knows that these nodes have no resources: it ends their containers then.

        A node that has others than before leaves `taken`: an administrator has set them, or its NodeManager has
        registered with them.
        """
        deadline = time.monotonic() + _TAKE_SECONDS
        while any(node.live and node.capacity == taken[node.id] for node in self._read(node_ids)):
            if time.monotonic() > deadline:
                break
            self._stop.sleep(_POLL_SECONDS)
        # One that is behind ends the containers later: it takes both requests in their order.
        with contextlib.suppress(NoAnswerError):
            self._resource_manager.wait_for_scheduler()
        for node in self._read(node_ids):
            if not node.capacity.is_zero and node.capacity != taken[node.id]:
                del taken[node.id]

    def _wait_until_empty(self, node_ids: Collection[str]) -> None:
        """Wait until two answers in a row show no containers: while YARN changes the resources of a node, one may."""
        deadline = time.monotonic() + _EMPTY_SECONDS
        empty = 0
        while empty < 2 and time.monotonic() < deadline:
            empty = 0 if any(node.containers for node in self._read(node_ids)) else empty + 1
            self._stop.sleep(_POLL_SECONDS)

    def _restore(self, taken: Mapping[str, Capacity]) -> None:
        """Give all resources back, also when the manager is to stop. What is missing then is logged."""
        left = dict(taken)
        deadline = time.monotonic() + _RESTORE_SECONDS
        for node_id, capacity in taken.items():
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                break
            try:
                self._resource_manager.set_capacity(node_id, capacity, seconds=seconds)
                del left[node_id]
            except ManagerError as error:
                log.warning("Node %s does not get its resources back: %s", node_id, error)
        if left:
            _log_left(left)

    def _wait_until_restored(self, node_ids: Collection[str]) -> list[YarnNode]:
        """Wait until these nodes have resources, for some seconds at most; what they have then."""
        deadline = time.monotonic() + _RESTORE_SECONDS
        while any(map(_is_empty, nodes := self._read(node_ids))) and time.monotonic() < deadline:
            self._stop.sleep(_POLL_SECONDS)
        return nodes

    def _forget(self, nodes: Iterable[YarnNode], remembering: Mapping[str, str]) -> dict[str, str]:
        """Set the former labels of nodes that have their resources back; a sentence for each other one."""
        former = {node.id: node.label for node in nodes}
        restored = self._wait_until_restored(remembering.keys())
        self._resource_manager.set_labels(
            {
                node.id: former[node.id]
                for node in restored
                # Another label is from somebody who has set it meanwhile.
                if not _is_empty(node) and node.label == remembering[node.id]
            }
        )
        return {node.id: _not_restored(node.id) for node in restored if _is_empty(node)}


def _is_empty(node: YarnNode) -> bool:
    return node.live and node.capacity.is_zero


def _not_restored(node_id: str) -> str:
    return f"Node {node_id} does not have its resources back; they are given back again."


def _log_left(capacities: Mapping[str, Capacity]) -> None:
    named = ", ".join(f"{node_id} ({capacity})" for node_id, capacity in islice(capacities.items(), _MAX_NAMED))
    log.error(
        "%d nodes may be without resources: %s%s. Their labels remember what they had: the manager gives it back when"
        " it runs again.",
        len(capacities),
        named,
        ", …" if len(capacities) > _MAX_NAMED else "",
    )


def _nothing(capacity: Capacity) -> Capacity:
    return Capacity(megabytes=0, vcores=0, further=tuple(it._replace(value=0) for it in capacity.further))
