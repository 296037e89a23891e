"""What a scenario is made of: steps, and what each party must hear after each of them."""

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
    """How a node is to be blocked, or said to be. A brief block ends by itself soon, any other never."""

    cause: str = "disk"
    action: BlockAction = MARK
    brief: bool = False


@dataclass(frozen=True, kw_only=True)
class Told:
    """One call: the nodes that are blocked, and those that are free and why. A snapshot is the whole list."""

    blocked: Mapping[str, Node] = field(default_factory=dict)
    unblocked: Mapping[str, str] = field(default_factory=dict)
    snapshot: bool = False


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
    """A party takes its registration back."""

    party: str


@dataclass(frozen=True)
class Block:
    """Nodes are blocked in one request; `refused` says that it must fail for a conflict."""

    nodes: Mapping[str, Node]
    merge: bool = False
    refused: bool = False


@dataclass(frozen=True)
class Unblock:
    node: str


@dataclass(frozen=True)
class Expire:
    """The time of all brief blocks passes."""


@dataclass(frozen=True)
class Report:
    """A party says where its TaskManagers are."""

    party: str
    task_managers: Mapping[str, str]


Action = Register | Leave | Block | Unblock | Expire | Report


@dataclass(frozen=True)
class Step:
    """`hears` is, by party, the one call that it must get for this; a party that is not there must get none.

    `blocked` says of TaskManagers whether they are blocked afterwards; None for one that nobody knows.
    """

    action: Action
    hears: Mapping[str, Told] = field(default_factory=dict)
    blocked: Mapping[str, bool | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Scenario:
    name: str
    steps: tuple[Step, ...]


def scenario(name: str, *steps: Step) -> Scenario:
    return Scenario(name, steps)
