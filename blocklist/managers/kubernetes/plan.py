"""The plan of the Kubernetes manager: which nodes get or lose the taint, and what is reported. Pure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from blocklist.managers.kubernetes.nodes import MANAGER, NO_SCHEDULE, KubernetesNode, parse_mark
from blocklist.managers.plan import (
    DesiredState,
    ManagerPlan,
    NodeNames,
    NotInForce,
    PlanStep,
    StepAction,
    absent,
    block_step,
    format_end,
    merged_block,
    not_listed_reason,
)
from blocklist.model.claims import ANONYMOUS, Claims
from blocklist.model.node import BlockedNode, to_utc

# What a node needs so that it carries the taint and the annotation, or no longer does: a JSON patch. Pure.
#
# Only entries of this manager are added, changed or removed. Each operation on the list of taints has a `test` before
# it, so that the API server refuses the patch when the list has changed: then read the node and decide again.
# Measured with concurrent writers: no taint of others is lost, and none of this manager's through writers that do the
# same.

_BY: Final = "by"
_MACHINE: Final = "machine"


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnTaint:
    """The key of taint and annotation; the value tells this manager's taint from that of another one."""

    key: str
    value: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{NO_SCHEDULE}"


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockMark:
    """What the annotation says of the block: `until` and `cause` for people, `by` who blocked it, None if unknown.

    `machine` is the machine that was blocked: another one may have the name since.
    """

    until: str
    action: str
    cause: str
    by: str | None = None
    machine: str | None = None

    def text(self, taint: OwnTaint) -> str:
        fields = {"blocked": self.until, "action": self.action, "cause": self.cause, _BY: self.by}
        machine = {_MACHINE: self.machine} if self.machine else {}
        return json.dumps({**fields, **machine, MANAGER: taint.value}, ensure_ascii=False)


class Condition(StrEnum):
    """How a node is, compared with how it should be."""

    AS_WANTED = "as wanted"
    MISSING = "missing"
    """It should carry the taint, and never did."""
    OUTDATED = "outdated"
    """The taint is there; the annotation says something else."""
    DRIFTED = "drifted"
    """Somebody has removed or changed the taint that it carried."""
    FOREIGN = "foreign"
    """A taint with this key and another value is there, which is not this manager's."""
    LEFT_OVER = "left over"
    """It should not carry the taint, or the annotation, and does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assessment:
    """The condition, and the operations that lead to what is wanted; none if nothing can or need be done."""

    condition: Condition
    patch: tuple[Mapping[str, Any], ...] = field(default=())


def assess(node: KubernetesNode, wanted: BlockMark | None, taint: OwnTaint, *, was_tainted: bool = False) -> Assessment:
    """Compare a node with what it should carry; None is nothing. `was_tainted`: it has carried the taint before."""
    index = node.taint_index(taint.key)
    own = is_tainted(node, taint)
    marked = is_marked(node, taint)
    if wanted is None:
        return _release(node, index if own else None, taint, marked=marked)
    annotate = [*_annotate(node, wanted, taint), *_remove_others(node, taint)]
    if own:
        condition = Condition.AS_WANTED if not annotate else Condition.OUTDATED
        return Assessment(condition=condition, patch=tuple(_guarded(node, annotate)))
    drifted = marked or was_tainted
    if index is not None and not drifted:
        return Assessment(condition=Condition.FOREIGN)
    condition = Condition.DRIFTED if drifted else Condition.MISSING
    return Assessment(condition=condition, patch=tuple(_guarded(node, [*_add_taint(node, index, taint), *annotate])))


def is_tainted(node: KubernetesNode, taint: OwnTaint) -> bool:
    """Whether the node carries the taint of this manager."""
    index = node.taint_index(taint.key)
    return index is not None and node.taints[index].value == taint.value


def is_marked(node: KubernetesNode, taint: OwnTaint) -> bool:
    """Whether the node has the annotation of this manager."""
    return parse_mark(node.mark).get(MANAGER) == taint.value


def _remove_others(node: KubernetesNode, taint: OwnTaint) -> list[Mapping[str, Any]]:
    """Remove what this manager has left under another key (--taint was changed), the last of the list first."""
    operations: list[Mapping[str, Any]] = []
    former = [(key, text) for key, text in node.other_marks if parse_mark(text).get(MANAGER) == taint.value]
    places = {key: node.taint_index(key) for key, _ in former}
    for index in sorted((it for it in places.values() if it is not None), reverse=True):
        if node.taints[index].value == taint.value:
            path = f"/spec/taints/{index}"
            operations += [_test(path, node.taints[index].fields), {"op": "remove", "path": path}]
    for key, text in former:
        path = _annotation(replace(taint, key=key))
        operations += [_test(path, text), {"op": "remove", "path": path}]
    return operations


def _release(node: KubernetesNode, index: int | None, taint: OwnTaint, *, marked: bool) -> Assessment:
    operations: list[Mapping[str, Any]] = []
    if index is not None:
        path = f"/spec/taints/{index}"
        operations += [_test(path, node.taints[index].fields), {"op": "remove", "path": path}]
    if marked:
        operations += [_test(_annotation(taint), node.mark), {"op": "remove", "path": _annotation(taint)}]
    if not operations:  # Else the places in the list change: the next plan removes them.
        operations = _remove_others(node, taint)
    if not operations:
        return Assessment(condition=Condition.AS_WANTED)
    return Assessment(condition=Condition.LEFT_OVER, patch=tuple(_guarded(node, operations)))


def _add_taint(node: KubernetesNode, index: int | None, taint: OwnTaint) -> list[Mapping[str, Any]]:
    body = {"key": taint.key, "value": taint.value, "effect": NO_SCHEDULE}
    if index is not None:  # Its value was changed.
        path = f"/spec/taints/{index}"
        return [_test(path, node.taints[index].fields), {"op": "replace", "path": path, "value": body}]
    if node.taints:
        return [{"op": "add", "path": "/spec/taints/-", "value": body}]
    return [_test("/spec/taints", None), {"op": "add", "path": "/spec/taints", "value": [body]}]


def _annotate(node: KubernetesNode, wanted: BlockMark, taint: OwnTaint) -> list[Mapping[str, Any]]:
    present, text = parse_mark(node.mark), wanted.text(taint)
    # Who blocked it, and which machine it was, may be unknown after a restart: that alone is no change.
    known = {name: value for name, value in ((_BY, wanted.by), (_MACHINE, wanted.machine)) if value is not None}
    kept = {name: present.get(name) for name in (_BY, _MACHINE)} | known
    if present | kept == parse_mark(text) | kept and all(present.get(name) == value for name, value in known.items()):
        return []
    if node.has_annotations:
        return [{"op": "add", "path": _annotation(taint), "value": text}]
    return [
        _test("/metadata/annotations", None),
        {"op": "add", "path": "/metadata/annotations", "value": {taint.key: text}},
    ]


def _guarded(node: KubernetesNode, operations: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Only for this life of the node: one that registers again has another uid."""
    return [_test("/metadata/uid", node.uid), *operations] if operations else []


def _annotation(taint: OwnTaint) -> str:
    """The path of the annotation, escaped as RFC 6901 says."""
    return f"/metadata/annotations/{taint.key.replace('~', '~0').replace('/', '~1')}"


def _test(path: str, value: object) -> Mapping[str, Any]:
    return {"op": "test", "path": path, "value": value}


_CLOCK_MARGIN: Final = 60_000
"""Milliseconds that the clocks of the API server and of the service may differ."""
MAX_CAUSE: Final = 300
"""Characters of a cause in an annotation, an event and a log line."""


class DriftPolicy(StrEnum):
    """What happens to a taint that somebody has removed or changed."""

    RESTORE = "restore"
    REPORT = "report"


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeChange:
    """A node whose taint or annotation changes. `wanted` is None for a node that is free, `ids` are those on the list.

    `reason` is a sentence; `assessment` is what the plan was made from: it is made again if the node has changed.
    """

    node: KubernetesNode
    wanted: BlockMark | None
    ids: tuple[str, ...]
    assessment: Assessment
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class KubernetesPlan(ManagerPlan):
    """`nodes` are those that it was made from, `history` that of the list. `changes` are carried out in parallel.

    `evacuated` maps the nodes to be evacuated to their ids on the list, `drifted` the nodes whose taint somebody has
    removed or changed to a sentence, `machines` the blocked nodes to the machines that were blocked.
    """

    nodes: Mapping[str, KubernetesNode] = field(default_factory=dict)
    history: str | None = None
    changes: tuple[NodeChange, ...] = ()
    evacuated: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    drifted: Mapping[str, str] = field(default_factory=dict)
    machines: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Target:
    """A node of Kubernetes that is to be blocked: the merged block, the ids that mean it, and what marks it."""

    block: BlockedNode
    ids: tuple[str, ...]
    mark: BlockMark


def make_plan(
    desired: DesiredState,
    nodes: Mapping[str, KubernetesNode],
    names: NodeNames,
    taint: OwnTaint,
    *,
    on_drift: DriftPolicy,
    tainted: Collection[str],
    missing: Mapping[str, KubernetesNode],
    machines: Mapping[str, str],
) -> KubernetesPlan:
    """The changes from `nodes` to `desired`; `tainted` are the uids of nodes that have carried the taint before.

    `missing` are nodes that Kubernetes has listed before, and does not now: `names` has them too. `machines` are those
    that were blocked, by the name of the node, as far as this process knows.
    """
    targets, refused, unmatched = _targets(desired, names, nodes, machines)
    not_known = _not_known(targets, missing, taint)
    # That there are no nodes may be so, as in a cluster that grows when it has work; it says nothing about a node.
    others = absent("Kubernetes", unmatched, nodes, missing)
    unresolved = names.others.unresolved(unmatched)
    withheld: list[str] = []
    changes: list[NodeChange] = []
    steps: list[PlanStep] = []
    drifted: dict[str, str] = {}
    for name, node in sorted(nodes.items()):
        target = targets.get(name)
        mark = None if target is None else target.mark
        found = assess(node, mark, taint, was_tainted=node.uid in tainted)
        if found.condition is Condition.AS_WANTED:
            continue
        if target is None and unresolved:
            withheld.append(name)
            continue
        reason = reason_of(node, found, mark, taint)
        if found.condition is Condition.DRIFTED:
            drifted[name] = reason
        left_so = found.condition is Condition.DRIFTED and on_drift is DriftPolicy.REPORT
        if target is not None and (left_so or found.condition is Condition.FOREIGN):
            left = " It is left so (--on-drift report)." if left_so else ""
            refused |= dict.fromkeys(target.ids, reason + left)
            if left_so and not is_marked(node, taint):
                # The annotation alone: without it, a manager that starts again would restore the taint.
                patch = tuple(_guarded(node, _annotate(node, target.mark, taint)))
                found = Assessment(condition=found.condition, patch=patch)
                note = NodeChange(node=node, wanted=mark, ids=target.ids, assessment=found, reason=reason + left)
                changes.append(note)
            continue
        ids = () if target is None else target.ids
        changes.append(NodeChange(node=node, wanted=mark, ids=ids, assessment=found, reason=reason))
        steps.append(
            PlanStep(action=StepAction.FREE, name=name, reason=reason)
            if target is None
            else block_step(name, target.block, reason)
        )
    replaced = _replaced(targets, nodes)
    return KubernetesPlan(
        steps=tuple(steps),
        not_in_force=others | NotInForce(refused=refused, pending=not_known),
        all_nodes=[node.facts for node in [*nodes.values(), *missing.values()]],
        schedulable=drifted if on_drift is DriftPolicy.REPORT else {},
        unschedulable={name: why for name, node in nodes.items() if (why := node.unschedulable) is not None}
        | dict.fromkeys(missing, "not listed by Kubernetes now"),
        replaced={name: why for name, (why, _) in replaced.items()},
        new_machines={name: since for name, (_, since) in replaced.items() if since is not None},
        machines={name: each.mark.machine for name, each in targets.items() if each.mark.machine},
        nodes=nodes,
        history=desired.history,
        changes=tuple(changes),
        evacuated={name: each.ids for name, each in targets.items() if each.block.evacuates and name in nodes},
        drifted=drifted,
        unmatched=unmatched,
        withheld=withheld,
        unresolved=unresolved,
    )


def reason_of(node: KubernetesNode, found: Assessment, mark: BlockMark | None, taint: OwnTaint) -> str:
    """The sentence about a node that is not as it should be."""
    match found.condition:
        case Condition.DRIFTED:
            index = node.taint_index(taint.key)
            what = "removed" if index is None else f"changed to the value {node.taints[index].value!r}"
            by = node.taints_writer or "an unknown client"
            return f"The taint {taint} of node {node.name} was {what} by {by}."
        case Condition.FOREIGN:
            index = node.taint_index(taint.key)
            value = "" if index is None else node.taints[index].value
            return (
                f"Node {node.name} has the taint {taint.key} with the value {value!r}, which is not this manager's:"
                " left unchanged."
            )
        case _ if mark is None:
            return f"Node {node.name} is no longer blocked."
        case _:
            by = f" by {mark.by}" if mark.by else ""
            return f"Node {node.name} is blocked {mark.until}{by} ({mark.cause}): it gets no new pods."


def author_of(claims: Claims) -> str | None:
    """Who made the claims on a node, in the order in which they did; None if unknown."""
    names = dict.fromkeys(claim.author or claim.owner for claim in claims)
    return ", ".join(name for name in names if name != ANONYMOUS) or None


def _not_known(
    targets: Mapping[str, _Target],
    missing: Mapping[str, KubernetesNode],
    taint: OwnTaint,
) -> dict[str, str]:
    """Of nodes that are not listed now: the ids of those that are blocked, and the names of those that were freed."""
    found: dict[str, str] = {}
    for name, node in missing.items():
        why = not_listed_reason("Kubernetes", name)
        if name in targets:
            found |= dict.fromkeys(targets[name].ids, why)
        elif is_tainted(node, taint):
            found[name] = f"Not known to be free again. {why}"
    return found


def _replaced(targets: Mapping[str, _Target], nodes: Mapping[str, KubernetesNode]) -> dict[str, tuple[str, int | None]]:
    """The blocked nodes whose name another machine has since: a sentence, and since when (Unix ms) if it is certain."""
    found: dict[str, tuple[str, int | None]] = {}
    for name in targets.keys() & nodes.keys():
        node, target = nodes[name], targets[name]
        former = target.mark.machine or ""
        if node.created_at is None or node.created_at <= target.block.start + _CLOCK_MARGIN or former == node.machine:
            continue
        created = to_utc(node.created_at)
        since = "now" if created is None else f"since {created:%Y-%m-%dT%H:%M:%SZ}"
        if former and node.machine:
            found[name] = f"Another machine has this name {since}: {node.machine}, before {former}.", node.created_at
        else:
            found[name] = f"Registered again {since}, after it was blocked: it may be another machine.", None
    return found


def _machine_of(block: BlockedNode, node: KubernetesNode | None, known: Mapping[str, str], name: str) -> str | None:
    """The machine that was blocked; None if that is not known."""
    if node is None:
        return known.get(name)
    if node.created_at is None or node.created_at <= block.start + _CLOCK_MARGIN:
        return node.machine or None
    return known.get(name) or parse_mark(node.mark).get(_MACHINE) or None


def _targets(
    desired: DesiredState, names: NodeNames, nodes: Mapping[str, KubernetesNode], machines: Mapping[str, str]
) -> tuple[dict[str, _Target], dict[str, str], list[str]]:
    """The nodes to block by name, the ids that are refused with the reason, and those that mean no node."""
    ids: defaultdict[str, list[str]] = defaultdict(list)
    refused, unmatched = {}, []
    for node_id in sorted(desired.nodes):
        found = names.meant_by(node_id)
        for name in found:
            ids[name].append(node_id)
        if (why := names.ambiguity(node_id)) is not None:
            refused[node_id] = why
        elif not found:
            unmatched.append(node_id)
    targets = {name: _target(desired, name, node_ids, nodes.get(name), machines) for name, node_ids in ids.items()}
    return targets, refused, unmatched


def _target(
    desired: DesiredState,
    name: str,
    ids: Sequence[str],
    node: KubernetesNode | None,
    machines: Mapping[str, str],
) -> _Target:
    block = merged_block(name, (desired.nodes[node_id] for node_id in ids))
    machine = _machine_of(block, node, machines, name)
    authors = (author_of(desired.claims.get(node_id, ())) for node_id in ids)
    by = ", ".join(dict.fromkeys(author for author in authors if author)) or None
    cause = block.cause if len(block.cause) <= MAX_CAUSE else block.cause[:MAX_CAUSE] + "…"
    mark = BlockMark(until=format_end(block), action=block.action.short_name, cause=cause, by=by, machine=machine)
    return _Target(block=block, ids=tuple(ids), mark=mark)
