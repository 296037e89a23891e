"""The plan of the YARN manager: which labels to set, what to evacuate, what to restore. Pure.

A mark is a label of the manager on the host (`host:0`), which every NodeManager there has, also one that comes back on
another port. Only where somebody has given a NodeManager a label of its own, it is marked by itself (`host:port`).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from blocklist.managers.plan import (
    ManagerPlan,
    NotInForce,
    PlanStep,
    StepAction,
    absent,
    block_step,
    format_end,
    not_listed_reason,
)
from blocklist.managers.yarn.node_names import Blocks
from blocklist.model.node import BlockedNode

# What the ResourceManager's REST API says of nodes and labels, as values. Pure.

RUNNING: Final = "RUNNING"
_GONE_STATES: Final = frozenset({"NEW", "DECOMMISSIONED", "LOST", "REBOOTED", "SHUTDOWN"})
"""Of a node without a NodeManager. In any other state, also one that is new to this manager, it may have containers."""
_NUMBER: Final = re.compile("[0-9]{1,15}", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class YarnNode:
    """A NodeManager: `id` is host:port, and there may be several of a host. `label` is its label in effect."""

    id: str
    host: str
    state: str
    rack: str = ""
    label: str = ""
    containers: int = 0
    capacity: Capacity = field(default_factory=lambda: Capacity(megabytes=0, vcores=0))

    @property
    def live(self) -> bool:
        return self.state not in _GONE_STATES


@dataclass(frozen=True, kw_only=True, slots=True)
class YarnState:
    """All nodes in any state, and what labels there are.

    `host_labels` has the labels of hosts, which each NodeManager there has unless it has one of its own: an empty one
    is left out. `labels` maps the name of each label to whether it is exclusive.
    """

    nodes: Sequence[YarnNode] = ()
    host_labels: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, bool] = field(default_factory=dict)

    def by_host(self) -> dict[str, list[YarnNode]]:
        """The nodes of each host, also of hosts that only have a label."""
        found: defaultdict[str, list[YarnNode]] = defaultdict(list)
        for host in self.host_labels:
            found[host] = []
        for node in self.nodes:
            found[node.host].append(node)
        return dict(found)


def parse_state(nodes: object, labels: object, node_labels: object) -> YarnState:
    """The answers to `/nodes`, `/get-node-labels` and `/get-node-to-labels`. Raises ValueError for unexpected ones."""
    return YarnState(
        nodes=parse_nodes(nodes), host_labels=_parse_host_labels(node_labels), labels=_parse_labels(labels)
    )


def parse_nodes(body: object) -> list[YarnNode]:
    """The answer to `/nodes`. Raises ValueError for an unexpected one."""
    if not isinstance(body, dict) or "nodes" not in body:
        raise ValueError("the answer is not a list of nodes")
    # Without any node, as after a restart, `nodes` is null or empty.
    return [_node(fields) for fields in _entries(body["nodes"] or {}, "node")]


def parse_masters(body: object) -> dict[str, list[str]]:
    """The answer to `/apps`: for each node, by id, the applications whose ApplicationMaster runs there.

    Raises ValueError for an unexpected one.
    """
    if not isinstance(body, dict) or "apps" not in body:
        raise ValueError("the answer is not a list of applications")
    found: defaultdict[str, list[str]] = defaultdict(list)
    for fields in _entries(body["apps"] or {}, "app"):
        if isinstance(node := fields.get("masterNodeId"), str):
            found[node].append(str(fields.get("id", "")))
    return dict(found)


def host_of(target: str) -> str:
    """Of a NodeManager or of a label's target: `host:port`, where port 0 means the host."""
    return target.rpartition(":")[0]


def states_out_of_service(nodes: Iterable[YarnNode]) -> dict[str, str]:
    """The hosts without a RUNNING NodeManager: host to state, as people read it."""
    states: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for node in nodes:
        states[node.host][node.state] += 1
    return {host: "+".join(sorted(found)) for host, found in states.items() if RUNNING not in found}


def _node(fields: Mapping[str, Any]) -> YarnNode:
    host, node_id = fields.get("nodeHostName"), fields.get("id")
    if not isinstance(host, str):
        raise ValueError("a node has no nodeHostName")
    labels = _list(fields.get("nodeLabels"))
    node = YarnNode(
        id=node_id if isinstance(node_id, str) else host,
        host=host,
        state=str(fields.get("state") or ""),
        rack=str(fields.get("rack") or ""),
        label=str(labels[0]) if labels else "",
    )
    if not node.live:
        return node
    try:
        return replace(node, containers=_number(fields, "numContainers"), capacity=_capacity(fields))
    except ValueError as error:
        # Nothing is done by halves: without its resources a node would look as if an evacuation had taken them.
        raise ValueError(f"of node {node.id} {error}") from None


def _capacity(fields: Mapping[str, Any]) -> Capacity:
    total = fields.get("totalResource")
    if total is None:  # Before Hadoop 3.
        used = [_number(fields, key) for key in ("usedMemoryMB", "usedVirtualCores")]
        free = [_number(fields, key) for key in ("availMemoryMB", "availableVirtualCores")]
        return Capacity(megabytes=max(0, used[0] + free[0]), vcores=max(0, used[1] + free[1]))
    if not isinstance(total, dict):
        raise ValueError("totalResource is no object")
    further = [
        Further(str(it.get("name")), str(it.get("units") or ""), _number(it, "value"))
        for it in _entries(total.get("resourceInformations") or {}, "resourceInformation")
        if it.get("name") not in {"memory-mb", "vcores"}
    ]
    return Capacity(megabytes=_number(total, "memory"), vcores=_number(total, "vCores"), further=tuple(further))


def _parse_labels(body: object) -> dict[str, bool]:
    return {str(it.get("name")): str(it.get("exclusivity")).lower() != "false" for it in _label_entries(body)}


def _parse_host_labels(body: object) -> dict[str, str]:
    """Of the entries, those of port 0."""
    if not isinstance(body, dict):
        raise ValueError("the answer is not a list of labels")
    found = {}
    for entry in _entries(body.get("nodeToLabels") or {}, "entry"):
        host, _, port = str(entry.get("key", "")).rpartition(":")
        names = [str(it.get("name")) for it in _label_entries(entry.get("value") or {})]
        if port == "0" and names:
            found[host] = names[0]
    return found


def _label_entries(body: object) -> Iterator[Mapping[str, Any]]:
    if not isinstance(body, dict):
        raise ValueError("the answer is not a list of labels")
    inner = body.get("nodeLabelsInfo", body)
    yield from _entries(inner or {}, "nodeLabelInfo")


def _entries(body: object, key: str) -> Iterator[Mapping[str, Any]]:
    """The entries of a list; versions before 3.5 write one entry without a list around it."""
    entries = _list(body.get(key)) if isinstance(body, dict) else None
    if entries is None or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"the answer has no list of {key} entries")
    yield from entries


def _list(value: object) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _number(fields: Mapping[str, Any], name: str) -> int:
    """A whole number, also as text, as some proxies and versions write it. Raises ValueError for anything else."""
    value = fields.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return int(value)
    raise ValueError(f"{name} is {value!r:.50}, which is not a number")


# The node labels by which the manager marks a node, and what they remember. Pure.
#
# A node of YARN has one label. While the manager's label is on it, the label's name holds what the manager found: the
# node's own label, and during an evacuation its resources. So nothing is lost if the manager is killed at any moment,
# or starts again on another machine: the ResourceManager stores labels, and the next manager reads the name.
#
# `blocklist` marks a node without a label of its own, `blocklist--gpu` one with the label `gpu`, and `blocklist-
# restore-8192-4--gpu` one that is being evacuated and has 8192 MB and 4 vcores. Of each further resource the name and
# the unit follow in hexadecimal digits, and its value.

DEFAULT_LABEL: Final = "blocklist"
MAX_LABEL_LENGTH: Final = 255
"""Of YARN, in characters."""
_LABEL: Final = re.compile("[0-9A-Za-z][0-9A-Za-z_-]*", re.ASCII)
_OWN: Final = "--"
_RESTORE: Final = "-restore-"
_CAPACITY: Final = re.compile("([0-9]+)-([0-9]+)((?:-[0-9a-f]+-[0-9]+)*)", re.ASCII)
_FURTHER: Final = re.compile("-([0-9a-f]+)-([0-9]+)", re.ASCII)


class Further(NamedTuple):
    """A resource besides memory and vcores, such as yarn.io/gpu, in YARN's unit."""

    name: str
    unit: str
    value: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Capacity:
    """The resources of a node."""

    megabytes: int
    vcores: int
    further: Sequence[Further] = ()

    @property
    def is_zero(self) -> bool:
        return self.megabytes == self.vcores == 0

    def __str__(self) -> str:
        return ", ".join(
            [f"{self.megabytes} MB", f"{self.vcores} vcores", *(f"{it.value} {it.name}" for it in self.further)]
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeMark:
    """What a label of the manager remembers: the node's own label, empty if it has none, and its resources.

    `capacity` is None except during an evacuation.
    """

    own: str = ""
    capacity: Capacity | None = None


class MarkLabels:
    """The names of the manager's labels: all begin with `prefix`. Raises ValueError for an invalid one."""

    def __init__(self, prefix: str = DEFAULT_LABEL) -> None:
        # With a final `-` the own label would begin one character too early.
        if not _LABEL.fullmatch(prefix) or len(prefix) > 64 or _OWN in prefix or prefix.endswith("-"):
            raise ValueError(
                f"{prefix[:64]!a} is not the name of a node label: at most 64 letters, digits, _ and single - between"
                " them."
            )
        self.prefix = prefix

    def name(self, mark: NodeMark) -> str | None:
        """The label for this mark; None if its name would be longer than YARN allows."""
        name = self.prefix
        if mark.capacity is not None:
            name += _RESTORE + _encode(mark.capacity)
        if mark.own:
            name += _OWN + mark.own
        return name if len(name) <= MAX_LABEL_LENGTH else None

    def mark(self, label: str) -> NodeMark | None:
        """What this label remembers; None if it is not one of the manager's."""
        head, separator, own = label.partition(_OWN)
        if bool(separator) != bool(own):
            return None
        if head == self.prefix:
            return NodeMark(own=own)
        if not head.startswith(self.prefix + _RESTORE):
            return None
        capacity = _decode(head.removeprefix(self.prefix + _RESTORE))
        return None if capacity is None else NodeMark(own=own, capacity=capacity)


def _encode(capacity: Capacity) -> str:
    further = [f"{f'{it.name}|{it.unit}'.encode().hex()}-{it.value}" for it in capacity.further]
    return "-".join([str(capacity.megabytes), str(capacity.vcores), *further])


def _decode(text: str) -> Capacity | None:
    if not (found := _CAPACITY.fullmatch(text)):
        return None
    further = []
    for digits, value in _FURTHER.findall(found[3]):
        try:
            name, _, unit = bytes.fromhex(digits).decode().rpartition("|")
        except ValueError:
            return None
        further.append(Further(name, unit, int(value)))
    return Capacity(megabytes=int(found[1]), vcores=int(found[2]), further=tuple(further))


_MAX_NAMED: Final = 3
"""Applications that a sentence names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelPlan(ManagerPlan):
    """`labels` are set first, `then_labels` afterwards, as the labels of a host replace those of its NodeManagers.

    `restore` has the resources that an interrupted evacuation has left to restore, `evacuate` the ids of NodeManagers
    with containers on `evacuated`, the hosts to evacuate. `ids` maps each host that is to be marked to the ids that
    mean it.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    then_labels: Mapping[str, str] = field(default_factory=dict)
    restore: Mapping[str, Capacity] = field(default_factory=dict)
    evacuate: tuple[str, ...] = ()
    evacuated: frozenset[str] = frozenset()
    ids: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(slots=True)
class _Changes:
    """What is to be written, host by host."""

    labels: dict[str, str] = field(default_factory=dict)
    then_labels: dict[str, str] = field(default_factory=dict)
    restore: dict[str, Capacity] = field(default_factory=dict)
    evacuate: list[str] = field(default_factory=list)
    steps: list[PlanStep] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    ids: dict[str, Sequence[str]] = field(default_factory=dict)
    withheld: list[str] = field(default_factory=list)


def make_plan(
    blocks: Blocks,
    state: YarnState,
    marks: MarkLabels,
    *,
    min_nodes: int = 0,
    masters: Mapping[str, Sequence[str]] | None = None,
    missing: Collection[str] = (),
) -> LabelPlan:
    """The steps from `state` to `blocks`, the blocked hosts; `missing` are hosts that YARN listed before, and not now.

    At least `min_nodes` hosts stay in service. `masters` are the applications whose ApplicationMaster runs on a node.
    """
    hosts = state.by_host()
    changes = _Changes(refused=dict(blocks.refused))
    # A label on the host is in force although its NodeManagers are not listed.
    unlisted = {host: blocks.ids.get(host, ()) for host in missing if host not in hosts}
    pending = {node_id: not_listed_reason("YARN", host) for host, ids in unlisted.items() for node_id in ids}
    kept = _within_limit(blocks, hosts, state, marks, min_nodes, changes.refused)
    for host in sorted(hosts):
        if host in kept:
            _mark_host(host, blocks.by_host[host], hosts[host], state, marks, changes, blocks.ids, masters or {})
        elif blocks.unresolved:
            _finish_evacuations(hosts[host], marks, changes)
            changes.withheld += [host] if _is_marked(host, hosts[host], state, marks) else []
        else:
            _free_host(host, hosts[host], state, marks, changes)
    return LabelPlan(
        steps=tuple(changes.steps),
        not_in_force=absent("YARN", blocks.unmatched, hosts, missing)
        | NotInForce(refused=changes.refused, pending={**blocks.pending, **pending}),
        labels=changes.labels,
        then_labels=changes.then_labels,
        restore=changes.restore,
        evacuate=tuple(changes.evacuate),
        evacuated=frozenset(host for host in changes.ids if blocks.by_host[host].evacuates),
        ids=changes.ids,
        withheld=tuple(changes.withheld),
        # A resolver that does not answer is not needed for what the service has another name of.
        unmatched={*blocks.unmatched, *blocks.pending},
        unresolved=blocks.unresolved,
    )


def _within_limit(
    blocks: Blocks,
    hosts: Mapping[str, Sequence[YarnNode]],
    state: YarnState,
    marks: MarkLabels,
    min_nodes: int,
    refused: dict[str, str],
) -> dict[str, BlockedNode]:
    """The blocked hosts that may be marked: those that are already, and of the others the oldest blocks."""
    running = {host for host, nodes in hosts.items() if any(node.state == RUNNING for node in nodes)}
    by_age = sorted(blocks.by_host.items(), key=lambda item: (item[1].start, item[0]))
    marked = {host for host, nodes in hosts.items() if _is_marked(host, nodes, state, marks)}
    kept = {host: block for host, block in by_age if host in marked}
    in_service = len(running - (marked if blocks.unresolved else kept.keys()))
    for host, block in by_age:
        if host in kept:
            continue
        if host in running and in_service - 1 < min_nodes:
            sentence = (
                f"Node {host} stays in service: without it fewer than {min_nodes} nodes (--min-nodes) would be left."
            )
            refused |= dict.fromkeys(blocks.ids[host], sentence)
            continue
        in_service -= host in running
        kept[host] = block
    return kept


def _is_marked(host: str, nodes: Iterable[YarnNode], state: YarnState, marks: MarkLabels) -> bool:
    labels = [state.host_labels.get(host, ""), *(node.label for node in nodes)]
    return any(marks.mark(label) is not None for label in labels)


def _mark_host(
    host: str,
    block: BlockedNode,
    nodes: Sequence[YarnNode],
    state: YarnState,
    marks: MarkLabels,
    changes: _Changes,
    ids: Mapping[str, Sequence[str]],
    masters: Mapping[str, Sequence[str]],
) -> None:
    _finish_evacuations(nodes, marks, changes)
    wanted = _marking(host, nodes, state, marks)
    if too_long := [label for label, name in wanted.values() if name is None]:
        for node_id in ids[host]:
            changes.refused[node_id] = (
                f"Node {host} is left unchanged: its label {too_long[0]} is too long to be remembered in the name of"
                f" another one (YARN allows {MAX_LABEL_LENGTH} characters)."
            )
        return
    changes.ids[host] = ids[host]
    changes.labels |= {target: name for target, (_, name) in wanted.items() if name is not None}
    busy = [node for node in nodes if node.live and node.containers]
    if block.evacuates:
        changes.evacuate += [node.id for node in busy]
    if wanted or (block.evacuates and busy):
        changes.steps.append(block_step(host, block, _sentence(host, block, busy, masters)))


def _marking(
    host: str, nodes: Sequence[YarnNode], state: YarnState, marks: MarkLabels
) -> dict[str, tuple[str, str | None]]:
    """The labels that are missing: host:0 or host:port, to the label that is there and the one to set."""
    own = state.host_labels.get(host, "")
    if marks.mark(own) is None and all(node.label == own for node in nodes):
        return {f"{host}:0": (own, marks.name(NodeMark(own=own)))}
    return {
        node.id: (node.label, marks.name(NodeMark(own=node.label))) for node in nodes if marks.mark(node.label) is None
    }


def _finish_evacuations(nodes: Iterable[YarnNode], marks: MarkLabels, changes: _Changes) -> None:
    """What an evacuation that was interrupted has left to do."""
    for node in nodes:
        mark = marks.mark(node.label)
        if mark is None or mark.capacity is None:
            continue
        if node.live and node.capacity.is_zero:
            changes.restore[node.id] = mark.capacity
        # Shorter than the label that is there.
        changes.then_labels[node.id] = marks.name(NodeMark(own=mark.own)) or ""
        changes.steps.append(
            PlanStep(
                action=StepAction.BLOCK,
                name=node.host,
                reason=f"Node {node.id} gets its resources back ({mark.capacity}): an evacuation was interrupted.",
            )
        )


def _free_host(host: str, nodes: Sequence[YarnNode], state: YarnState, marks: MarkLabels, changes: _Changes) -> None:
    host_mark = marks.mark(state.host_labels.get(host, ""))
    node_marks = {node.id: mark for node in nodes if (mark := marks.mark(node.label)) is not None}
    if host_mark is None and not node_marks:
        return
    for node in nodes:
        mark = node_marks.get(node.id)
        if mark is not None and mark.capacity is not None and node.live and node.capacity.is_zero:
            changes.restore[node.id] = mark.capacity
    if host_mark is not None:
        changes.labels[f"{host}:0"] = _known(host_mark.own, state)
        own_label = {node.id: node_marks[node.id].own if node.id in node_marks else node.label for node in nodes}
        different = {node_id: label for node_id, label in own_label.items() if label != host_mark.own}
        changes.then_labels |= {node_id: _known(label, state) for node_id, label in different.items()}
    else:
        changes.labels |= {node_id: _known(mark.own, state) for node_id, mark in node_marks.items()}
    changes.steps.append(PlanStep(action=StepAction.FREE, name=host, reason=f"Node {host} is no longer blocked."))


def _known(label: str, state: YarnState) -> str:
    """The label if it still exists: an administrator may have removed it meanwhile, from all nodes."""
    return label if label in state.labels else ""


def _sentence(host: str, block: BlockedNode, busy: Sequence[YarnNode], masters: Mapping[str, Sequence[str]]) -> str:
    sentence = f"Node {host} is blocked {format_end(block)} ({block.cause}): it gets no new containers"
    containers = sum(node.containers for node in busy)
    if not containers:
        return f"{sentence}, and has none."
    if not block.evacuates:
        return f"{sentence}; {containers} remain and may finish."
    ended = [application for node in busy for application in masters.get(node.id, ())]
    if not ended:
        return f"{sentence}; {containers} are stopped."
    named = ", ".join(sorted(ended)[:_MAX_NAMED]) + (", …" if len(ended) > _MAX_NAMED else "")
    return (
        f"{sentence}; {containers} are stopped. Among them are ApplicationMasters ({named}): unless these applications"
        " keep containers across attempts, all their containers end."
    )
