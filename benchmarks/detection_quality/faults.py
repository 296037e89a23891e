"""Kinds of runs in which one host, or two, are faulty."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from benchmarks.detection_quality.conditions import Conditions, Moment, TaskFailure

Draw = Callable[[random.Random, int], Conditions]
"""Draws the conditions of a run on this number of hosts."""
_SPARK_ERROR: Final = "org.apache.spark.SparkException"
_FULL = TaskFailure("ExceptionFailure", _SPARK_ERROR, "Task failed: java.io.IOException: No space left on device")
_IO = TaskFailure("ExceptionFailure", "java.io.IOException", "Input/output error")
_MEMORY = TaskFailure("ExceptionFailure", "java.lang.IllegalStateException", "Corrupt row: checksum does not match")
_NO_GPU = TaskFailure("ExceptionFailure", "ai.rapids.cudf.CudaException", "no CUDA-capable device is detected")
_OUT_OF_MEMORY = TaskFailure("ExecutorLostFailure", None, "Container exited with a non-zero exit code 137", lost=True)
_PERIOD_MS: Final = 100_000


def _slow(low: float, high: float) -> Draw:
    def draw(dice: random.Random, hosts: int) -> Conditions:
        faulty, factor = dice.randrange(hosts), dice.uniform(low, high)
        return Conditions(faulty=frozenset({faulty}), compute=lambda it: factor if it.host == faulty else 1.0)

    return draw


def _later(dice: random.Random, hosts: int) -> Conditions:
    faulty, factor, past = dice.randrange(hosts), dice.uniform(2, 3), dice.randint(3, 8)
    return Conditions(
        faulty=frozenset({faulty}),
        past=past,
        compute=lambda it: factor if it.host == faulty and it.application >= past else 1.0,
    )


def _decay(dice: random.Random, hosts: int) -> Conditions:
    faulty, step = dice.randrange(hosts), dice.uniform(1.3, 1.4)
    return Conditions(
        faulty=frozenset({faulty}),
        past=3,
        compute=lambda it: step ** max(0, it.application - 2) if it.host == faulty else 1.0,
    )


def _tenth_of_the_time(dice: random.Random, hosts: int) -> Conditions:
    faulty, factor, phase = dice.randrange(hosts), dice.uniform(4, 6), dice.uniform(0, _PERIOD_MS)

    def compute(it: Moment) -> float:
        bad = it.host == faulty and (it.time + phase) % _PERIOD_MS < _PERIOD_MS / 10
        return factor if bad else 1.0

    return Conditions(faulty=frozenset({faulty}), compute=compute)


def _network(dice: random.Random, hosts: int) -> Conditions:
    """Slow both ways: it waits for all it fetches, the others for what they fetch from it."""
    faulty, factor = dice.randrange(hosts), dice.uniform(20, 40)
    others = 1 + factor * dice.uniform(0.05, 0.3)
    return Conditions(faulty=frozenset({faulty}), wait=lambda it: factor if it.host == faulty else others)


def _server(dice: random.Random, hosts: int) -> Conditions:
    faulty, factor = dice.randrange(hosts), dice.uniform(15, 30)
    return Conditions(faulty=frozenset({faulty}), wait=lambda it: 0.5 if it.host == faulty else factor)


def _disk_write(dice: random.Random, hosts: int) -> Conditions:
    faulty, factor = dice.randrange(hosts), dice.uniform(5, 20)
    return Conditions(faulty=frozenset({faulty}), write=lambda it: factor if it.host == faulty else 1.0)


def _failing(failures: Sequence[TaskFailure], low: float, high: float, *, writes: bool = False) -> Draw:
    def draw(dice: random.Random, hosts: int) -> Conditions:
        faulty, share, failure = dice.randrange(hosts), dice.uniform(low, high), dice.choice(failures)

        def fail(it: Moment) -> TaskFailure | None:
            hit = it.host == faulty and (it.stage.writes or not writes) and it.dice.random() < share
            return failure if hit else None

        return Conditions(faulty=frozenset({faulty}), failure=fail)

    return draw


def _no_gpu(dice: random.Random, hosts: int) -> Conditions:
    faulty = dice.randrange(hosts)
    return Conditions(
        faulty=frozenset({faulty}), failure=lambda it: _NO_GPU if it.host == faulty and it.stage.gpu else None
    )


def _ends(dice: random.Random, hosts: int) -> Conditions:
    """Each task fails there within a second, so the host takes more and more of them."""
    faulty, failure = dice.randrange(hosts), dice.choice((_NO_GPU, _MEMORY))._replace(at_once=True)
    return Conditions(faulty=frozenset({faulty}), ends=True, failure=lambda it: failure if it.host == faulty else None)


def _fetch(dice: random.Random, hosts: int) -> Conditions:
    faulty, share = dice.randrange(hosts), dice.uniform(0.02, 0.05)
    failure = TaskFailure("FetchFailed", None, "Failed to connect", served_by=faulty)
    return Conditions(
        faulty=frozenset({faulty}),
        failure=lambda it: failure if it.host != faulty and it.stage.shuffled and it.dice.random() < share else None,
    )


def _two(dice: random.Random, hosts: int) -> Conditions:
    """They begin to be slow at different times."""
    first, second = dice.sample(range(hosts), 2)
    factors = {first: (0, dice.uniform(2, 3)), second: (2, dice.uniform(2, 3))}

    def compute(it: Moment) -> float:
        since, factor = factors.get(it.host, (0, 1.0))
        return factor if it.application >= since else 1.0

    return Conditions(faulty=frozenset({first, second}), past=2, compute=compute)


FAULTS: Final[dict[str, Draw]] = {
    "1.5 times slower": _slow(1.4, 1.6),
    "2 times slower": _slow(1.9, 2.2),
    "3 times slower": _slow(2.8, 4),
    "2 to 3 times slower after a healthy past": _later,
    "gradual decay, a third more with each application": _decay,
    "4 to 6 times slower in a tenth of the time": _tenth_of_the_time,
    "network slow both ways": _network,
    "slow to serve shuffle blocks": _server,
    "disk writes slowly": _disk_write,
    "bad memory: tasks fail there": _failing([_MEMORY], 0.1, 0.3),
    "native out of memory: executors are lost": _failing([_OUT_OF_MEMORY], 0.05, 0.15),
    "no GPU": _no_gpu,
    "no GPU, and applications end by it": _ends,
    "disk full or broken": _failing([_FULL, _IO], 0.2, 0.5, writes=True),
    "fetch failures": _fetch,
    "two hosts, 2 to 3 times slower": _two,
}
