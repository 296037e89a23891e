"""Latency of single GETs at a fixed rate."""

import asyncio
import time

import uvloop

from benchmarks.connections import HttpConnection
from benchmarks.fanout import HOST, get
from benchmarks.harness import Server


def run_get_latencies(server: Server, *, seconds: float, rate: float) -> list[float]:
    """GET the list `rate` times per second; return the milliseconds until each response begins."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(get_latencies(server, seconds=seconds, rate=rate))


async def get_latencies(server: Server, *, seconds: float, rate: float) -> list[float]:
    """The same, on a loop that also runs other tasks."""
    _, writer = await asyncio.get_running_loop().create_connection(HttpConnection, HOST, server.port)
    times: list[float] = []
    started = time.perf_counter()
    for number in range(int(seconds * rate)):
        await asyncio.sleep(started + number / rate - time.perf_counter())
        sent = time.perf_counter()
        times.append((await writer.send(get("/blocklist")) - sent) * 1000)
    writer.close()
    return times
