"""One change to 10,000 watchers with a connection each: latency, and memory per watcher."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from benchmarks import systems
from benchmarks.broadcast import Broadcast, Latency, broadcast, etcd_broadcast
from benchmarks.connections import put
from benchmarks.fanout import SOURCES
from benchmarks.harness import Server, need_files, scratch, unless_quick
from benchmarks.rows import Row, Samples, at_most, column
from benchmarks.sampling import megabytes, with_noise
from benchmarks.watch import BODY, EVENT, NAMELESS

OURS, SSE, ETCD = "blocklist", "bare ASGI SSE", "etcd, gRPC"
WATCHERS = unless_quick(10_000, 2_000)
CHANGES = 5  # in a round
ROUNDS = unless_quick(3, 1)


class Contender(NamedTuple):
    """How to start the server, and how to connect its watchers."""

    server: Callable[[Path], AbstractContextManager[Server]]
    connect: Callable[[Server], Coroutine[Any, Any, Broadcast]]


class Sample(NamedTuple):
    """The latencies of the changes of a round, and kB of memory per watcher."""

    latencies: list[Latency]
    kilobytes: float


def run() -> list[Row]:
    """Start each contender anew in each round, one after the other: together they need too many open files."""
    need_files(WATCHERS + 100)
    systems.require("etcd")
    samples: dict[str, list[Sample]] = {name: [] for name in CONTENDERS}
    noise: Samples = {name: [] for name in CONTENDERS}
    for _ in range(ROUNDS):
        for name, contender in CONTENDERS.items():
            with scratch() as folder:
                sample, foreign = with_noise(partial(_sample, contender, folder))
            samples[name].append(sample)
            noise[name].append(round(foreign, 3))
    return _rows(samples, noise)


def _rows(samples: dict[str, list[Sample]], noise: Samples) -> list[Row]:
    latencies = {name: [change for sample in taken for change in sample.latencies] for name, taken in samples.items()}
    last, _, p99, p99_from_request = (column(latencies, figure) for figure in range(len(Latency._fields)))
    memory = {name: [sample.kilobytes for sample in taken] for name, taken in samples.items()}
    name = f"one change to {WATCHERS:,} watchers"
    p99_name = f"{name}: 99th percentile"
    return [
        Row(
            name=f"{p99_name}, after the response",
            unit="ms",
            ours=OURS,
            samples=p99,
            noise=noise,
            targets=[at_most(1000)],
        ),
        Row(name=f"{p99_name}, after the request", unit="ms", ours=OURS, samples=p99_from_request, noise=noise),
        Row(name=f"{name}: last watcher, after the response", unit="ms", ours=OURS, samples=last, noise=noise),
        Row(name="memory per watcher", unit="kB", ours=OURS, samples=memory, noise=noise, targets=[at_most(20)]),
    ]


def _sample(contender: Contender, folder: Path) -> Sample:
    """A watcher that does not receive a change within a minute fails the benchmark."""
    with contender.server(folder) as server, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        before = megabytes(server.pid)
        crowd = runner.run(contender.connect(server))
        kilobytes = (megabytes(server.pid) - before) * 1000 / WATCHERS
        latencies = [runner.run(crowd.change()) for _ in range(CHANGES)]
        crowd.close()
        return Sample(latencies, kilobytes)


async def _ours(server: Server) -> Broadcast:
    request = put("/blocklist/nodes/@", BODY)
    return await broadcast(server, path="/blocklist/watch", watchers=WATCHERS, request=request, sources=SOURCES)


async def _sse(server: Server) -> Broadcast:
    return await broadcast(server, path="/watch", watchers=WATCHERS, request=put("/event", EVENT), sources=SOURCES)


async def _etcd(server: Server) -> Broadcast:
    return await etcd_broadcast(server, watchers=WATCHERS, connections=WATCHERS, value=NAMELESS, sources=SOURCES)


CONTENDERS = {
    OURS: Contender(systems.service, _ours),
    SSE: Contender(partial(systems.bare, "watch"), _sse),
    ETCD: Contender(systems.etcd, _etcd),
}
