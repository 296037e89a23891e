"""Replicas that change the list at once, on distinct nodes and on one, and one far from the database."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

import uvloop

from benchmarks import systems
from benchmarks.connections import HttpConnection, put
from benchmarks.convergence import MERGE
from benchmarks.fanout import HOST
from benchmarks.harness import CORES, Server, unless_quick
from benchmarks.rows import Row, Target, at_least, at_most, column
from benchmarks.sampling import rotate
from benchmarks.writes import BODY
from tests.faulty_proxy import FaultyProxy

RATE = 50  # changes per second and replica
CONNECTIONS = 16  # to each replica
SECONDS = unless_quick(6.0, 2.0)
ROUNDS = 5
FURTHER = 0.02  # seconds of a round trip
ALONE, THREE, NEAR, FAR = "1 replica", "3 replicas", "near", f"{FURTHER * 1000:.0f} ms further"

_Request = Callable[[str, int], bytes]
_CASES: dict[str, _Request] = {
    "distinct nodes": put("/blocklist/nodes/worker-@", BODY.encode()),
    "one hot node": put("/blocklist/nodes/hot", MERGE.encode()),
}


class Figures(NamedTuple):
    """Of the changes of some replicas: milliseconds, changes per second, and how many were refused."""

    p99: float
    p50: float
    rate: float
    refused: int


def rows(folder: Path) -> list[Row]:
    """Start PostgreSQL and the replicas, and measure."""
    with ExitStack() as stack:
        database = stack.enter_context(systems.postgres(cores=CORES))

        def start(url: str, name: str) -> Server:
            return stack.enter_context(systems.service(folder / name, {systems.DATABASE: url}, cores=CORES))

        alone = [start(database.create("alone"), "alone")]
        url = database.create("three")
        three = [start(url, f"three{number}") for number in range(3)]
        proxy = stack.enter_context(FaultyProxy(database.port))
        proxy.delay(FURTHER / 2)
        url = database.create("far")
        pair = [start(url, "near"), start(url.replace(f":{database.port}/", f":{proxy.port}/"), "far")]
        found = []
        for case, request in _CASES.items():
            found += _compared(case, alone, three, request)
            found += _shares(f"{case}, at {RATE}/s", pair, request, rate=RATE, targets=[at_least(0.2, NEAR)])
            found += _shares(f"{case}, without a pause", pair, request, rate=None, targets=[])
        return found


def _compared(case: str, alone: Sequence[Server], three: Sequence[Server], request: _Request) -> list[Row]:
    contenders = {
        THREE: partial(_total, three, request),
        ALONE: partial(_total, alone, request),
    }
    samples, noise = rotate(contenders, rounds=ROUNDS)
    p99, p50, _, refused = (column(samples, figure) for figure in range(4))
    further = {"p99 beyond 1 replica's": [ours - one for ours, one in zip(p99[THREE], p99[ALONE], strict=True)]}
    name = f"{RATE}/s at each of 3 replicas, {case}"
    return [
        Row(name=f"{name}: 99th percentile", unit="ms", ours=THREE, samples=p99, noise=noise),
        Row(name=f"{name}: beyond", unit="ms", ours=next(iter(further)), samples=further, targets=[at_most(25)]),
        Row(name=f"{name}: median", unit="ms", ours=THREE, samples=p50, noise=noise),
        Row(name=f"{name}: refused", unit="", ours=THREE, samples=refused, noise=noise, targets=[at_most(0)]),
    ]


def _shares(
    case: str, pair: Sequence[Server], request: _Request, *, rate: int | None, targets: list[Target]
) -> list[Row]:
    """How many changes a replica that is further from the database makes beside a near one."""
    taken, noise = rotate({FAR: partial(_each, pair, request, rate=rate)}, rounds=ROUNDS)
    samples = {name: [both[place].rate for both in taken[FAR]] for place, name in enumerate((NEAR, FAR))}
    p99 = {name: [both[place].p99 for both in taken[FAR]] for place, name in enumerate((NEAR, FAR))}
    refused = {FAR: [float(sum(one.refused for one in both)) for both in taken[FAR]]}
    return [
        Row(name=f"{case}", unit="PUTs/s", ours=FAR, samples=samples, noise=noise, targets=targets),
        Row(name=f"{case}: 99th percentile", unit="ms", ours=FAR, samples=p99, noise=noise),
        Row(name=f"{case}: refused", unit="", ours=FAR, samples=refused, noise=noise, targets=[at_most(0)]),
    ]


def _total(servers: Sequence[Server], request: _Request) -> Figures:
    each = _each(servers, request, rate=RATE)
    worst = max(each)
    return Figures(worst.p99, worst.p50, sum(one.rate for one in each), sum(one.refused for one in each))


def _each(servers: Sequence[Server], request: _Request, *, rate: int | None) -> list[Figures]:
    async def all_at_once() -> list[Figures]:
        return await asyncio.gather(*(_load(one, request, rate=rate, place=place) for place, one in enumerate(servers)))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(all_at_once())


async def _load(server: Server, request: _Request, *, rate: int | None, place: int) -> Figures:
    """Change at a fixed rate, or without a pause; a change that begins late counts from when it should have begun."""
    times: list[float] = []
    refused = 0
    begun = time.perf_counter() + place / RATE / 3
    numbers, run = count(), time.monotonic_ns()

    async def work() -> None:
        nonlocal refused
        _, connection = await asyncio.get_running_loop().create_connection(HttpConnection, HOST, server.port)
        for number in numbers:
            at = begun + number / rate if rate else time.perf_counter()
            if at > begun + SECONDS:
                break
            await asyncio.sleep(at - time.perf_counter())
            done = await connection.send(request(f"{run}-{place}-{number}", number))
            times.append((done - at) * 1000)
            refused += not connection.response.startswith(b"HTTP/1.1 20")
        connection.close()

    await asyncio.gather(*(work() for _ in range(CONNECTIONS)))
    cuts = quantiles(times, n=100)
    return Figures(cuts[98], cuts[49], len(times) / SECONDS, refused)
