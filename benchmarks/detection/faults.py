"""Real faults of a host, as context managers that always undo them."""

from __future__ import annotations

import random
import subprocess
import threading
from collections.abc import Callable, Collection, Iterator
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

_SERVED: Final = ("match", "ip", "sport", str(BLOCK_MANAGER_PORT), "0xffff")
_CONNECTION_INTERVAL: Final = 0.1  # seconds between two searches for new connections
_HANDLE: Final = "b10c:"
_CLASS: Final = f"{_HANDLE}9"
_FILL_INTERVAL: Final = 0.1  # seconds between two attempts to fill freed space


def describe(scenario: str, seed: int) -> str | None:
    """Return the fault of the scenario for the label. None: healthy."""
    rate = RATES[seed % len(RATES)]
    descriptions = {
        **{name: f"{factor:g} of the others' processor time" for name, factor in SPEED.items()},
        "disk": "local directory full",
        "killed": "executor killed with SIGKILL 0.8 to 2.5 s after its start, repeatedly",
        "network": f"serves shuffled blocks at {rate}/s",
        "both-ways": f"serves and receives shuffled blocks at {rate}/s",
        "failing": "the device that tasks read is missing in half of the time",
        "paused": "all processes stopped with SIGSTOP for half of each second or more",
    }
    return descriptions.get(scenario)


def fault(hosts: Hosts, scenario: str, host: str | None, seed: int) -> AbstractContextManager[None]:
    """Return the fault that lasts for the whole run."""
    rate = RATES[seed % len(RATES)]
    if host is None:
        return nullcontext()
    match scenario:
        case "disk":
            return _full_disk(hosts, host)
        case "network":
            return _slow_network(host, rate)
        case "both-ways":
            return _slow_both_ways(hosts, host, rate)
    return nullcontext()


def fault_of_application(
    hosts: Hosts, scenario: str, host: str | None, seed: int, spark: Any
) -> AbstractContextManager[None]:
    """Return the fault that lasts while an application works, not while it starts. CPU limits are set elsewhere."""
    if host is None:
        return nullcontext()
    match scenario:
        case "killed":
            return _repeatedly_killed(hosts, host, seed, spark)
        case "failing":
            return _loose_device(hosts, host, seed)
        case "paused":
            return _paused(hosts, host, seed)
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
        limit = ["rate", rate, "burst", "200b", "quantum", "65536"]
        _tc("class", "add", "dev", "lo", "parent", _HANDLE, "classid", _CLASS, "htb", *limit)
        _limit("match", "ip", "src", f"{host}/32", *_SERVED)
        yield
    finally:
        _tc("qdisc", "del", "dev", "lo", "root")


@contextmanager
def _slow_both_ways(hosts: Hosts, host: str, rate: str) -> Iterator[None]:
    """Limit what the host's block manager sends, and what others send to it.

    All hosts send from 127.0.0.1, so the connections of this one are found by its process.
    """
    limited: set[str] = set()

    def limit_new(done: threading.Event) -> None:
        while not done.wait(_CONNECTION_INTERVAL):
            for port in _fetching_ports(hosts.executors(host)) - limited:
                limited.add(port)
                _limit("match", "ip", "dport", port, "0xffff", *_SERVED)

    with _slow_network(host, rate), in_background(limit_new):
        yield


def _fetching_ports(pids: Collection[int]) -> set[str]:
    """Local ports of these processes' connections to block managers."""
    command = ["ss", "--tcp", "--numeric", "--processes", "--no-header", "state", "established"]
    ports = [f"dport = :{BLOCK_MANAGER_PORT}"]
    output = subprocess.run([*command, *ports], capture_output=True, text=True, check=True).stdout
    wanted = [f"pid={pid}," for pid in pids]
    lines = [line for line in output.splitlines() if any(pid in line for pid in wanted)]
    return {line.split()[2].rpartition(":")[2] for line in lines}


def _limit(*match: str) -> None:
    _tc("filter", "add", "dev", "lo", "parent", _HANDLE, "protocol", "ip", "u32", *match, "flowid", _CLASS)


def restore_network() -> None:
    """Remove the bandwidth limit that a killed process of ours left."""
    output = subprocess.run(["tc", "qdisc", "show", "dev", "lo"], capture_output=True, text=True, check=True).stdout
    if f"htb {_HANDLE}" in output:
        _tc("qdisc", "del", "dev", "lo", "root")


def _tc(*arguments: str) -> None:
    subprocess.run(["tc", *arguments], check=True, capture_output=True)


@contextmanager
def _repeatedly_killed(hosts: Hosts, host: str, seed: int, spark: Any) -> Iterator[None]:
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


@contextmanager
def _loose_device(hosts: Hosts, host: str, seed: int) -> Iterator[None]:
    """The host's device comes and goes."""
    draw, device = random.Random(seed), hosts.device(host)

    def toggle(done: threading.Event) -> None:
        while not done.is_set():
            device.unlink(missing_ok=True)
            done.wait(draw.uniform(0.5, 1.5))
            device.touch()
            done.wait(draw.uniform(0.5, 1.5))

    with in_background(toggle):
        yield


@contextmanager
def _paused(hosts: Hosts, host: str, seed: int) -> Iterator[None]:
    """The host stands still for half of each second or more."""
    draw = random.Random(seed)
    stopped = draw.uniform(0.5, 0.7)

    def pause(done: threading.Event) -> None:
        while not done.wait(1 - stopped):
            hosts.pause(host)
            done.wait(stopped)
            hosts.resume(host)

    with in_background(pause):
        yield
