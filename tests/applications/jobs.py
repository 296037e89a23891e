"""Jobs of the applications, with results that are known beforehand."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from tests.applications.application import TASKS, Application

JOB_SECONDS = 120
"""Maximum duration of a job of a second, on a busy machine."""
_MEET_SECONDS = 600
"""An agent that is off, or waits for another session to end, sends a request every 10 or 30 s."""


def run_jobs(
    application: Application,
    count: int,
    *,
    label: str,
    only_plain: bool = False,
    met: Callable[[], int] = lambda: 0,
    each: int = 0,
) -> None:
    """Run jobs of all sorts one after the other. Raises AssertionError if one hangs, fails or has a wrong result.

    Each is repeated until `met` has grown by `each`. Other applications than the Scala one have plain jobs only.
    """
    chance = random.Random(label)
    for number in range(count):
        jobs = [("", TASKS), (f"shuffle {number}", number * sum(range(6_000))), ("barrier 4 50", 4)]
        line, result = jobs[0] if only_plain else chance.choice(jobs)
        try:
            enough, deadline = met() + each, time.monotonic() + _MEET_SECONDS
            _run(application, line, result)
            while met() < enough:
                assert time.monotonic() < deadline, "the service is not asked"
                _run(application, line, result)
        except Exception as error:
            error.add_note(f"Job {number} ({line or 'plain'}) of {label}")
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


def _run(application: Application, line: str, result: int) -> None:
    application.send(line)
    assert application.result(JOB_SECONDS).number == result
