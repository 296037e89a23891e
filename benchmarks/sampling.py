"""Samples in rotation, detection of a busy machine, and CPU time and memory of processes."""

import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

from benchmarks.harness import unless_quick
from benchmarks.rows import Samples

T = TypeVar("T")
MAX_NOISE = 0.08  # maximum CPU seconds per second of other processes during a sample
MAX_WAIT = 60.0  # seconds per row for waiting for a quiet machine and repeating samples
TICK = os.sysconf("SC_CLK_TCK")
TICK_ERROR = 3 / TICK  # rounding error of a short sample


def rotate(contenders: Mapping[str, Callable[[], T]], *, rounds: int) -> tuple[dict[str, list[T]], Samples]:
    """Warm each contender up, then sample them in turn, so that drift and noise affect all alike."""
    for sample in contenders.values():
        sample()
    samples: dict[str, list[T]] = {name: [] for name in contenders}
    noise: Samples = {name: [] for name in contenders}
    wait_budget = [unless_quick(MAX_WAIT, 0.0)]
    for _ in range(unless_quick(rounds, 2)):
        for name, sample in contenders.items():
            value, foreign = least_disturbed(sample, wait_budget)
            samples[name].append(value)
            noise[name].append(round(foreign, 3))
    return samples, noise


def least_disturbed(sample: Callable[[], T], wait_budget: list[float]) -> tuple[T, float]:
    """Return the least disturbed of a few samples, and the number of CPUs that other processes used.

    A disturbed sample is repeated at a quieter time, until the row's `wait_budget` (seconds) is used up.
    """
    best = with_noise(sample)
    while best[1] > MAX_NOISE and wait_budget[0] > 0:
        started = time.monotonic()
        if with_noise(partial(time.sleep, 0.3))[1] <= MAX_NOISE:
            best = min(best, with_noise(sample), key=itemgetter(1))
        wait_budget[0] -= time.monotonic() - started
    return best


def idle_cpu(pids: Mapping[str, int], *, rounds: int, seconds: float) -> Samples:
    """CPU seconds of processes that do nothing, in the same `seconds`, `rounds` times."""
    samples: Samples = {name: [] for name in pids}
    for _ in range(rounds):
        before = {name: cpu_seconds(pid) for name, pid in pids.items()}
        time.sleep(seconds)
        for name, pid in pids.items():
            samples[name].append(cpu_seconds(pid) - before[name])
    return samples


def with_noise(sample: Callable[[], T]) -> tuple[T, float]:
    """Return the value of `sample`, and the number of CPUs that other processes used meanwhile."""
    started, before = time.monotonic(), _foreign_seconds()
    value = sample()
    return value, max(0.0, _foreign_seconds() - before - TICK_ERROR) / (time.monotonic() - started)


def _foreign_seconds() -> float:
    """CPU seconds of all processes but this one and its descendants: servers, generators, a browser; no interrupts."""
    user, nice, system = (int(ticks) for ticks in Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / TICK - cpu_seconds(os.getpid())


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, its running descendants, and those of them that have ended."""
    process, seconds = Path(f"/proc/{pid}"), 0.0
    with suppress(FileNotFoundError, ProcessLookupError):  # It has just ended.
        fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
        seconds = sum(int(ticks) for ticks in fields[11:15]) / TICK
        for thread in (process / "task").iterdir():
            seconds += sum(cpu_seconds(int(child)) for child in (thread / "children").read_text().split())
    return seconds


def megabytes(pid: int, name: str = "VmRSS") -> float:
    """Resident memory of the process, or with `VmHWM` its peak, in 10**6 bytes."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) * 1024 / 1e6
