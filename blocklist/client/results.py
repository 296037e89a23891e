"""What methods of BlocklistClient return, apart from values of the model and bodies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from blocklist.model.node import BlockedNode
    from blocklist.wire.inventory import KnownNodeBody
    from blocklist.wire.node_status import NodeStatusBody


@dataclass(frozen=True, slots=True)
class AppliedCount:
    """How many live listeners had applied a change, and their total number.

    `missing` are the ids of some that had not applied it yet, `refused` of some that do not carry it out. `superseded`
    are nodes that were unblocked or became canaries meanwhile, or were blocked again if the change unblocked them: then
    `applied` is 0.
    """

    applied: int
    total: int
    missing: tuple[str, ...]
    refused: tuple[str, ...] = ()
    superseded: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether there is a live listener, and all of them have applied the change."""
        return 0 < self.total == self.applied

    @classmethod
    def of_status(cls, status: NodeStatusBody) -> Self:
        """The numbers for the last change of a node."""
        missing = tuple(one.id for one in status.listeners if not one.applied and one.refused is None)
        refused = tuple(one.id for one in status.listeners if not one.applied and one.refused is not None)
        return cls(status.applied, status.of, missing, refused)

    def and_also(self, other: Self) -> Self:
        """The result for this change and another one: a listener counts if it has applied both."""
        refused = tuple(dict.fromkeys((*self.refused, *other.refused)))
        missing = tuple(name for name in dict.fromkeys((*self.missing, *other.missing)) if name not in refused)
        total = max(self.total, other.total)
        applied = max(0, min(self.applied, other.applied, total - len(missing) - len(refused)))
        superseded = (*self.superseded, *other.superseded)
        return replace(self, applied=applied, total=total, missing=missing, refused=refused, superseded=superseded)

    def with_refused(self, listeners: Iterable[str]) -> Self:
        """The result if these listeners have refused a part of the change as well."""
        more = [name for name in listeners if name not in self.refused + self.missing]
        return replace(self, applied=max(0, self.applied - len(more)), refused=(*self.refused, *more))


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockNodesResult:
    """The blocked nodes, which of them were merged, and how many listeners have applied it (None without `wait`).

    `unknown` are those that no listener knows, with a similar node that one knows, or None; `ambiguous` are those that
    several nodes claim, with the ids of these. `warnings` are sentences for people, such as that no node has a label of
    the selector.
    """

    nodes: Mapping[str, BlockedNode]
    merged: frozenset[str]
    applied: AppliedCount | None
    unknown: Mapping[str, str | None] = field(default_factory=dict)
    ambiguous: Mapping[str, Sequence[str]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class UnblockResult:
    """The name under which the node was blocked, and how many listeners have applied it (None without `wait`)."""

    id: str
    applied: AppliedCount | None


@dataclass(frozen=True, kw_only=True, slots=True)
class UnblockSelectedResult:
    """The selected nodes: those that were unblocked, with the names under which they were blocked, and the others.

    `applied` is how many listeners have applied it (None without `wait`); `warnings` are as in BlockNodesResult.
    """

    unblocked: Mapping[str, str]
    not_blocked: frozenset[str]
    applied: AppliedCount | None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownNodeListing:
    """Nodes that anybody reports; `warnings` are as in NodeListing."""

    nodes: tuple[KnownNodeBody, ...]
    warnings: tuple[str, ...]
