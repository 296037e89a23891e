"""The parts of a scenario: steps, and the notification that each party must receive after each step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from blocklist.model.node import BlockAction

MARK: Final = BlockAction.MARK_BLOCKED
EVACUATE: Final = BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS
JM: Final = "JOB_MASTER"
RM: Final = "RESOURCE_MANAGER"


@dataclass(frozen=True)
class Node:
    """How a node is blocked. A brief block expires soon, any other never."""

    cause: str = "disk"
    action: BlockAction = MARK
    brief: bool = False


@dataclass(frozen=True, kw_only=True)
class Notification:
    """One notification: nodes that are blocked, and unblocked nodes with the reason. A snapshot is the whole list."""

    blocked: Mapping[str, Node] = field(default_factory=dict)
    unblocked: Mapping[str, str] = field(default_factory=dict)
    snapshot: bool = False

    @property
    def tells_nothing(self) -> bool:
        """Whether FLIP-224 has no call for it: a ResourceManager that registers on an empty list hears that it is
        empty, so that it frees what it may still block, and acknowledges that.
        """
        return self.snapshot and not self.blocked


@dataclass(frozen=True, kw_only=True)
class Register:
    """A party registers; two parties with one `listener` are two sessions of it."""

    party: str
    role: str = JM
    listener: str = ""

    @property
    def id(self) -> str:
        return self.listener or self.party


@dataclass(frozen=True)
class Leave:
    """A party deregisters."""

    party: str


@dataclass(frozen=True)
class Block:
    """Nodes are blocked in one request; with `refused` it must fail with a conflict."""

    nodes: Mapping[str, Node]
    merge: bool = False
    refused: bool = False


@dataclass(frozen=True)
class Unblock:
    node: str


@dataclass(frozen=True)
class Expire:
    """All brief blocks expire."""


@dataclass(frozen=True)
class Report:
    """A party reports its TaskManagers."""

    party: str
    task_managers: Mapping[str, str]


Action = Register | Leave | Block | Unblock | Expire | Report


@dataclass(frozen=True)
class Step:
    """`notifies` maps each party to the one notification that it must receive; other parties must receive none.

    `blocked` maps TaskManagers to whether they are blocked afterwards; None for an unknown one.
    """

    action: Action
    notifies: Mapping[str, Notification] = field(default_factory=dict)
    blocked: Mapping[str, bool | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Scenario:
    name: str
    steps: tuple[Step, ...]


def scenario(name: str, *steps: Step) -> Scenario:
    return Scenario(name, steps)
