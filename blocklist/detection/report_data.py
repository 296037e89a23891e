"""The numbers behind the pictures of the report. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from blocklist.detection.evidence import HostInApplication
from blocklist.detection.heuristics import NodeFinding
from blocklist.detection.node_summary import CHARGED_TO_NODE, FailureClass

MAX_STAGES: Final = 12
"""Maximum number of stages in the pictures of a finding: those in which the node spent most time, or failed most."""
INTERVALS: Final = 40
"""Number of intervals between the quantiles of the times of a group of tasks."""
BINS: Final = 60
"""Number of bins of failures over time."""
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Suspect:
    """A node with findings; evidence before `since` (Unix ms) does not count."""

    host: str
    findings: Sequence[NodeFinding]
    since: int = 0

    @property
    def failure_classes(self) -> Sequence[FailureClass]:
        """Those that are looked at over time: of its findings if it fails, else all that are events of a machine."""
        found = [it.subject for it in self.findings if isinstance(it.subject, FailureClass)]
        return found or [it for it in CHARGED_TO_NODE if it is not FailureClass.SLOW_SERVER]


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """The times of a group of tasks: their median, and quantiles from the smallest to the largest."""

    tasks: int
    hosts: int
    median: float
    quantiles: Sequence[float]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTimes:
    """A stage in which a node was compared with its peers.

    The times are seconds; seconds per GB by the metrics of network and disk. `slowdown` is the factor that the verdict
    counts: it divides out larger tasks. For a slow server, the times are fetch wait, and the factor that of its peers.
    """

    app: str
    stage: int
    attempt: int
    last: int
    slowdown: float
    slow: bool
    own: Spread
    peers: Spread


@dataclass(frozen=True, kw_only=True, slots=True)
class StageFailures:
    """Failures in a stage: `own` are charged to the node, `others` to its peers, at most `peer_max` to one of them.

    `own_tasks` and `peer_tasks` are all that ended there, `peer_hosts` the number of peers.
    """

    app: str
    stage: int
    attempt: int
    last: int
    own: int
    own_tasks: int
    others: int
    peer_max: int
    peer_tasks: int
    peer_hosts: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Stages(Generic[T]):
    """The stages of a finding that are shown, in the order of time; in `total` there are more, `slow` of them slow."""

    shown: Sequence[T]
    total: int
    slow: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureBin:
    """Failures in one of BINS parts of a span of time: charged to a node, to all others, and to the worst of these."""

    column: int
    own: int
    others: int
    peer_max: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ApplicationTotal:
    """An application: its name, if the log has one, and the time of all its tasks in ms."""

    name: str | None
    time_ms: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LogTotals:
    """What was read: the times of the first and the last event (Unix ms; None without events), and numbers.

    `time_ms` is the time of all tasks.
    """

    begin: int | None
    end: int | None
    applications: int
    time_ms: int
    stages: int


FindingKey = tuple[str, str]
"""The host and the subject of a finding."""
Runs = Mapping[str, Sequence[HostInApplication]]
"""What applications show about a host, in the order of time."""
Spans = Mapping[str, tuple[int, int]]
"""From when until when (Unix ms) a host is looked at."""
