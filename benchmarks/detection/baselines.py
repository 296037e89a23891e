"""Other detectors on the same logs: Spark's own exclusions, and a z-score of mean task times."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Final

THRESHOLD: Final = 3.0
"""Standard deviations of the other hosts. With the host included, six hosts could never show more than 2.04."""

_NODE_EXCLUDED: Final = "org.apache.spark.scheduler.SparkListenerNodeExcluded"


def excluded_for_application(logs: Sequence[Path]) -> set[str]:
    """Return the hosts that Spark excluded for the rest of an application."""
    return {event["hostId"] for event in _events(logs, _NODE_EXCLUDED)}


def excluded_for_a_stage(logs: Sequence[Path]) -> set[str]:
    """Return the hosts that Spark excluded for at least one stage."""
    return {event["hostId"] for event in _events(logs, f"{_NODE_EXCLUDED}ForStage")} | excluded_for_application(logs)


def z_score_outliers(logs: Sequence[Path]) -> set[str]:
    """Return hosts whose mean task time is more than THRESHOLD above the mean of the other hosts' means."""
    times: defaultdict[str, list[int]] = defaultdict(list)
    for event in _events(logs, "SparkListenerTaskEnd"):
        info = event["Task Info"]
        if event["Task End Reason"]["Reason"] == "Success":
            times[info["Host"]].append(info["Finish Time"] - info["Launch Time"])
    means = {host: mean(values) for host, values in times.items()}
    return {host for host in means if _z(host, means) > THRESHOLD}


def _z(host: str, means: dict[str, float]) -> float:
    others = [value for other, value in means.items() if other != host]
    if len(others) < 2:
        return 0.0
    return (means[host] - mean(others)) / max(stdev(others), 1.0)  # Spark's times are integer milliseconds


def _events(logs: Sequence[Path], name: str) -> Iterator[dict[str, Any]]:
    start = f'{{"Event":"{name}",'
    for log in logs:
        with log.open(encoding="utf-8") as lines:
            yield from (json.loads(line) for line in lines if line.startswith(start))
