"""CPU that 10,000 drivers cost, each polling with If-None-Match every five seconds on its own connection."""

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from statistics import quantiles
from typing import NamedTuple

import uvloop

from benchmarks import systems
from benchmarks.connections import HttpConnection
from benchmarks.fanout import HOST, SOURCES
from benchmarks.harness import Server, fetch, need_files, scratch, unless_quick
from benchmarks.rows import Row, column
from benchmarks.sampling import cpu_seconds, rotate

OURS, NGINX, BARE = "blocklist", "nginx", "bare ASGI"
DRIVERS = unless_quick(10_000, 1_000)
INTERVAL = 5.0  # seconds
POLLS = 2  # per driver in a sample, after one that does not count
ROUNDS = 3
NODES = 10


class Cost(NamedTuple):
    """One sample: percent of a core, and the 99th percentile in ms."""

    cpu: float
    p99: float


def run() -> list[Row]:
    """Measure CPU and latency; all servers have the same list."""
    need_files(DRIVERS + 100)
    with scratch() as folder, ExitStack() as stack:
        service = stack.enter_context(systems.service(folder / "service"))
        systems.block(service, NODES)
        systems.copy_list(service, folder / "list")
        nginx = stack.enter_context(systems.nginx(folder))
        bare = stack.enter_context(systems.bare("reads", folder))
        contenders: dict[str, Callable[[], Cost]] = {
            OURS: partial(_sample, service, "/blocklist"),
            NGINX: partial(_sample, nginx, "/list"),
            BARE: partial(_sample, bare, "/list"),
        }
        samples, noise = rotate(contenders, rounds=ROUNDS)
    name = f"{DRIVERS:,} drivers, one poll each per {INTERVAL:g} s"
    cpu, p99 = (column(samples, figure) for figure in range(2))
    return [
        Row(name=f"{name}: CPU", unit="% of one core", ours=OURS, samples=cpu, noise=noise),
        Row(name=f"{name}: 99th percentile", unit="ms", ours=OURS, samples=p99, noise=noise),
    ]


def _sample(server: Server, path: str) -> Cost:
    """Connections are opened in the first round of polls, which does not count, and closed at the end."""
    tag = fetch(server.port, path)[1]["etag"]
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: {tag}\r\n\r\n".encode()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_poll(server, request))


async def _poll(server: Server, request: bytes) -> Cost:
    started, times = time.perf_counter(), list[float]()
    drivers = [_drive(server, request, number, started, times) for number in range(DRIVERS)]
    polling = asyncio.gather(*drivers)
    await asyncio.sleep(INTERVAL)
    cpu = cpu_seconds(server.pid)
    await asyncio.sleep(INTERVAL * POLLS)
    share = (cpu_seconds(server.pid) - cpu) / (INTERVAL * POLLS)
    await polling
    return Cost(cpu=share * 100, p99=quantiles(times, n=100)[-1] * 1000)


async def _drive(server: Server, request: bytes, number: int, started: float, times: list[float]) -> None:
    """One driver, with its own offset in each interval."""
    first = started + INTERVAL * number / DRIVERS
    await asyncio.sleep(first - time.perf_counter())
    source = (SOURCES[number % len(SOURCES)], 0)
    loop = asyncio.get_running_loop()
    _, writer = await loop.create_connection(HttpConnection, HOST, server.port, local_addr=source)
    for poll in range(1 + POLLS):
        await asyncio.sleep(first + INTERVAL * poll - time.perf_counter())
        sent = time.perf_counter()
        answered = await writer.send(request)
        if not writer.response.startswith(b"HTTP/1.1 304"):
            raise RuntimeError(f"{writer.response[:200]!r}")
        if poll:
            times.append(answered - sent)
    writer.close()
