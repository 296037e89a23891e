"""YARN by node labels: a marked node has an exclusive label that no application asks for, and gets no new containers.

What runs may finish; an evacuation ends it. Both leave the NodeManager running, and the end of a block gives the node
its own label back. The rules are those of CommonNodeLabelsManager, RMNodeImpl and SchedulerNode; the tests run on a
real ResourceManager with NodeManagers.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from blocklist.client.transport import service_url
from blocklist.managers.applications import Application
from blocklist.managers.command import StoppedError, Stopping
from blocklist.managers.options import checked
from blocklist.managers.plan import DesiredState, ListedNodes, ManagerError, NotDone, NotInForce
from blocklist.managers.yarn.node_names import AddressNames, Blocks, resolve
from blocklist.managers.yarn.plan import (
    DEFAULT_LABEL,
    Capacity,
    LabelPlan,
    MarkLabels,
    NodeMark,
    YarnNode,
    YarnState,
    host_of,
    make_plan,
    states_out_of_service,
)
from blocklist.managers.yarn.resource_manager import (
    REQUEST_SECONDS,
    Access,
    NoAnswerError,
    RejectedError,
    ResourceManager,
    kerberos_auth,
)
from blocklist.model.errors import InvalidError
from blocklist.model.reported_node import NodeFacts, make_label_value

log = logging.getLogger("blocklist.managers")


class LabelManager:
    """`min_nodes` hosts stay in service. It has no state that a restart would lose."""

    def __init__(
        self,
        resource_manager: ResourceManager,
        marks: MarkLabels,
        stop: Stopping,
        names: AddressNames,
        *,
        min_nodes: int,
    ) -> None:
        self._resource_manager = resource_manager
        self._marks = marks
        self._stop = stop
        self._names = names
        self._min_nodes = min_nodes
        self._evacuation = Evacuation(resource_manager, marks, stop)
        self._listed = ListedNodes[NodeFacts]("YARN")
        # A previous process may have stopped after it set labels and before the scheduler knew.
        self._unconfirmed = True

    def applications(self) -> Sequence[Application]:
        """The Spark applications that run. Raises ManagerError."""
        return self._resource_manager.read_applications()

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
        missing = self._not_listed(state)
        blocks = resolve(desired.nodes, self._known_hosts(state) | missing.keys(), self._names, desired.others)
        plan = self._make_plan(blocks, state, missing, {})
        if self._names.looked_up or plan.evacuate:
            masters = self._masters() if plan.evacuate else {}
            # That may have taken seconds, and a label that somebody has set meanwhile must not be lost.
            state = self._read()
            missing = self._not_listed(state)
            plan = self._make_plan(blocks, state, missing, masters)
        return replace(
            plan,
            verb="label",
            platform=f"YARN {self._resource_manager.version}".strip(),
            all_nodes=[*describe(state.nodes, self._marks), *missing.values()],
            unschedulable=states_out_of_service(state.nodes) | dict.fromkeys(missing, "not listed by YARN now"),
            containers={node.id: (node.host, node.containers) for node in _busy(state, plan)},
        )

    def _not_listed(self, state: YarnState) -> dict[str, NodeFacts]:
        """The hosts that YARN has listed and does not now, as after its restart. Raises ManagerError without any."""
        return self._listed.not_listed({it.id: it for it in describe(state.nodes, self._marks)}, time.monotonic())

    def _make_plan(
        self, blocks: Blocks, state: YarnState, missing: Collection[str], masters: Mapping[str, Sequence[str]]
    ) -> LabelPlan:
        return make_plan(
            blocks,
            state,
            self._marks,
            min_nodes=self._min_nodes,
            masters=masters,
            missing=missing,
        )

    def apply(self, plan: LabelPlan) -> NotInForce:
        """Set labels, read them back, evacuate; the ids of hosts that are not as they should be.

        Raises ManagerError, also if a host is not freed. A mark counts only after the scheduler has confirmed it.
        """
        without_resources = self._evacuation.restore(plan.restore)
        self._set_labels(plan, {host_of(node_id) for node_id in without_resources})
        if self._unconfirmed:
            self._resource_manager.wait_for_scheduler()
        nodes = self._resource_manager.read_nodes() if plan.labels or plan.then_labels or plan.evacuate else []
        self._unconfirmed = False
        left: Mapping[str, NotDone] = {}
        if evacuate := self._busy_and_marked(plan, nodes):
            left = self._evacuation.run(evacuate)
            nodes = self._resource_manager.read_nodes()
        unmarked = self._unmarked(plan, nodes)
        found = {**left, **without_resources, **unmarked}
        not_in_force = NotInForce()
        for name, it in found.items():
            not_in_force |= it.for_ids(plan.ids.get(host_of(name), ()))
        not_freed = [it.why for name, it in found.items() if host_of(name) not in plan.ids]
        if not_freed:
            # The list is not in force, but what is known of each block stays true.
            raise ManagerError(not_freed[0], known=plan.not_in_force | not_in_force)
        return not_in_force

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

    def _unmarked(self, plan: LabelPlan, nodes: Iterable[YarnNode]) -> Mapping[str, NotDone]:
        """Why a node is not marked although its host was, by node id."""
        return {
            node.id: NotDone(f"Node {node.id} has no label of the manager, although it was set.")
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


# An evacuation: a NodeManager has no resources for a moment, and YARN ends its containers as preempted.
#
# The moment lasts until the scheduler knows, and what it takes is remembered in the node's label: a NodeManager that
# has learned that it has no resources, and then registers, is refused and exits.

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

    def __init__(self, resource_manager: ResourceManager, marks: MarkLabels, stop: Stopping) -> None:
        self._resource_manager = resource_manager
        self._marks = marks
        self._stop = stop

    def run(self, node_ids: Sequence[str]) -> dict[str, NotDone]:
        """Empty these nodes; why some are not empty, by node id. Raises ManagerError.

        Whatever happens, resources are given back as far as the ResourceManager can be reached; what is missing then
        is read from the labels by the next plan.
        """
        refused: dict[str, NotDone] = {}
        rest = iter(node_ids)
        while batch := set(islice(rest, _NODES_AT_ONCE)):
            nodes = [node for node in self._read(batch) if node.live and not node.capacity.is_zero]
            refused |= self._end_containers(nodes)
        self._wait_until_empty(set(node_ids) - refused.keys())
        self._stop.sleep(_KILL_SECONDS)
        found = {node.id: node for node in self._read(set(node_ids))}
        left = {node_id: why for node_id in node_ids if (why := _not_empty(node_id, found.get(node_id))) is not None}
        return left | refused

    def restore(self, capacities: Mapping[str, Capacity]) -> dict[str, NotDone]:
        """Give back what an interrupted evacuation has left at nothing; why some nodes do not have it, by node id.

        Raises ManagerError. A stop ends it at once: the labels still remember the rest.
        """
        if not capacities:
            return {}
        failed: dict[str, NotDone] = {}
        try:
            for node_id, capacity in capacities.items():
                try:
                    self._resource_manager.set_capacity(node_id, capacity)
                except RejectedError as error:
                    why = f"Node {node_id} has no resources, and does not get them back: {error}"
                    failed[node_id] = NotDone(why, for_good=True)
            nodes = self._wait_until_restored(capacities.keys() - failed.keys())
        except StoppedError:
            _log_left(capacities)
            raise
        restored = {node.id for node in nodes if not _is_empty(node)}
        return {node_id: _not_restored(node_id) for node_id in capacities if node_id not in restored} | failed

    def _read(self, node_ids: Collection[str]) -> list[YarnNode]:
        return [node for node in self._resource_manager.read_nodes() if node.id in node_ids]

    def _end_containers(self, nodes: Sequence[YarnNode]) -> dict[str, NotDone]:
        """Of nodes that have resources; why it is not done of some, by node id."""
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

    def _labels(self, nodes: Sequence[YarnNode]) -> tuple[dict[str, str], dict[str, NotDone]]:
        """The labels that remember the resources of nodes, and why some have none, by node id."""
        remembering: dict[str, str] = {}
        refused: dict[str, NotDone] = {}
        for node in nodes:
            mark = self._marks.mark(node.label)
            label = None if mark is None else self._marks.name(NodeMark(own=mark.own, capacity=node.capacity))
            if mark is None:
                refused[node.id] = NotDone(f"Node {node.id} has lost its label; it is not evacuated yet.")
            elif label is None:
                why = f"Node {node.id} is not evacuated: its label {mark.own} is too long."
                refused[node.id] = NotDone(why, for_good=True)
            else:
                remembering[node.id] = label
        return remembering, refused

    def _take(self, node: YarnNode) -> Mapping[str, NotDone]:
        """Take a node's resources away; why not, by node id, if YARN rejects it."""
        try:
            # A stop does not end it: a request that is still under way could overtake the one that gives them back.
            self._resource_manager.set_capacity(node.id, _nothing(node.capacity), seconds=_RESTORE_SECONDS)
        except RejectedError as error:
            return {node.id: NotDone(f"Node {node.id} is not evacuated: {error}", for_good=True)}
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
            nodes = self._read(node_ids)
            empty = empty + 1 if len(nodes) == len(node_ids) and not any(node.containers for node in nodes) else 0
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

    def _forget(self, nodes: Iterable[YarnNode], remembering: Mapping[str, str]) -> dict[str, NotDone]:
        """Set the former labels of nodes that have their resources back; why the others have not, by node id."""
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


def _not_empty(node_id: str, node: YarnNode | None) -> NotDone | None:
    if node is None:
        return NotDone(f"Not known to be in force: YARN does not list node {node_id} now, so containers may run there.")
    if node.containers:
        return NotDone(f"{node.containers} containers still run on node {node_id}; the evacuation is tried again.")
    return None


def _is_empty(node: YarnNode) -> bool:
    return node.live and node.capacity.is_zero


def _not_restored(node_id: str) -> NotDone:
    return NotDone(f"Node {node_id} does not have its resources back; they are given back again.")


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


# The command line of the YARN manager.

YARN_INTERVAL: Final = 5.0
"""Seconds between reconciliations: YARN does not notify of a node that has come back, or of a label that others set."""


def add_yarn_options(subparser: argparse.ArgumentParser) -> None:
    """All options but those that every manager has."""
    _add_resource_manager(subparser.add_argument_group("the ResourceManager"))
    subparser.add_argument("--print", action="store_true", help="print spark.yarn.exclude.nodes=… and exit")
    subparser.set_defaults(make=_make)


def _add_resource_manager(group: Any) -> None:
    group.add_argument(
        "--resource-manager",
        action="append",
        type=checked(service_url, "is not a URL such as http://rm:8088"),
        default=[],
        metavar="URL",
        help="such as http://rm:8088; repeat it for each ResourceManager of a cluster with high availability",
    )
    group.add_argument(
        "--user",
        metavar="NAME",
        help="user.name for the REST API (default: the user of this process; not with --kerberos)",
    )
    group.add_argument("--kerberos", action="store_true", help="log in by SPNEGO with the ticket of kinit, or a keytab")
    group.add_argument(
        "--ca", type=Path, metavar="FILE", help="certificates of trusted authorities (default: the system's)"
    )
    group.add_argument(
        "--label",
        default=DEFAULT_LABEL,
        metavar="NAME",
        help=f"how the names of the manager's labels begin (default: {DEFAULT_LABEL})",
    )


def _make(args: argparse.Namespace) -> LabelManager:
    stop = Stopping()
    resource_manager = _resource_manager(args, stop)
    try:
        marks = MarkLabels(args.label)
    except ValueError as error:
        raise InvalidError(str(error)) from error
    return LabelManager(resource_manager, marks, stop, AddressNames(stop), min_nodes=args.min_nodes)


def _resource_manager(args: argparse.Namespace, stop: Stopping) -> ResourceManager:
    if args.kerberos and args.user is not None:
        raise InvalidError("Give --user or --kerberos, not both: a ticket names its user.")
    if args.ca is not None and not args.ca.is_file():
        raise InvalidError(f"There is no file {args.ca} (--ca).")
    if not args.resource_manager:
        raise InvalidError("Name the ResourceManager: --resource-manager http://rm:8088, once for each that there is.")
    user = None if args.kerberos else args.user or getpass.getuser()
    access = Access(user=user, auth=kerberos_auth() if args.kerberos else None, ca=args.ca)
    return ResourceManager(args.resource_manager, access, stop, min(args.timeout, REQUEST_SECONDS))
