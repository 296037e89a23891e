"""Kinds of healthy runs: what looks like a faulty host and is none."""

from __future__ import annotations

import random
from dataclasses import replace
from math import pi, sin
from typing import Final

from benchmarks.detection_quality.conditions import Conditions, Moment, TaskFailure
from benchmarks.detection_quality.faults import Draw

_BUG = TaskFailure("ExceptionFailure", "java.lang.NumberFormatException", 'For input string: "n/a"')
_LOST = TaskFailure("ExecutorLostFailure", None, "Executor heartbeat timed out after 140000 ms", lost=True)
_HOUR_MS: Final = 3_600_000


def _uniform(_dice: random.Random, _hosts: int) -> Conditions:
    return Conditions()


def _types(share: float) -> Draw:
    """A share of the hosts is slower by design; nobody said which."""

    def draw(dice: random.Random, hosts: int) -> Conditions:
        slower, factor = frozenset(dice.sample(range(hosts), max(2, round(share * hosts)))), dice.uniform(1.4, 2.2)
        return Conditions(compute=lambda it: factor if it.host in slower else 1.0)

    return draw


def _labelled_type(dice: random.Random, hosts: int) -> Conditions:
    slower, factor = dice.randrange(hosts), dice.uniform(1.5, 2.2)
    groups = {host: "small" if host == slower else "large" for host in range(hosts)}
    return Conditions(compute=lambda it: factor if it.host == slower else 1.0, groups=groups)


def _neighbour(dice: random.Random, hosts: int) -> Conditions:
    """Five minutes, in which one application follows another."""
    host, factor, begin = dice.randrange(hosts), dice.uniform(2, 4), dice.uniform(0, 600_000)

    def compute(it: Moment) -> float:
        return factor if it.host == host and begin <= it.time % (24 * _HOUR_MS) <= begin + 300_000 else 1.0

    return Conditions(compute=compute, gap_ms=5_000)


def _skew(dice: random.Random, _hosts: int) -> Conditions:
    spread = dice.uniform(0.7, 1.3)
    return Conditions(stage=lambda stage, _: replace(stage, size_spread=spread))


def _hidden_skew(dice: random.Random, _hosts: int) -> Conditions:
    """Partitions of one size that take very different times."""
    noise = dice.uniform(0.6, 1.0)
    return Conditions(stage=lambda stage, _: replace(stage, noise=noise))


def _warm_up(dice: random.Random, _hosts: int) -> Conditions:
    first, tasks = dice.uniform(2, 4), dice.uniform(2, 6)
    return Conditions(stage=lambda stage, _: replace(stage, warm_up=first, warm_up_tasks=tasks))


def _locality(dice: random.Random, hosts: int) -> Conditions:
    """One host has no data of its own."""
    host, factor = dice.randrange(hosts), dice.uniform(1.5, 2.5)

    def remote(it: Moment) -> bool:
        return it.dice.random() < (0.95 if it.host == host else 0.15)

    return Conditions(remote=remote, stage=lambda stage, _: replace(stage, remote_factor=factor))


def _late(dice: random.Random, hosts: int) -> Conditions:
    """The same two hosts join each application late, and have to warm up then."""
    late, tasks = frozenset(dice.sample(range(hosts), 2)), dice.uniform(1, 4)

    def joins(_application: int, host: int, dice: random.Random) -> float:
        return dice.uniform(0.2, 0.6) if host in late else 0.0

    return Conditions(joins=joins, stage=lambda stage, _: replace(stage, warm_up=2.0, warm_up_tasks=tasks))


def _maintenance(dice: random.Random, hosts: int) -> Conditions:
    """Each host restarts once, for two minutes: one after the other, while applications run."""
    order, every = dice.sample(range(hosts), hosts), dice.uniform(120_000, 400_000)

    def failure(it: Moment) -> TaskFailure | None:
        restart = order.index(it.host) * every
        return _LOST if restart <= it.time % (24 * _HOUR_MS) <= restart + 120_000 else None

    return Conditions(failure=failure, gap_ms=5_000)


def _bug(dice: random.Random, _hosts: int) -> Conditions:
    """An application whose tasks fail at random, wherever they run, and succeed at the next attempt."""
    share = dice.uniform(0.02, 0.1)
    bad = frozenset(dice.sample(range(5), 2))
    return Conditions(
        failure=lambda it: _BUG if it.application in bad and it.dice.random() < share else None,
    )


def _ends_everywhere(dice: random.Random, _hosts: int) -> Conditions:
    """A bug that ends each application; it may need some input, which other partitions do not have."""
    share, bug = dice.choice((1.0, 0.9, 0.6)), _BUG._replace(at_once=dice.random() < 0.7)
    return Conditions(ends=True, failure=lambda it: bug if it.dice.random() < share else None)


def _ends_on_partitions(dice: random.Random, _hosts: int) -> Conditions:
    """One or two bad partitions that end each application, on whichever host they run."""
    partitions, bug = frozenset(dice.sample(range(12), dice.randint(1, 2))), _BUG._replace(at_once=dice.random() < 0.7)
    return Conditions(ends=True, failure=lambda it: bug if it.partition in partitions else None)


def _bad_partition(dice: random.Random, _hosts: int) -> Conditions:
    """A few partitions that fail twice in three attempts, on whichever host, and take long."""
    partitions = frozenset(dice.sample(range(12), 2))
    return Conditions(
        failure=lambda it: _BUG if it.partition in partitions and it.dice.random() < 0.66 else None,
        compute=lambda it: 5.0 if it.partition in partitions else 1.0,
    )


def _time_of_day(dice: random.Random, _hosts: int) -> Conditions:
    peak = dice.uniform(1, 2)
    return Conditions(compute=lambda it: 1 + peak * (1 + sin(it.time * 2 * pi / (24 * _HOUR_MS))) / 2)


def _few_tasks(dice: random.Random, _hosts: int) -> Conditions:
    tasks = dice.randint(4, 14)
    return Conditions(stage=lambda stage, _: replace(stage, tasks=tasks, noise=0.35))


def _half_cached(dice: random.Random, _hosts: int) -> Conditions:
    """In each application, other hosts hold the cached blocks; the rest recomputes theirs."""
    factor = dice.uniform(2, 4)

    def compute(it: Moment) -> float:
        cached = (it.partition * 7 + it.application) % 2 == 0
        return 1.0 if cached else factor

    return Conditions(compute=compute)


def _hot_host(dice: random.Random, hosts: int) -> Conditions:
    """In each application another host is slow: where the cluster manager put something else beside it."""
    factor, order = dice.uniform(1.5, 2.5), dice.sample(range(hosts), hosts)
    return Conditions(compute=lambda it: factor if it.host == order[it.application % hosts] else 1.0)


def _preempted(dice: random.Random, _hosts: int) -> Conditions:
    share = dice.uniform(0.005, 0.02)
    return Conditions(failure=lambda it: _LOST if it.dice.random() < share else None)


def _clocks(dice: random.Random, _hosts: int) -> Conditions:
    ahead = [dice.uniform(-7_200_000, 7_200_000) for _ in range(20)]
    return Conditions(clock=ahead.__getitem__)


IRREGULARITIES: Final[dict[str, Draw]] = {
    "uniform": _uniform,
    "half of the hosts slower by design": _types(0.5),
    "a fifth of the hosts slower by design": _types(0.2),
    "one host slower by design, labelled": _labelled_type,
    "a noisy neighbour for five minutes": _neighbour,
    "another slow host in each application": _hot_host,
    "skewed partitions": _skew,
    "partitions of one size, uneven work": _hidden_skew,
    "long warm-up": _warm_up,
    "one host without local data": _locality,
    "hosts that join late": _late,
    "maintenance, host after host": _maintenance,
    "executors lost everywhere": _preempted,
    "an application that fails at random": _bug,
    "bad partitions": _bad_partition,
    "a bug that ends applications": _ends_everywhere,
    "bad partitions that end applications": _ends_on_partitions,
    "load by time of day": _time_of_day,
    "clocks of the drivers differ": _clocks,
    "half-full cache": _half_cached,
    "few tasks per stage": _few_tasks,
}
