"""What differs from a healthy, uniform cluster in a run: the hooks that kinds of runs fill in."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.detection_quality.model import StageModel


class Moment(NamedTuple):
    """A task as it starts: number of the application, host, Unix ms, stage, partition."""

    application: int
    host: int
    time: float
    stage: StageModel
    partition: int
    dice: random.Random


class TaskFailure(NamedTuple):
    """How a task fails. `lost`: the executor is gone with it. `served_by`: the host that did not serve.

    `at_once`: within a second, whatever the task was to do.
    """

    outcome: str
    error: str | None
    message: str
    lost: bool = False
    served_by: int | None = None
    at_once: bool = False


def _one(_: Moment) -> float:
    return 1.0


def _no_failure(_: Moment) -> TaskFailure | None:
    return None


def _unchanged(stage: StageModel, _: random.Random) -> StageModel:
    return stage


@dataclass(frozen=True, kw_only=True, slots=True)
class Conditions:
    """Factors and failures of each task; by default those of a healthy, uniform cluster.

    `compute`, `wait` and `write` multiply the task's work, its fetch wait and its shuffle write time. `joins`: when a
    host joins an application, as a share of its usual duration. `past`: number of applications before the fault.
    `groups`: the group of hosts by an operator's labels. `gap_ms`: usual time between two applications. `clock`: how
    far the clock of an application's driver is ahead, in ms. `ends`: whether a task that fails four times ends its
    application, as in Spark; otherwise the hosts where it failed are avoided.
    """

    faulty: frozenset[int] = frozenset()
    past: int = 0
    compute: Callable[[Moment], float] = _one
    wait: Callable[[Moment], float] = _one
    write: Callable[[Moment], float] = _one
    remote: Callable[[Moment], bool] = lambda moment: moment.dice.random() < 0.1
    failure: Callable[[Moment], TaskFailure | None] = _no_failure
    stage: Callable[[StageModel, random.Random], StageModel] = _unchanged
    joins: Callable[[int, int, random.Random], float] = lambda _application, _host, _dice: 0.0
    groups: Mapping[int, str] = field(default_factory=dict)
    clock: Callable[[int], float] = lambda _application: 0.0
    gap_ms: float = 1_200_000
    ends: bool = False
