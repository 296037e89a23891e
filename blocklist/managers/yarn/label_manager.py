"""YARN by node labels: a marked node has an exclusive label that no application asks for, and gets no new containers.

What runs may finish; an evacuation ends it. Both leave the NodeManager running, and the end of a block gives the node
its own label back. The rules are those of CommonNodeLabelsManager, RMNodeImpl and SchedulerNode; the tests run on a
real ResourceManager with NodeManagers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from blocklist.managers.plan import DesiredState, ManagerError
from blocklist.managers.yarn.address_names import AddressNames
from blocklist.managers.yarn.cluster_state import YarnNode, YarnState, host_of, states_out_of_service
from blocklist.managers.yarn.connection import NoAnswerError, RejectedError
from blocklist.managers.yarn.evacuation import Evacuation
from blocklist.managers.yarn.interruptible import Stop
from blocklist.managers.yarn.label_plan import LabelPlan, make_plan
from blocklist.managers.yarn.mark import MarkLabels
from blocklist.managers.yarn.node_names import resolve, withheld_message
from blocklist.managers.yarn.resource_manager import ResourceManager
from blocklist.model.node_facts import NodeFacts, make_label_value

log = logging.getLogger("blocklist.managers")


class LabelManager:
    """`min_nodes` hosts stay in service. It has no state that a restart would lose."""

    def __init__(
        self, resource_manager: ResourceManager, marks: MarkLabels, stop: Stop, names: AddressNames, *, min_nodes: int
    ) -> None:
        self._resource_manager = resource_manager
        self._marks = marks
        self._stop = stop
        self._names = names
        self._min_nodes = min_nodes
        self._evacuation = Evacuation(resource_manager, marks, stop)
        # A previous process may have stopped after it set labels and before the scheduler knew.
        self._unconfirmed = True

    def stop(self) -> None:
        """End what is going on; what is begun and must be finished takes some seconds at most.

        Call it from any thread or signal handler.
        """
        self._stop.set()

    def plan(self, desired: DesiredState) -> LabelPlan:
        """Read the cluster and compare."""
        self._resource_manager.find_active()
        state = self._read()
        if _unfinished(state, self._marks):
            # The request that takes the resources may still be queued: the label must not be removed before.
            self._resource_manager.wait_for_scheduler()
            state = self._read()
        self._names.begin()
        blocks = resolve(desired.nodes, self._known_hosts(state), self._names)
        plan = make_plan(blocks, state, self._marks, min_nodes=self._min_nodes)
        if self._names.looked_up or plan.evacuate:
            masters = self._masters() if plan.evacuate else {}
            # That may have taken seconds, and a label that somebody has set meanwhile must not be lost.
            state = self._read()
            plan = make_plan(blocks, state, self._marks, min_nodes=self._min_nodes, masters=masters)
        return replace(
            plan,
            all_nodes=describe(state.nodes, self._marks),
            unschedulable=states_out_of_service(state.nodes),
            containers={node.id: (node.host, node.containers) for node in _busy(state, plan)},
        )

    def apply(self, plan: LabelPlan) -> Mapping[str, str]:
        """Set labels, read them back, evacuate; the ids of hosts that are not as they should be are refused.

        Raises ManagerError, also if a host is not freed. A mark counts only after the scheduler has confirmed it.
        """
        without_resources = self._evacuation.restore(plan.restore)
        self._set_labels(plan, {host_of(node_id) for node_id in without_resources})
        if self._unconfirmed:
            self._resource_manager.wait_for_scheduler()
        nodes = self._resource_manager.read_nodes() if plan.labels or plan.then_labels or plan.evacuate else []
        self._unconfirmed = False
        left: Mapping[str, str] = {}
        if evacuate := self._busy_and_marked(plan, nodes):
            left = self._evacuation.run(evacuate)
            nodes = self._resource_manager.read_nodes()
        unmarked = self._unmarked(plan, nodes)
        found = {**left, **without_resources, **unmarked}
        refused = {node_id: sentence for name, sentence in found.items() for node_id in plan.ids.get(host_of(name), ())}
        not_freed = [sentence for name, sentence in found.items() if host_of(name) not in plan.ids]
        if plan.withheld:
            not_freed.append(withheld_message(plan.withheld, plan.unresolved))
        if not_freed:
            # The list is not in force, but what is known of each block stays true.
            raise ManagerError(not_freed[0], refused={**plan.refused, **refused})
        return refused

    def _set_labels(self, plan: LabelPlan, left_out: set[str]) -> None:
        """All but those of hosts whose labels still have something to remember."""
        labels, then_labels = (
            {target: label for target, label in part.items() if host_of(target) not in left_out}
            for part in (plan.labels, plan.then_labels)
        )
        used = {*labels.values(), *then_labels.values()}
        if labels or then_labels:
            self._unconfirmed = True
            self._resource_manager.add_labels(sorted(label for label in used if self._is_mark(label)))
            self._resource_manager.set_host_labels(labels, then_labels)

    def _read(self) -> YarnState:
        state = self._resource_manager.read()
        self._check_labels(state)
        return state

    def _masters(self) -> Mapping[str, Sequence[str]]:
        """For each node the applications whose ApplicationMaster is there; only for the log."""
        try:
            return self._resource_manager.read_masters()
        except (NoAnswerError, RejectedError) as error:
            log.warning("Which applications have their ApplicationMaster on a node is not known: %s", error)
            return {}

    def _is_mark(self, label: str) -> bool:
        return self._marks.mark(label) is not None

    def _known_hosts(self, state: YarnState) -> set[str]:
        """Also those that are marked and whose NodeManager has not registered since a restart of YARN."""
        marked = {host for host, label in state.host_labels.items() if self._is_mark(label)}
        return {node.host for node in state.nodes} | marked

    def _check_labels(self, state: YarnState) -> None:
        """Raises ManagerError if labels of the manager do not work, or the answers do not fit together."""
        for label, exclusive in state.labels.items():
            if self._is_mark(label) and not exclusive:
                raise ManagerError(
                    f"The node label {label} is not exclusive, so nodes with it still get containers. Remove it"
                    " (yarn rmadmin -removeFromClusterNodeLabels) or give another --label."
                )
        used = {*state.host_labels.values(), *(node.label for node in state.nodes)}
        if missing := sorted(label for label in used - state.labels.keys() if self._is_mark(label)):
            # Without the list it is not known which labels of others can be given back.
            raise ManagerError(
                f"The ResourceManager {self._resource_manager.url} has nodes with the label {missing[0]}, but its"
                " answer to GET /get-node-labels does not list it. Nothing is changed."
            )

    def _busy_and_marked(self, plan: LabelPlan, nodes: Iterable[YarnNode]) -> list[str]:
        """The NodeManagers to evacuate, by id: a container may have started between the plan and the mark."""
        return [
            node.id
            for node in nodes
            if node.host in plan.evacuated and node.live and node.containers and self._is_mark(node.label)
        ]

    def _unmarked(self, plan: LabelPlan, nodes: Iterable[YarnNode]) -> Mapping[str, str]:
        """A sentence for each node that is not marked although its host was, by node id."""
        return {
            node.id: f"Node {node.id} has no label of the manager, although it was set."
            for node in nodes
            if node.host in plan.ids and not self._is_mark(node.label)
        }


def _unfinished(state: YarnState, marks: MarkLabels) -> bool:
    """Whether an evacuation was interrupted, and its node still has resources."""
    found = [marks.mark(node.label) for node in state.nodes if node.live and not node.capacity.is_zero]
    return any(mark is not None and mark.capacity is not None for mark in found)


def _busy(state: YarnState, plan: LabelPlan) -> list[YarnNode]:
    """The NodeManagers on marked hosts that have containers."""
    return [node for node in state.nodes if node.host in plan.ids and node.live and node.containers]


# The hosts of YARN as the inventory describes them. Pure.


def describe(nodes: Iterable[YarnNode], marks: MarkLabels) -> list[NodeFacts]:
    """Each host with its rack, its own node label, its memory and its vcores as labels.

    Of several NodeManagers on a host a live one counts.
    """
    chosen: dict[str, YarnNode] = {}
    for node in nodes:
        if node.host not in chosen or (node.live and not chosen[node.host].live):
            chosen[node.host] = node
    return [NodeFacts(id=node.host, labels=_labels(node, marks)) for node in chosen.values()]


def _labels(node: YarnNode, marks: MarkLabels) -> list[tuple[str, str]]:
    mark = marks.mark(node.label)
    own = node.label if mark is None else mark.own
    capacity = node.capacity if mark is None or mark.capacity is None else mark.capacity
    rack = make_label_value(node.rack)
    labels = [("rack", rack)] if rack else []
    if own:
        labels.append((f"label.yarn/{make_label_value(own)}", ""))
    if node.live and not capacity.is_zero:
        labels += [("capacity.yarn/memory-mb", str(capacity.megabytes)), ("capacity.yarn/vcores", str(capacity.vcores))]
    return labels
