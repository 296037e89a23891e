"""Samples in rotation, and knowing when the machine was not quiet; what processes use of CPU and memory."""

import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from operator import itemgetter
from os import sysconf, times
from pathlib import Path
from typing import TypeVar

from benchmarks.harness import measured_pids, unless_quick
from benchmarks.rows import Samples

T = TypeVar("T")
MAX_NOISE = 0.08  # CPU seconds a second that processes of others may use beside a sample
MAX_WAIT = 60.0  # seconds of one row for waiting until the machine is quiet, and for trying again
TICK = sysconf("SC_CLK_TCK")
TICK_ERROR = 3 / TICK  # what rounding to ticks may make up in a short sample


def rotate(contenders: Mapping[str, Callable[[], T]], *, rounds: int) -> tuple[dict[str, list[T]], Samples]:
    """Warm each up once, then sample them in turn, so that drift and noise hit all alike. Returns samples and noise."""
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
    """The least disturbed of a few samples: its value, and the CPUs that other processes used meanwhile.

    One, if nothing disturbs it; more, each from a quieter moment, while the row's seconds of `wait_budget` last.
    """
    best = with_noise(sample)
    while best[1] > MAX_NOISE and wait_budget[0] > 0:
        started = time.monotonic()
        if with_noise(partial(time.sleep, 0.3))[1] <= MAX_NOISE:
            best = min(best, with_noise(sample), key=itemgetter(1))
        wait_budget[0] -= time.monotonic() - started
    return best


def with_noise(sample: Callable[[], T]) -> tuple[T, float]:
    """What `sample` returns, and how many CPUs other processes used meanwhile."""
    started, before = time.monotonic(), _foreign_seconds()
    value = sample()
    return value, max(0.0, _foreign_seconds() - before - TICK_ERROR) / (time.monotonic() - started)


def _foreign_seconds() -> float:
    """CPU seconds of all but this process, its finished children and its servers; interrupts belong to nobody."""
    user, nice, system = (int(ticks) for ticks in Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / TICK - sum(times()[:4]) - sum(map(cpu_seconds, measured_pids))


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, its children, and those of them that ended."""
    process = Path(f"/proc/{pid}")
    fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
    children = (process / "task" / str(pid) / "children").read_text().split()
    return sum(int(ticks) for ticks in fields[11:15]) / TICK + sum(cpu_seconds(int(child)) for child in children)


def megabytes(pid: int, name: str = "VmRSS") -> float:
    """A size in the process's status (resident memory, or `VmHWM`, its peak) in MB of a million bytes."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) * 1024 / 1e6
