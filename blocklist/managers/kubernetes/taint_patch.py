"""What a node needs so that it carries the taint and the annotation, or no longer does: a JSON patch. Pure.

Only entries of this manager are added, changed or removed. Each operation on the list of taints has a `test` before it,
so that the API server refuses the patch when the list has changed: then read the node and decide again. Measured with
concurrent writers: no taint of others is lost, and none of this manager's through writers that do the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from blocklist.managers.kubernetes.kubernetes_node import NO_SCHEDULE, KubernetesNode, parse_mark

_MANAGER: Final = "manager"
_BY: Final = "by"


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnTaint:
    """The key of taint and annotation; the value tells this manager's taint from that of another one."""

    key: str
    value: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{NO_SCHEDULE}"


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockMark:
    """What the annotation says of the block: `until` and `cause` for people, `by` who blocked it, None if unknown."""

    until: str
    action: str
    cause: str
    by: str | None = None

    def text(self, taint: OwnTaint) -> str:
        fields = {"blocked": self.until, "action": self.action, "cause": self.cause, _BY: self.by}
        return json.dumps({**fields, _MANAGER: taint.value}, ensure_ascii=False)


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
    marked = parse_mark(node.mark).get(_MANAGER) == taint.value
    if wanted is None:
        return _release(node, index if own else None, taint, marked=marked)
    annotate = _annotate(node, wanted, taint)
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


def _release(node: KubernetesNode, index: int | None, taint: OwnTaint, *, marked: bool) -> Assessment:
    operations: list[Mapping[str, Any]] = []
    if index is not None:
        path = f"/spec/taints/{index}"
        operations += [_test(path, node.taints[index].fields), {"op": "remove", "path": path}]
    if marked:
        operations += [_test(_annotation(taint), node.mark), {"op": "remove", "path": _annotation(taint)}]
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
    # Who blocked it may be unknown after a restart: that alone is no change.
    by = present.get(_BY) if wanted.by is None else wanted.by
    if present | {_BY: by} == parse_mark(text) | {_BY: by} and present.get(_BY) == by:
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
