"""Simulated drivers, in processes of their own, because a process may open only so many files."""

import asyncio
import json
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_int64
from dataclasses import dataclass
from multiprocessing.sharedctypes import RawArray
from typing import Any, Final, cast

import uvloop

from benchmarks.connections import HttpConnection
from benchmarks.fanout import CONNECT_BATCH, HOST, SOURCES

PER_PROCESS: Final = 10_000
WAIT: Final = 50  # seconds
HEARTBEAT: Final = 10.0  # seconds
SENDERS: Final = 256  # connections for the heartbeats of a process; each driver has one of its own
HEALTH_CHECK: Final = 0.1  # seconds for which a load balancer does not try a replica that has refused a connection
WAITING, REGISTERED, FAILED, RETRIED = range(4)
"""The counters of a process: drivers that wait, that are registered; responses that end a driver, that are retried."""
COUNTERS: Final = 4


class Crowd:
    """What the processes have counted."""

    def __init__(self, count: int, processes: int) -> None:
        """No driver is connected yet."""
        self.counters = RawArray(c_int64, COUNTERS * processes)
        # The revision that each driver has, and that it has acknowledged.
        self.received = RawArray(c_int64, count)
        self.acknowledged = RawArray(c_int64, count)

    def _sum(self, counter: int) -> int:
        return sum(self.counters[counter::COUNTERS])

    @property
    def waiting(self) -> int:
        """Drivers with an answered request since their last failure."""
        return self._sum(WAITING)

    @property
    def registered(self) -> int:
        """Drivers that the service knows."""
        return self._sum(REGISTERED)

    @property
    def failed(self) -> int:
        """Responses that are neither a success nor a 503 with `Retry-After`."""
        return self._sum(FAILED)

    def count_received(self, revision: int) -> int:
        """Drivers with a table of this revision or a later one."""
        return sum(each >= revision for each in self.received)

    def count_acknowledged(self, revision: int) -> int:
        """Drivers whose heartbeat with this revision was answered."""
        return sum(each >= revision for each in self.acknowledged)

    def wait_until(self, condition: Callable[[], bool], timeout: float) -> None:
        """Raises TimeoutError with what was counted."""
        end = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"{self.waiting} wait, {self.registered} are registered, {self.failed} failed")
            time.sleep(0.02)

    def seconds_until(self, condition: Callable[[], bool], begun: float, timeout: float) -> float:
        """Seconds since `begun` (`perf_counter`)."""
        self.wait_until(condition, timeout)
        return time.perf_counter() - begun


@contextmanager
def crowd(count: int, ports: Sequence[int]) -> Iterator[Crowd]:
    """Start so many drivers; they end at the end of the context."""
    context = multiprocessing.get_context("fork")
    starts = range(0, count, PER_PROCESS)
    drivers = Crowd(count, len(starts))
    processes = [
        context.Process(
            target=_run, args=(drivers, place, range(first, min(first + PER_PROCESS, count)), list(ports)), daemon=True
        )
        for place, first in enumerate(starts)
    ]
    for process in processes:
        process.start()
    try:
        yield drivers
    finally:
        for process in processes:
            process.kill()
            process.join()


def _run(drivers: Crowd, place: int, numbers: range, ports: list[int]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Process(drivers, place, numbers, ports).run())


@dataclass
class _Process:
    """The drivers of one process."""

    drivers: Crowd
    place: int
    numbers: range
    ports: list[int]

    async def run(self) -> None:
        """Never ends."""
        # When, which driver, and whether it is one beside those that repeat.
        self.due: asyncio.PriorityQueue[tuple[float, int, bool]] = asyncio.PriorityQueue()
        self.registered: set[int] = set()
        self.failures: Counter[int] = Counter()
        self.refused_until: dict[int, float] = {}
        for first in range(0, len(self.numbers), CONNECT_BATCH):
            batch = [_Driver(self, number) for number in self.numbers[first : first + CONNECT_BATCH]]
            await asyncio.gather(*(driver.connect() for driver in batch))
        now = time.monotonic()
        for number in self.numbers:
            self.due.put_nowait((now + random.random() * HEARTBEAT, number, False))
        await asyncio.gather(*(self._send_heartbeats() for _ in range(SENDERS)))

    def add(self, counter: int, value: int) -> None:
        self.drivers.counters[self.place * COUNTERS + counter] += value

    async def connection(self, make: Callable[[], Any]) -> Any:
        """Of any replica that accepts it, as behind a load balancer."""
        loop = asyncio.get_running_loop()
        for port in random.sample(self.ports, len(self.ports)):
            if loop.time() < self.refused_until.get(port, 0.0):
                continue
            try:
                source = (random.choice(SOURCES), 0)
                return (await loop.create_connection(make, HOST, port, local_addr=source))[1]
            except OSError:
                self.refused_until[port] = loop.time() + HEALTH_CHECK
        raise ConnectionError("no replica accepts a connection")

    async def _send_heartbeats(self) -> None:
        sender: Any = None
        while True:
            at, number, extra = await self.due.get()
            if at > (now := time.monotonic()):
                # Another one may be due before.
                self.due.put_nowait((at, number, extra))
                await asyncio.sleep(min(at - now, 0.05))
                continue
            try:
                if sender is None or sender.transport.is_closing():
                    sender = await self.connection(HttpConnection)
                pause = await self._heartbeat(sender, number)
            except OSError:
                sender, pause = None, self._fail(number)
            if not extra or pause < HEARTBEAT:
                self.due.put_nowait((time.monotonic() + pause, number, extra))

    async def _heartbeat(self, sender: HttpConnection, number: int) -> float:
        """Return the seconds until the next one of this driver."""
        revision = self.drivers.received[number]
        if number in self.registered:
            path, method, body = "/heartbeat", "POST", {"sessionId": "s1", "ackedRevision": revision}
        else:
            path, method, body = "", "PUT", {"role": "JOB_MASTER", "sessionId": "s1", "leaseSeconds": 60}
        text = json.dumps(body)
        head = f"{method} /listeners/app-{number}{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n"
        await sender.send(f"{head}\r\n{text}".encode())
        status = sender.response[9:12]
        if status not in (b"200", b"201"):
            if status != b"404":
                self.add(RETRIED if status == b"503" else FAILED, 1)
            return self._fail(number)
        del self.failures[number]
        if method == "POST":
            self.drivers.acknowledged[number] = revision
            return HEARTBEAT
        if number not in self.registered:
            self.registered.add(number)
            self.add(REGISTERED, 1)
        return 0.0

    def _fail(self, number: int) -> float:
        """Return the seconds until this driver tries again: it registers then, whatever the service has lost."""
        if number in self.registered:
            self.registered.remove(number)
            self.add(REGISTERED, -1)
        self.failures[number] += 1
        return _delay(self.failures[number])


class _Driver(asyncio.Protocol):
    """Waits for tables, on a connection of its own."""

    def __init__(self, process: _Process, number: int) -> None:
        self.process, self.number = process, number
        self.tag = b""
        self.failures = 0
        self.waits = False
        self.transport: asyncio.Transport | None = None

    async def connect(self) -> None:
        self.head, self.left, self.status, self.retry_after = b"", 0, b"", 0.0
        try:
            await self.process.connection(lambda: self)
        except ConnectionError:
            self._retry()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        # The first one is answered at once, which shows that the driver is served.
        self._ask(wait=0)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._retry()

    def data_received(self, data: bytes) -> None:
        if self.left:
            self.left -= len(data)
        else:
            self.head += data
            head, end, body = self.head.partition(b"\r\n\r\n")
            if not end:
                return
            self.head = b""
            self._read_head(head, len(body))
        if not self.left:
            self._finish()

    def _read_head(self, head: bytes, length: int) -> None:
        lines = (line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
        fields = {name.lower(): value for name, value in lines}
        self.status = head[9:12]
        self.left = int(fields.get(b"content-length", b"0")) - length
        self.retry_after = float(fields.get(b"retry-after", b"0"))
        if self.status == b"200":
            self.tag = fields[b"etag"]
            self.process.drivers.received[self.number] = int(fields[b"blocklist-revision"])

    def _finish(self) -> None:
        if self.status not in (b"200", b"304"):
            survivable = self.status == b"503" and self.retry_after
            self.process.add(RETRIED if survivable else FAILED, 1)
            assert self.transport is not None
            self.transport.abort()
            return
        if self.status == b"200" and self.waits:
            # The agent acknowledges a new table within a second.
            self.process.due.put_nowait((time.monotonic() + random.random(), self.number, True))
        if not self.waits:
            self.waits, self.failures = True, 0
            self.process.add(WAITING, 1)
        self._ask(wait=WAIT)

    def _ask(self, wait: int) -> None:
        assert self.transport is not None
        prefer = f"Prefer: wait={wait}\r\n" if wait else ""
        tag = b"If-None-Match: " + self.tag + b"\r\n" if self.tag else b""
        head = f"GET /blocklist/table HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n{prefer}"
        self.transport.write(head.encode() + tag + b"\r\n")

    def _retry(self) -> None:
        if self.waits:
            self.waits = False
            self.process.add(WAITING, -1)
        self.failures += 1
        delay = max(self.retry_after, _delay(self.failures))
        asyncio.get_running_loop().call_later(delay, lambda: asyncio.ensure_future(self.connect()))


def _delay(failures: int) -> float:
    """Seconds until the next try, as in `Loop.java`."""
    return min(10.0, 0.5 * 2.0 ** min(failures, 10)) * (0.5 + random.random() / 2)
