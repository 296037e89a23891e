"""What other rules blame in a synthetic run, given its tasks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from math import log
from statistics import median
from typing import Final

from benchmarks.detection_quality.runs import SimulatedTask
from blocklist.detection.slowness import scale

MAX_FAILURES: Final = 2
"""Failed tasks of one executor in one application after which HealthTracker excludes it. A host has one here."""
Z_LIMIT: Final = 3.5
"""Iglewicz and Hoaglin (1993), How to detect and handle outliers."""


def excluded(applications: Sequence[Sequence[SimulatedTask]]) -> frozenset[int]:
    """Hosts whose executor HealthTracker excludes. Fetch failures do not count by default."""
    failed = Counter(
        (task.application, task.host, task.executor)
        for tasks in applications
        for task in tasks
        if task.failure is not None and task.failure.served_by is None
    )
    return frozenset(host for (_, host, _), count in failed.items() if count >= MAX_FAILURES)


def robust_outliers(applications: Sequence[Sequence[SimulatedTask]]) -> frozenset[int]:
    """Hosts whose mean task time is an outlier by the modified z-score."""
    times: defaultdict[int, list[int]] = defaultdict(list)
    for tasks in applications:
        for task in tasks:
            if task.failure is None:
                times[task.host].append(task.ended - task.launched)
    means = {host: log(sum(values) / len(values)) for host, values in times.items()}
    if not means:
        return frozenset()
    middle, spread = median(means.values()), max(0.001, scale(list(means.values())))
    return frozenset(host for host, mean in means.items() if (mean - middle) / spread > Z_LIMIT)
