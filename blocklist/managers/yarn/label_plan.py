"""The plan of the YARN manager: which labels to set, what to evacuate, what to restore. Pure.

A mark is a label of the manager on the host (`host:0`), which every NodeManager there has, also one that comes back on
another port. Only where somebody has given a NodeManager a label of its own, it is marked by itself (`host:port`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from blocklist.managers.plan import ManagerPlan, PlanStep, StepAction, block_step, evacuates, format_end
from blocklist.managers.yarn.cluster_state import RUNNING, YarnNode, YarnState
from blocklist.managers.yarn.mark import MAX_LABEL_LENGTH, Capacity, MarkLabels, NodeMark
from blocklist.managers.yarn.node_names import Blocks
from blocklist.model.node import BlockedNode

_MAX_NAMED: Final = 3
"""Applications that a sentence names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelPlan(ManagerPlan):
    """`labels` are set first, `then_labels` afterwards, as the labels of a host replace those of its NodeManagers.

    `restore` has the resources that an interrupted evacuation has left to restore, `evacuate` the ids of NodeManagers
    with containers on `evacuated`, the hosts to evacuate. `ids` maps each host that is to be marked to the ids that
    mean it. `withheld` are marked hosts that no known name on the list means, and that are not freed: `unresolved`
    addresses may mean them.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    then_labels: Mapping[str, str] = field(default_factory=dict)
    restore: Mapping[str, Capacity] = field(default_factory=dict)
    evacuate: tuple[str, ...] = ()
    evacuated: frozenset[str] = frozenset()
    ids: Mapping[str, Sequence[str]] = field(default_factory=dict)
    withheld: tuple[str, ...] = ()
    unresolved: Sequence[str] = ()


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
) -> LabelPlan:
    """The steps from `state` to `blocks`, the blocked hosts.

    At least `min_nodes` hosts stay in service. `masters` are the applications whose ApplicationMaster runs on a node.
    """
    hosts = state.by_host()
    changes = _Changes(refused=dict(blocks.unknown))
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
        refused=changes.refused,
        labels=changes.labels,
        then_labels=changes.then_labels,
        restore=changes.restore,
        evacuate=tuple(changes.evacuate),
        evacuated=frozenset(host for host in changes.ids if evacuates(blocks.by_host[host])),
        ids=changes.ids,
        withheld=tuple(changes.withheld),
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
    if evacuates(block):
        changes.evacuate += [node.id for node in busy]
    if wanted or (evacuates(block) and busy):
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
        changes.then_labels[node.id] = marks.name(mark.lasting) or ""
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
    if not evacuates(block):
        return f"{sentence}; {containers} remain and may finish."
    ended = [application for node in busy for application in masters.get(node.id, ())]
    if not ended:
        return f"{sentence}; {containers} are stopped."
    named = ", ".join(sorted(ended)[:_MAX_NAMED]) + (", …" if len(ended) > _MAX_NAMED else "")
    return (
        f"{sentence}; {containers} are stopped. Among them are ApplicationMasters ({named}): unless these applications"
        " keep containers across attempts, all their containers end."
    )
