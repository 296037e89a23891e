"""What every manager's plan is made of, and what a manager is. Pure.

A manager is a reconciliation: what the list says against what the cluster manager says now. It keeps nothing of its
own that a restart would lose, so it may be ended at any point, and doing it twice is free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeVar

from blocklist.model.node import BlockAction, BlockedNode
from blocklist.model.time import to_utc


class ManagerError(Exception):
    """The cluster manager could not be asked, or did not do what it was told; try again later."""


class StepAction(StrEnum):
    """What a step does to a node."""

    BLOCK = "block"
    EVACUATE = "evacuate"
    FREE = "free"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanStep:
    """One thing to do. `name` is the node as the cluster manager names it, `reason` a sentence."""

    action: StepAction
    name: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ManagerPlan:
    """What to do; nothing where all is as the list says. `refused` are ids that it does not carry out, and why.

    `all_nodes` are the names of all nodes that the cluster manager has, None where planning does not show them.
    """

    steps: tuple[PlanStep, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    all_nodes: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DesiredState:
    """What the list says at a revision: the nodes that are blocked now, by id."""

    revision: int
    nodes: Mapping[str, BlockedNode] = field(default_factory=dict)


P = TypeVar("P", bound=ManagerPlan)


class Manager(Protocol[P]):
    """A way to one cluster manager. Both methods may block for as long as its commands take."""

    def plan(self, desired: DesiredState) -> P:
        """Look at what is, and decide. Changes nothing. Raises ManagerError."""

    def apply(self, plan: P) -> Mapping[str, str]:
        """Do it; returns what was refused in doing so. Raises ManagerError; what was done until then stands."""


def action_for(node: BlockedNode) -> StepAction:
    """What the list asks for."""
    return StepAction.EVACUATE if node.action is BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS else StepAction.BLOCK


def format_end(node: BlockedNode) -> str:
    """`until 2026-11-21T12:00:00Z`, in UTC and rounded up to the second, or `without end`."""
    if node.permanent:
        return "without end"
    moment = to_utc(-(-node.end // 1000) * 1000)
    return f"until {node.end}" if moment is None else f"until {moment:%Y-%m-%dT%H:%M:%SZ}"
