"""Jobs of the Scala application, with results that are known beforehand."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.applications.application import TASKS, Application

JOB_SECONDS = 120
"""Maximum duration of a job of a second, on a busy machine."""


def run_jobs(application: Application, count: int, *, label: str) -> None:
    """Run jobs of all sorts one after the other. Raises AssertionError if one hangs, fails or has a wrong result."""
    chance = random.Random(label)
    for number in range(count):
        name, job = chance.choice(_JOBS)
        try:
            job(application, number)
        except Exception as error:
            error.add_note(f"Job {number} ({name}) of {label}")
            raise


def heap(application: Application) -> int:
    """Megabytes of the driver's heap in use, after a collection of garbage."""
    application.send("heap")
    return application.result().number


def tiny_tasks(application: Application, count: int) -> float:
    """Run a job of tasks that do nothing; the seconds that it took."""
    application.send(f"tiny {count} 0")
    return application.result(300).number / 1000


def count_cached(application: Application) -> float:
    """Count cached partitions, which the first count caches; the seconds that it took."""
    application.send("cached")
    return application.result().number / 1000


def _plain(application: Application, number: int) -> None:
    application.begin_round()
    assert application.result(JOB_SECONDS).number == TASKS


def _shuffle(application: Application, number: int) -> None:
    application.send(f"shuffle {number}")
    assert application.result(JOB_SECONDS).number == number * sum(range(6_000))


def _barrier(application: Application, number: int) -> None:
    application.send("barrier 4 50")
    assert application.result(JOB_SECONDS).number == 4


_JOBS: list[tuple[str, Callable[[Application, int], None]]] = [
    ("plain", _plain),
    ("shuffle", _shuffle),
    ("barrier", _barrier),
]
