"""Healthy runs and runs with one faulty host, three of each kind; all random choices come from the seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Final

from benchmarks.harness import unless_quick

HOSTS: Final = tuple(f"127.0.0.{number}" for number in range(2, 8))
KINDS: Final = ("sort", "join", "aggregate", "iterate")
APPLICATIONS: Final = 3

RUNS_EACH: Final = 3
"""Number of runs of each kind."""
HEALTHY: Final = ("uniform", "skew", "mixed", "cache", "exceptions", "few")
"""The shape of the data, or a problem that is not the host's fault."""
FAULTY: Final = ("both-ways", "failing", "paused", "half", "disk", "killed", "network")
"""Faults, see faults.describe; the shape of their data is random."""
SHORT: Final = 7
"""Number of runs that `--quick` makes: four with a fault, in half an hour."""
TASKS: Final = 8 * len(HOSTS)
"""Minimum number of tasks of a stage."""

FIRST_SEED: Final = 201
"""Of the runs. Rules were tuned on those before."""

_SHAPES: Final = ("uniform", "uniform", "skew", "mixed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Application:
    """One application: its kind, and the number of records of each input file, which is one task.

    `work` is the number of arithmetic steps per record, `reducers` the number of tasks after a shuffle, `hot` the share
    of records with the same key.
    """

    kind: str
    files: tuple[int, ...]
    work: int
    reducers: int
    hot: float
    trouble: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Three applications, one after the other, on six hosts; `faulty` has the fault of the scenario."""

    name: str
    seed: int
    scenario: str
    shape: str
    faulty: str | None
    applications: tuple[Application, ...]


def runs() -> list[Run]:
    """Return all runs, healthy and faulty in turn, so that the first dozen has both."""
    in_turn = chain.from_iterable(zip_longest(FAULTY * RUNS_EACH, HEALTHY * RUNS_EACH))
    names = [name for name in in_turn if name is not None]
    return [_run(seed, scenario) for seed, scenario in enumerate(names[: unless_quick(None, SHORT)], start=FIRST_SEED)]


def _run(seed: int, scenario: str) -> Run:
    draw = random.Random(seed)
    faulty = draw.choice(HOSTS) if scenario in FAULTY else None
    shape = draw.choice(_SHAPES) if scenario in FAULTY else scenario
    kinds = draw.sample(KINDS, APPLICATIONS)
    if shape == "cache" and "iterate" not in kinds:
        kinds[draw.randrange(APPLICATIONS)] = "iterate"
    applications = [_application(draw, kind, shape) for kind in kinds]
    if shape == "exceptions":  # one bad application between two good ones
        applications[1] = _application(draw, kinds[1], shape, draw.choice(("flaky", "broken")))
    name = f"{seed:02d}-{scenario}"
    return Run(name=name, seed=seed, scenario=scenario, shape=shape, faulty=faulty, applications=tuple(applications))


def _application(draw: random.Random, kind: str, shape: str, trouble: str | None = None) -> Application:
    count = draw.randint(3, 5) if shape == "few" else draw.randint(TASKS, TASKS + 8)
    if shape == "cache" and kind == "iterate":
        trouble = "half-cached"
    return Application(
        kind=kind,
        files=tuple(_records(draw, shape, count)),
        work=draw.randint(30, 60),
        reducers=count if shape == "few" else draw.randint(TASKS, TASKS + 8),
        hot=draw.uniform(0.2, 0.4) if shape == "skew" else 0.0,
        trouble=trouble,
    )


def _records(draw: random.Random, shape: str, count: int) -> list[int]:
    """Return the number of records of each file: similar, a few with far more, or all sizes."""
    usual = draw.randint(250, 400)
    if shape == "mixed":
        return [int(usual * min(8.0, draw.lognormvariate(0, 0.8))) + 20 for _ in range(count)]
    files = [int(usual * draw.uniform(0.93, 1.07)) for _ in range(count)]
    if shape == "skew":
        for place in draw.sample(range(count), draw.randint(2, 4)):
            files[place] *= draw.randint(5, 10)
    return files
