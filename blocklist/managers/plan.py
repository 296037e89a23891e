"""The plan that every manager makes, and the interface of a manager. Pure.

A manager reconciles: it compares the list with the current state of the cluster manager and applies the difference. It
has no state of its own that a restart would lose, so it may be stopped at any point, and applying twice is harmless.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import reduce
from typing import Protocol, TypeVar, runtime_checkable

from blocklist.model.claims import Claims
from blocklist.model.node import BlockAction, BlockedNode, merge
from blocklist.model.reported_node import NodeFacts
from blocklist.model.time import to_utc


class ManagerError(Exception):
    """The cluster manager could not be read or changed; retry later. The message is a sentence for the operator.

    `refused` are all blocks that are known not to be in force, or no longer known to be, node id to reason: it is
    reported without an acknowledgement. None: it is not known whether any of them is.
    """

    def __init__(self, message: str, *, refused: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.refused = refused


class TransientError(ManagerError):
    """An outage that is too short to say that anything is unknown: the last report stands."""


class StepAction(StrEnum):
    BLOCK = "block"
    EVACUATE = "evacuate"
    FREE = "free"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanStep:
    """One action. `name` is the node's name in the cluster manager; `reason` is a sentence."""

    action: StepAction
    name: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ManagerPlan:
    """The steps that are missing, and the blocks that cannot be carried out: `refused`, node id to reason.

    `all_nodes` are all nodes of the cluster manager with what it knows about them, `unschedulable` those that get no
    work for another reason than a block, with their states, `schedulable` blocked ones that get work although the block
    was applied, with reasons; None if planning does not show them. `containers` is what runs on blocked nodes: an id
    for each group of containers to its node and their number; None if it is not known.
    """

    steps: tuple[PlanStep, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    all_nodes: Sequence[NodeFacts] | None = None
    unschedulable: Mapping[str, str] | None = None
    schedulable: Mapping[str, str] | None = None
    containers: Mapping[str, tuple[str, int]] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DesiredState:
    """The blocked nodes at a revision of a history, by id. `claims` are those on them, as far as they are known."""

    revision: int
    history: str | None = None
    nodes: Mapping[str, BlockedNode] = field(default_factory=dict)
    claims: Mapping[str, Claims] = field(default_factory=dict)


P = TypeVar("P", bound=ManagerPlan)


class Manager(Protocol[P]):
    """One cluster manager. Both methods block while their commands run."""

    def plan(self, desired: DesiredState) -> P:
        """Compare the cluster manager with `desired`. Changes nothing. Raises ManagerError."""

    def apply(self, plan: P) -> Mapping[str, str]:
        """Carry out the plan; returns what was refused meanwhile, node id to reason.

        Raises ManagerError; steps that were carried out before it remain.
        """


@runtime_checkable
class Stoppable(Protocol):
    """A manager that can end a plan or an application early."""

    def stop(self) -> None:
        """End it with a ManagerError, within a second, or as soon as what must not stay half done is finished.

        Call it from any thread or signal handler.
        """


def merged_block(name: str, blocks: Iterable[BlockedNode]) -> BlockedNode:
    """One block for a node that several ids mean, with the node's name as its id."""
    return reduce(merge, (replace(block, id=name) for block in blocks))


def evacuates(node: BlockedNode) -> bool:
    return node.action is BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS


def block_step(name: str, node: BlockedNode, reason: str) -> PlanStep:
    """A step for a node that is blocked or evacuated."""
    return PlanStep(action=StepAction.EVACUATE if evacuates(node) else StepAction.BLOCK, name=name, reason=reason)


def free_steps(names: Iterable[str]) -> list[PlanStep]:
    """A step for each node that is no longer blocked."""
    return [PlanStep(action=StepAction.FREE, name=name, reason=f"Node {name} is no longer blocked.") for name in names]


def format_end(node: BlockedNode) -> str:
    """`until 2026-11-21T12:00:00Z`, in UTC and rounded up to the second, or `without end`."""
    if node.permanent:
        return "without end"
    end = to_utc(-(-node.end // 1000) * 1000)
    return f"until {node.end}" if end is None else f"until {end:%Y-%m-%dT%H:%M:%SZ}"
