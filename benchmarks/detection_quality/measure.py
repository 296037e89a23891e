"""`python -m benchmarks.detection_quality.measure LOG …`: the spread of task times in event logs, and in the model."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import zstandard

from benchmarks.detection_quality.runs import draw_run
from blocklist.detection.events import TaskEnd
from blocklist.detection.slowness import scale

MIN_TASKS: Final = 20
"""Minimum number of tasks of a stage, and of ms in the median task, to be measured."""
MIN_MS: Final = 50
_TASK: Final = b'{"Event":"SparkListenerTaskEnd"'


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Medians over the stages. `noise`: robust standard deviation of the logarithm of the work; `tail`: share of tasks
    above three medians. `hosts`: standard deviation of the logarithm of the hosts' medians.
    """

    stages: float
    noise: float
    p95: float
    largest: float
    tail: float
    hosts: float


def spread(stages: Iterable[Sequence[tuple[str, float]]]) -> Spread:
    """Measure stages, each given as host and work (ms) of its tasks."""
    logs = [
        (np.log([max(1.0, work) for _, work in stage]), [host for host, _ in stage])
        for stage in stages
        if len(stage) >= MIN_TASKS and np.median([work for _, work in stage]) >= MIN_MS
    ]
    centred = [(works - np.median(works), hosts) for works, hosts in logs]
    return Spread(
        stages=len(logs),
        noise=float(np.median([scale(works) for works, _ in centred])),
        p95=float(np.exp(np.median([np.quantile(works, 0.95) for works, _ in centred]))),
        largest=float(np.exp(np.median([works.max() for works, _ in centred]))),
        tail=float(np.mean(np.concatenate([works > np.log(3) for works, _ in centred]))),
        hosts=float(np.median([_host_sd(works, hosts) for works, hosts in centred])),
    )


def _host_sd(works: np.ndarray, hosts: Sequence[str]) -> float:
    own: defaultdict[str, list[float]] = defaultdict(list)
    for host, work in zip(hosts, works, strict=True):
        own[host].append(float(work))
    return float(np.std([np.median(values) for values in own.values()]))


def stages_of_log(path: Path) -> Mapping[int, Sequence[tuple[str, float]]]:
    """The successful tasks of each stage of a plain or zstd log."""
    data = path.read_bytes()
    if data.startswith(b"\x28\xb5\x2f\xfd"):
        data = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    decoder = msgspec.json.Decoder(TaskEnd)
    stages: defaultdict[int, list[tuple[str, float]]] = defaultdict(list)
    for line in data.splitlines():
        if line.startswith(_TASK):
            task = decoder.decode(line)
            if task.reason.reason == "Success" and task.metrics and task.metrics.run is not None:
                wait = task.metrics.shuffle.fetch_wait or 0 if task.metrics.shuffle else 0
                stages[task.stage].append((task.info.host, task.metrics.run - (task.metrics.gc or 0) - wait))
    return stages


def model_spread(runs: int = 40) -> Spread:
    """Measure uniform runs of the model."""
    stages: defaultdict[tuple[int, int, int], list[tuple[str, float]]] = defaultdict(list)
    for seed in range(runs):
        for number, tasks in enumerate(draw_run("uniform", seed).applications):
            for task in tasks:
                stages[seed, number, task.stage].append((str(task.host), task.run - task.gc - task.wait))
    return spread(stages.values())


def main(paths: Sequence[str]) -> None:
    """Print a Markdown table."""
    print(f"| | {' | '.join(field.name for field in fields(Spread))} |\n|---|{'--:|' * len(fields(Spread))}")
    found = {Path(path).name: spread(stages_of_log(Path(path)).values()) for path in paths}
    for name, measured in {**found, "model": model_spread()}.items():
        print(f"| {name} | " + " | ".join(f"{getattr(measured, field.name):.3g}" for field in fields(Spread)) + " |")


if __name__ == "__main__":
    main(sys.argv[1:])
