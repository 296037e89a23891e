"""GET /blocklist with 100 changes per second, compared with reads of an unchanged list."""

import http.client
import json
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import count
from typing import NamedTuple

from benchmarks import systems
from benchmarks.harness import Server, in_background, scratch
from benchmarks.request_cost import cost
from benchmarks.rows import Row, at_least, column
from benchmarks.sampling import rotate

RATE = 100  # PUTs a second
WRITERS = 5  # one connection could not keep the rate
CHANGING, UNCHANGED = f"{RATE} PUTs/s", "no writes"
SIZES = (10, 1000)
ROUNDS = 9
JSON = {"Content-Type": "application/json"}

_ends = count(4_102_444_800_001)  # ascending, so that each merge is a change


class Reads(NamedTuple):
    """One sample: GETs per second, µs of CPU per GET including the PUTs, and concurrent PUTs per second."""

    gets: float
    cpu: float
    puts: float


def run() -> list[Row]:
    """Return the rows of each list size, including the actual rate of PUTs."""
    systems.require("wrk")
    with scratch() as folder, ExitStack() as stack:
        services = {size: stack.enter_context(systems.service(folder / str(size))) for size in SIZES}
        return [row for size, server in services.items() for row in _rows(server, size)]


def _rows(server: Server, size: int) -> list[Row]:
    systems.block(server, size)
    contenders: dict[str, Callable[[], Reads]] = {
        CHANGING: partial(_changing, server),
        UNCHANGED: lambda: Reads(*cost(server, "/blocklist"), 0),
    }
    samples, noise = rotate(contenders, rounds=ROUNDS)
    gets, cpu, puts = (column(samples, figure) for figure in range(3))
    name, completed = f"{size:,} nodes", {CHANGING: puts[CHANGING]}
    return [
        Row(name=name, unit="requests/s", ours=CHANGING, samples=gets, noise=noise, targets=[at_least(0.9, UNCHANGED)]),
        Row(name=name, unit="µs of CPU per GET, PUTs included", ours=CHANGING, samples=cpu, noise=noise),
        Row(name=f"{name}: concurrent PUTs", unit="PUTs/s", ours=CHANGING, samples=completed, noise=noise),
    ]


def _changing(server: Server) -> Reads:
    completed: list[float] = []  # times of the responses
    started = time.monotonic()
    with ExitStack() as stack:
        for number in range(WRITERS):
            stack.enter_context(in_background(partial(_put, server, number, completed)))
        reads = cost(server, "/blocklist")
    return Reads(*reads, len(completed) / (max(completed) - started))


def _put(server: Server, number: int, completed: list[float], stop: threading.Event) -> None:
    """Merge into one node at a fixed rate, so that the size of the list does not change."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    due = time.monotonic() + number / RATE
    while not stop.wait(max(0.0, due - time.monotonic())):
        body = {"action": "MARK_BLOCKED", "cause": "lost 3 partitions", "endTimestamp": next(_ends), "allowMerge": True}
        connection.request("PUT", f"/blocklist/nodes/worker-{number:05d}", json.dumps(body), JSON)
        response = connection.getresponse()
        if response.status != 202:
            raise RuntimeError(f"{response.status}: {response.read()!r}")
        response.read()
        completed.append(time.monotonic())
        due += WRITERS / RATE
    connection.close()
