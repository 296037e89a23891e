"""How long a GET takes, one after the other, at moments that the server does not choose."""

import asyncio
import time

import uvloop

from benchmarks.harness import Server
from benchmarks.watchers import HOST, get
from benchmarks.writers import HttpWriter


def gets(server: Server, *, seconds: float, rate: float) -> list[float]:
    """So many GETs of the list a second: milliseconds until the answer begins."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(gets_beside(server, seconds=seconds, rate=rate))


async def gets_beside(server: Server, *, seconds: float, rate: float) -> list[float]:
    """The same, on a loop that has other things to do."""
    _, writer = await asyncio.get_running_loop().create_connection(HttpWriter, HOST, server.port)
    times: list[float] = []
    began = time.perf_counter()
    for number in range(int(seconds * rate)):
        await asyncio.sleep(began + number / rate - time.perf_counter())
        sent = time.perf_counter()
        times.append((await writer.ask(get("/blocklist")) - sent) * 1000)
    writer.close()
    return times
