"""What the event logs say of one node, as the verdicts read it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

SLOWDOWN_THRESHOLD: Final = 1.5
"""A task or node is slow that takes so many times what its peers take (FLIP-168)."""


class FailureClass(StrEnum):
    """Classes of failures. Only the first five are charged to a machine."""

    DISK_FULL = "disk full"
    IO_ERROR = "I/O error"
    LOST_EXECUTOR = "lost executor"
    FETCH = "fetch failure"
    SLOW_SERVER = "slow to serve shuffle blocks"
    MEMORY = "out of memory"
    USER = "user exception"
    OTHER = "other"


CHARGED_TO_NODE: Final = (
    FailureClass.DISK_FULL,
    FailureClass.IO_ERROR,
    FailureClass.LOST_EXECUTOR,
    FailureClass.FETCH,
    FailureClass.SLOW_SERVER,
)
COUNTED_BY_TASK: Final = (FailureClass.DISK_FULL, FailureClass.IO_ERROR)
"""Those that are counted in tasks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureCounts:
    """Failures of one class on one node, and on all nodes together; `last` is the moment of the last one in Unix ms.

    A lost executor or server fails many tasks at once, so those are counted in stages. A full or broken disk fails each
    task by itself, and where Spark avoids the host after the second, there are few stages: those are counted in tasks.
    """

    stages: int
    tasks: int
    applications: int
    all_stages: int
    all_tasks: int
    last: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSummary:
    """What the event logs say of one node.

    `stages` are those in which it could be compared with its peers, `slow_stages` those in which it was slow, and
    `expected` the number of these that a node taken at random would have had. `slowdown` is the median over the
    stages, `slow_last` the end of the last task (Unix ms) in a stage in which it was slow, and `share` the node's part
    of all tasks.
    """

    host: str
    tasks: int = 0
    applications: int = 0
    stages: int = 0
    slow_stages: int = 0
    slow_applications: int = 0
    expected: float = 0.0
    slowdown: float = 1.0
    slow_last: int = 0
    share: float = 0.0
    failures: Mapping[FailureClass, FailureCounts] = field(default_factory=dict)
    exclusions: int = 0
