"""Synthetic event logs with the fields that the pipeline reads: applications with one slow host."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

HOSTS = [f"n{number}" for number in range(1, 7)]
STAGES = 6


def event_log(
    app: str,
    began: int,
    slow: str | Mapping[str, float] | None = None,
    canary: str | None = None,
    hosts: Collection[str] = HOSTS,
) -> list[str]:
    """Six stages of three tasks per host, 1 s each; `began` in Unix ms.

    They take 2.2 s on the slow host, or that many times as long on each of several.

    The canary is a host on which the application has only one executor, which runs one task of each stage.
    """
    dice = random.Random(app)
    head: list[dict[str, Any]] = [
        {"Event": "SparkListenerLogStart", "Spark Version": "4.3.0"},
        {"Event": "SparkListenerApplicationStart", "App Name": app, "App ID": app, "Timestamp": began, "User": "test"},
    ]
    factors = {slow: 2.2} if isinstance(slow, str) else (slow or {})
    places = [(number, host) for number in range(3) for host in hosts if host != canary or number == 0]
    tasks = [task for stage in range(STAGES) for task in _stage(stage, began + stage * 10_000, factors, places, dice)]
    return [json.dumps(event, separators=(",", ":")) + "\n" for event in [*head, *tasks]]


def on_pods(lines: list[str], addresses: Mapping[str, str], nodes: Mapping[str, str] | None = None) -> list[str]:
    """The log as of an application on Kubernetes: hosts are addresses. `nodes`: what executors say of theirs."""
    environment = {"Event": "SparkListenerEnvironmentUpdate", "Spark Properties": {"spark.master": "k8s://https://api"}}
    executors = [
        {
            "Event": "SparkListenerExecutorAdded",
            "Timestamp": 1_700_000_000_000,
            "Executor ID": host[1:],
            "Executor Info": {"Host": host, "Total Cores": 1, "Attributes": {"NODE_NAME": node}},
        }
        for host, node in (nodes or {}).items()
    ]
    head = [json.dumps(event, separators=(",", ":")) + "\n" for event in (environment, *executors)]
    text = "".join([*lines[:2], *head, *lines[2:]])
    for host, address in addresses.items():
        text = text.replace(f'"Host":"{host}"', f'"Host":"{address}"')
    return text.splitlines(keepends=True)


def _stage(
    stage: int, began: int, factors: Mapping[str, float], places: Sequence[tuple[int, str]], dice: random.Random
) -> Iterator[dict[str, Any]]:
    info = {"Stage ID": stage, "Stage Attempt ID": 0, "Number of Tasks": len(places), "Submission Time": began}
    yield {"Event": "SparkListenerStageSubmitted", "Stage Info": info, "Properties": {}}
    for number, host in places:
        run = round(1000 * factors.get(host, 1) * dice.lognormvariate(0, 0.1))
        launched = began + number * 3100
        yield _task(stage, host, launched, run)


def _task(stage: int, host: str, launched: int, run: int) -> dict[str, Any]:
    return {
        "Event": "SparkListenerTaskEnd",
        "Stage ID": stage,
        "Stage Attempt ID": 0,
        "Task Type": "ResultTask",
        "Task End Reason": {"Reason": "Success"},
        "Task Info": {
            "Task ID": launched % 1_000_000,
            "Launch Time": launched,
            "Executor ID": host[1:],
            "Host": host,
            "Locality": "PROCESS_LOCAL",
            "Speculative": False,
            "Finish Time": launched + run,
            "Failed": False,
            "Killed": False,
            "Accumulables": [],
        },
        "Task Metrics": {
            "Executor Deserialize Time": 3,
            "Executor Run Time": run,
            "Executor CPU Time": run * 900_000,
            "JVM GC Time": 0,
            "Memory Bytes Spilled": 0,
            "Disk Bytes Spilled": 0,
            "Shuffle Read Metrics": {
                "Fetch Wait Time": 0,
                "Remote Bytes Read": 0,
                "Local Bytes Read": 0,
                "Total Records Read": 0,
            },
            "Input Metrics": {"Bytes Read": 1_000_000, "Records Read": 1000},
        },
    }
