"""The delay until a replica shows a change of another one, without other writers and with them."""

import asyncio
import re
import threading
import time
from functools import partial
from statistics import median, quantiles
from typing import NamedTuple

import uvloop

from benchmarks.connections import HttpConnection, put
from benchmarks.fanout import HOST, get
from benchmarks.generator import wrk_write
from benchmarks.harness import Server, in_background, unless_quick
from benchmarks.rows import Row, at_most, column
from benchmarks.sampling import rotate

QUIET, BUSY = "no other writers", "16 other writers"
WRITERS = 16
HOT_NODES = 10  # changed by the other writers, so that the list stays short
MERGE = '{"action": "MARK_BLOCKED", "cause": "lost @", "allowMerge": true}'  # always with another cause
ROUNDS = 7
CHANGES = unless_quick(300, 50)  # of a sample
POLL = 0.0005  # seconds between two reads
PAUSE = 0.005  # seconds between two changes
_REVISION = re.compile(rb"(?i)blocklist-revision: (\d+)")


class Delay(NamedTuple):
    """Milliseconds from the response of one replica to the first GET of the other with the change: p99 and median."""

    p99: float
    p50: float


def rows(first: Server, second: Server) -> list[Row]:
    """Write to the first replica, read from the second."""
    contenders = {QUIET: partial(_quiet, first, second), BUSY: partial(_busy, first, second)}
    samples, noise = rotate(contenders, rounds=ROUNDS)
    p99, p50 = (column(samples, figure) for figure in range(2))
    name = "replication delay"
    return [
        Row(name=f"{name}, 99th percentile", unit="ms", ours=QUIET, samples=p99, noise=noise, targets=[at_most(20)]),
        Row(name=f"{name}, median", unit="ms", ours=QUIET, samples=p50, noise=noise),
    ]


def _quiet(first: Server, second: Server) -> Delay:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        delays = runner.run(_delays(first, second))
    return Delay(p99=quantiles(delays, n=100)[-1], p50=median(delays))


def _busy(first: Server, second: Server) -> Delay:
    with in_background(partial(_write, first, second)):
        return _quiet(first, second)


def _write(first: Server, second: Server, done: threading.Event) -> None:
    urls = [f"{server.url}/blocklist/nodes/worker-@" for server in (first, second)]
    while not done.is_set():
        wrk_write(*urls, method="PUT", body=MERGE, connections=WRITERS, ids=HOT_NODES, refusals=True)


async def _delays(first: Server, second: Server) -> list[float]:
    loop = asyncio.get_running_loop()
    _, writer = await loop.create_connection(HttpConnection, HOST, first.port)
    _, reader = await loop.create_connection(HttpConnection, HOST, second.port)
    change, delays = put("/blocklist/nodes/measured", MERGE.encode()), []
    for number in range(CHANGES):
        answered = await writer.send(change(f"{time.time_ns()}", number))
        revision = _revision(writer)
        seen = await reader.send(get("/blocklist"))
        while _revision(reader) < revision:
            await asyncio.sleep(POLL)
            seen = await reader.send(get("/blocklist"))
        delays.append((seen - answered) * 1000)
        await asyncio.sleep(PAUSE)
    writer.close()
    reader.close()
    return delays


def _revision(connection: HttpConnection) -> int:
    found = _REVISION.search(connection.response)
    if found is None:
        raise RuntimeError(f"no revision in {connection.response[:500]!r}")
    return int(found[1])
