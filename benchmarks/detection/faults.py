"""Real faults of a host, as context managers that always undo them."""

from __future__ import annotations

import random
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

from benchmarks.detection.hosts import Hosts
from benchmarks.harness import in_background
from demo.cluster import executor_hosts, wait_until

SPEED: Final = {"half": 0.5, "quarter": 0.25}
"""Share of a healthy host's processor time."""

RATES: Final = ("24kbit", "48kbit")
"""Bandwidth left for serving shuffle blocks: one of 800 bytes takes 300 or 150 ms."""

BLOCK_MANAGER_PORT: Final = 17079
"""Port of the executors' block managers; Spark uses one of the next sixteen if it is in use."""

_HANDLE: Final = "b10c:"
_CLASS: Final = f"{_HANDLE}9"
_FILL_INTERVAL: Final = 0.1  # seconds between two attempts to fill freed space


def describe(scenario: str, seed: int) -> str | None:
    """Return the fault of the scenario for the label. None: healthy."""
    descriptions = {
        **{name: f"{factor:g} of the others' processor time" for name, factor in SPEED.items()},
        "disk": "local directory full",
        "killed": "executor killed with SIGKILL 0.8 to 2.5 s after its start, repeatedly",
        "network": f"serves shuffled blocks at {RATES[seed % len(RATES)]}/s",
    }
    return descriptions.get(scenario)


def fault(hosts: Hosts, scenario: str, host: str | None, seed: int) -> AbstractContextManager[None]:
    """Return the fault that lasts for the whole run; CPU limits and kills are set per application."""
    if host is not None and scenario == "disk":
        return _full_disk(hosts, host)
    if host is not None and scenario == "network":
        return _slow_network(host, RATES[seed % len(RATES)])
    return nullcontext()


@contextmanager
def _full_disk(hosts: Hosts, host: str) -> Iterator[None]:
    """A foreign file fills the local directory, and grows whenever space becomes free."""
    file = hosts.disk(host) / "foreign-file"

    def fill(done: threading.Event) -> None:
        with file.open("ab", buffering=0) as stream:
            while not done.wait(_FILL_INTERVAL):
                _write_until_full(lambda: stream.write(bytes(4096)))

    try:
        with in_background(fill):
            yield
    finally:
        file.unlink()


def _write_until_full(write: Callable[[], int | None]) -> None:
    try:
        while write():
            pass
    except OSError:
        return


@contextmanager
def _slow_network(host: str, rate: str) -> Iterator[None]:
    """Limit the bandwidth of the host's block manager; other loopback traffic is not affected."""
    _tc("qdisc", "add", "dev", "lo", "root", "handle", _HANDLE, "htb")
    try:
        _tc(
            "class",
            "add",
            "dev",
            "lo",
            "parent",
            _HANDLE,
            "classid",
            _CLASS,
            "htb",
            "rate",
            rate,
            "burst",
            "200b",
            "quantum",
            "65536",
        )
        ports = ["match", "ip", "sport", str(BLOCK_MANAGER_PORT), "0xffff"]
        source = ["match", "ip", "src", f"{host}/32"]
        _tc("filter", "add", "dev", "lo", "parent", _HANDLE, "protocol", "ip", "u32", *source, *ports, "flowid", _CLASS)
        yield
    finally:
        _tc("qdisc", "del", "dev", "lo", "root")


def restore_network() -> None:
    """Remove the bandwidth limit that a killed process of ours left."""
    output = subprocess.run(["tc", "qdisc", "show", "dev", "lo"], capture_output=True, text=True, check=True).stdout
    if f"htb {_HANDLE}" in output:
        _tc("qdisc", "del", "dev", "lo", "root")


def _tc(*arguments: str) -> None:
    subprocess.run(["tc", *arguments], check=True, capture_output=True)


@contextmanager
def repeatedly_killed(hosts: Hosts, host: str, seed: int, spark: Any) -> Iterator[None]:
    """Kill the host's executor after 0.8 to 2.5 s of work, and each new one too."""
    draw = random.Random(seed)

    def kill(done: threading.Event) -> None:
        while not done.wait(draw.uniform(0.8, 2.5)):
            hosts.unthrottle(host)  # start without the limit: the start is not measured, and would take too long
            if hosts.kill_executor(host):
                wait_until(lambda: done.is_set() or host not in executor_hosts(spark), 20, "the end of an executor")
            wait_until(lambda: done.is_set() or host in executor_hosts(spark), 60, "a new executor")
            hosts.throttle()

    with in_background(kill):
        yield
