"""10,000 drivers that wait for the next table, compared with the same on `GET /blocklist`.

A driver has a connection of its own and one request at a time: `Prefer: wait=50` with the ETag of what it has.
"""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple, cast

import uvloop

from benchmarks import systems
from benchmarks.fanout import CONNECT_BATCH, HOST, SOURCES
from benchmarks.harness import Server, fetch, need_files, scratch, unless_quick
from benchmarks.rows import Row, column
from benchmarks.sampling import cpu_seconds, megabytes, rotate

DRIVERS = unless_quick(10_000, 1_000)
SIZES = (100, 5_000)
ROUNDS = 3
REST = unless_quick(10.0, 2.0)  # seconds
WAIT = 50  # seconds
CHANGE_TIMEOUT = 300.0  # seconds
PER_REQUEST = 1_000
TABLE, LIST = "GET /blocklist/table", "GET /blocklist"
SETTINGS = {"BLOCKLIST_MAX_WAITS_PER_CLIENT": str(DRIVERS), "BLOCKLIST_MAX_CONNECTIONS": str(2 * DRIVERS)}
"""All drivers come from ten addresses, without tokens. The service raises its own limit of open files."""


class Cost(NamedTuple):
    """CPU seconds of the service at rest; seconds, and its CPU seconds, until all have a change; kB per driver."""

    rest: float
    seconds: float
    cpu: float
    kilobytes: float


class Crowd:
    """The drivers; counts those that have received the current change."""

    def __init__(self) -> None:
        """Nothing is expected yet."""
        self.missing = 0
        self.done: asyncio.Future[None] | None = None

    def expect(self, count: int) -> asyncio.Future[None]:
        """Return a future that is done once `count` drivers have a new body."""
        self.missing, self.done = count, asyncio.get_running_loop().create_future()
        return self.done

    def count(self) -> None:
        """One more driver has a whole new body."""
        self.missing -= 1
        if self.missing == 0 and self.done is not None:
            self.done.set_result(None)


class Driver(asyncio.Protocol):
    """Sends the next request as soon as it has the whole response."""

    def __init__(self, crowd: Crowd, path: str, tag: str) -> None:
        """It already has the body with this ETag."""
        self.crowd, self.path, self.tag = crowd, path, tag.encode()
        self.head, self.left = b"", 0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first change."""
        self.transport = cast("asyncio.Transport", transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """The body is counted, not kept."""
        if self.left:
            self.left -= len(data)
        else:
            self.head += data
            head, end, body = self.head.partition(b"\r\n\r\n")
            if not end:
                return
            self.head = b""
            fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
            self.tag, self.left = fields[b"etag"], int(fields.get(b"content-length", b"0")) - len(body)
            if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 304")):
                raise RuntimeError(f"{head[:200]!r}")
            if head.startswith(b"HTTP/1.1 304"):
                self._wait()
                return
        if not self.left:
            self.crowd.count()
            self._wait()

    def _wait(self) -> None:
        assert self.transport is not None
        lines = f"GET {self.path} HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\nPrefer: wait={WAIT}\r\n"
        self.transport.write(lines.encode() + b"If-None-Match: " + self.tag + b"\r\n\r\n")


def run() -> list[Row]:
    """A service for each size of the list; both resources of it in turn."""
    need_files(DRIVERS + 100)
    return [row for size in SIZES for row in _rows(size)]


def _rows(size: int) -> list[Row]:
    with scratch() as folder, ExitStack() as stack:
        service = stack.enter_context(systems.service(folder, SETTINGS))
        _block(service, size)
        contenders: dict[str, Callable[[], Cost]] = {
            name: partial(_sample, service, name.partition(" ")[2]) for name in (TABLE, LIST)
        }
        samples, noise = rotate(contenders, rounds=ROUNDS)
    figures = {
        f"CPU at rest in {REST:g} s": "s",
        "a change, until all have it": "s",
        "a change, CPU until all have it": "s",
        "memory of the service per driver": "kB",
    }
    return [
        Row(
            name=f"{DRIVERS:,} drivers, {size:,} ids: {name}",
            unit=unit,
            ours=TABLE,
            samples=column(samples, figure),
            noise=noise,
        )
        for figure, (name, unit) in enumerate(figures.items())
    ]


def _block(server: Server, size: int) -> None:
    for first in range(0, size, PER_REQUEST):
        names = range(first, min(first + PER_REQUEST, size))
        nodes = {f"host-{name}.example.com": {"action": "MARK_BLOCKED", "cause": "Disk errors"} for name in names}
        status, _, body = fetch(server.port, "/blocklist/nodes", method="PUT", body=json.dumps(nodes))
        if status != 200:
            raise RuntimeError(f"{body[:200]!r}")


def _sample(server: Server, path: str) -> Cost:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_wait_and_change(server, path))


async def _wait_and_change(server: Server, path: str) -> Cost:
    """Connect, rest, and change the list once."""
    before = megabytes(server.pid)
    crowd = Crowd()
    drivers = await _connect(server, path, crowd)
    # The last requests have been read when this is answered.
    await asyncio.to_thread(fetch, server.port, "/healthz")
    kilobytes = (megabytes(server.pid) - before) * 1000 / DRIVERS
    rest = cpu_seconds(server.pid)
    await asyncio.sleep(REST)
    rest, started = cpu_seconds(server.pid) - rest, cpu_seconds(server.pid)
    received, begun = crowd.expect(DRIVERS), time.perf_counter()
    change = asyncio.to_thread(_change, server)
    await asyncio.wait_for(asyncio.gather(change, received), CHANGE_TIMEOUT)
    seconds, cpu = time.perf_counter() - begun, cpu_seconds(server.pid) - started
    for driver in drivers:
        if driver.transport is not None:
            driver.transport.abort()
    await asyncio.sleep(1)
    return Cost(rest, seconds, cpu, kilobytes)


async def _connect(server: Server, path: str, crowd: Crowd) -> list[Driver]:
    tag = fetch(server.port, path, headers={"Accept-Encoding": "gzip"})[1]["etag"]
    loop = asyncio.get_running_loop()
    drivers: list[Driver] = []
    for first in range(0, DRIVERS, CONNECT_BATCH):
        made = [
            loop.create_connection(
                partial(Driver, crowd, path, tag), HOST, server.port, local_addr=(SOURCES[number % len(SOURCES)], 0)
            )
            for number in range(first, min(first + CONNECT_BATCH, DRIVERS))
        ]
        drivers += [driver for _, driver in await asyncio.gather(*made)]
    return drivers


def _change(server: Server) -> None:
    """Block one node more, or free it."""
    body = json.dumps({"action": "MARK_BLOCKED", "cause": "Disk errors"})
    status, _, _ = fetch(server.port, "/blocklist/nodes/changing", method="DELETE")
    if status == 404:
        status, _, _ = fetch(server.port, "/blocklist/nodes/changing", method="PUT", body=body)
    if status not in (200, 201):
        raise RuntimeError(f"the list was not changed: {status}")
