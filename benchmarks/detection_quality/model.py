"""The model of task times, in milliseconds, that all synthetic runs share.

A task's work is the stage's usual time x its relative size x log-normal noise; one task in a hundred is a straggler
with a Pareto tail. A host has a small lasting bias, and another one in each application (placement, page cache). The
first tasks of an executor are slower. GC, fetch wait and shuffle writes are added as shares of the work. Measured
against real logs: see docs/evidence/detection-figures.md and `python -m benchmarks.detection_quality.measure`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import exp
from typing import Final

TAIL_SHARE: Final = 0.01
"""Share of the tasks in the heavy tail."""
HOST_SD: Final = 0.03
"""Standard deviation of the logarithm of a host's lasting bias."""
PLACEMENT_SD: Final = 0.04
"""Standard deviation of the logarithm of a host's bias within one application."""
GC_SHARE: Final = 0.03
WAIT_SHARE: Final = 0.05
WRITE_SHARE: Final = 0.06
"""Mean GC, fetch wait and shuffle write time as shares of the work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageModel:
    """What the tasks of a stage have in common. `noise`: standard deviation of the logarithm of the work.

    `shuffled`: reads blocks of other hosts. `writes`: writes blocks. `gpu`: needs a device.
    `remote_factor`: the time of a task that reads its input from another host.
    """

    tasks: int
    usual_ms: float
    noise: float
    bytes: float
    shuffled: bool
    writes: bool
    gpu: bool = False
    remote_factor: float = 1.3
    size_spread: float = 0.05
    warm_up: float = 1.0
    warm_up_tasks: float = 1.0


def draw_stage(dice: random.Random, slots: int, *, first: bool) -> StageModel:
    """Draw a stage: two to four tasks per slot; the first stage of an application reads its input."""
    return StageModel(
        tasks=round(slots * dice.uniform(2, 4)),
        usual_ms=min(20_000.0, max(200.0, dice.lognormvariate(7.3, 0.8))),
        noise=min(0.35, max(0.06, dice.lognormvariate(-1.9, 0.5))),
        bytes=dice.lognormvariate(17, 1),
        shuffled=not first,
        writes=dice.random() < 0.7,
        gpu=dice.random() < 0.4,
    )


def draw_size(stage: StageModel, dice: random.Random) -> float:
    """The size of a task relative to the usual one."""
    return dice.lognormvariate(0, stage.size_spread)


def draw_work(stage: StageModel, size: float, earlier: int, dice: random.Random) -> float:
    """The work of a task on a healthy host of no bias, `earlier` tasks after its executor began."""
    tail = min(10.0, dice.paretovariate(1.2) + 1) if dice.random() < TAIL_SHARE else 1.0
    warming = 1 + stage.warm_up * exp(-earlier / stage.warm_up_tasks)
    return stage.usual_ms * size * dice.lognormvariate(0, stage.noise) * tail * warming
