"""A service that does everything wrong: what it does is chosen for each request, from a seed.

Some responses are valid tables, with lists that no operator would write: every host blocked, evacuated and freed again
many times in a second.
"""

from __future__ import annotations

import gzip
import random
import re
import socket
import socketserver
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from email.utils import formatdate
from functools import cache, partial
from typing import Final

from blocklist import PERMANENT
from tests.applications.conftest import HOSTS

Connection = socket.socket
Answer = Callable[[Connection, random.Random], None]

MAX_SECONDS: Final = 20.0
"""A response without end is continued for this time, unless the service sets a shorter timeout of its connection."""
REGISTERED: Final = "registered"
WRONG_TOKEN: Final = "wrong token"
_CHUNK: Final = 65_536
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_REFUSALS: Final = (
    "400 Bad", "401 Wrong token", "403 No", "404 No", "409 No", "413 No", "429 Slow", "500 Oh", "503 Away", "599 ?",
)  # fmt: skip


def hang(connection: Connection, chance: random.Random) -> None:
    time.sleep(connection.gettimeout() or MAX_SECONDS)


def drip(connection: Connection, chance: random.Random) -> None:
    """A byte every tenth of a second."""
    connection.sendall(_head("200 OK"))
    _until_late(connection, b"x", pause=0.1)


def drip_head(connection: Connection, chance: random.Random) -> None:
    connection.sendall(b"HTTP/1.1 ")
    _until_late(connection, b"2", pause=0.1)


def endless_headers(connection: Connection, chance: random.Random) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    _until_late(connection, b"X-More: " + b"y" * 8_000 + b"\r\n")


def endless_header_line(connection: Connection, chance: random.Random) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-More: ")
    _until_late(connection, b"y" * _CHUNK)


def endless_informational(connection: Connection, chance: random.Random) -> None:
    _until_late(connection, b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000)


def endless_body(connection: Connection, chance: random.Random) -> None:
    connection.sendall(_head("200 OK"))
    _until_late(connection, b"x" * _CHUNK)


def endless_lines(connection: Connection, chance: random.Random) -> None:
    """A table that promises few entries and has no end of them."""
    connection.sendall(_head("200 OK") + b"blocklist-table 1 7 3\n")
    _until_late(connection, _lines([f"node-{number}" for number in range(1_000)], "mark", PERMANENT))


def endless_chunk(connection: Connection, chance: random.Random) -> None:
    connection.sendall(_head("200 OK", "Transfer-Encoding: chunked") + b"7fffffff\r\n")
    _until_late(connection, b"x" * _CHUNK)


def gzip_bomb(connection: Connection, chance: random.Random) -> None:
    body = _bomb()
    connection.sendall(_head("200 OK", "Content-Encoding: gzip", f"Content-Length: {len(body)}") + body)


def garbage(connection: Connection, chance: random.Random) -> None:
    connection.sendall(chance.randbytes(chance.randrange(1, 5_000)))


def garbage_body(connection: Connection, chance: random.Random) -> None:
    _respond(connection, "200 OK", chance.randbytes(chance.randrange(0, 5_000)))


def wrong_json(connection: Connection, chance: random.Random) -> None:
    """Neither a table nor what a report is answered with."""
    bodies = [
        b"", b"null", b"[]", b"{\"mode\":", b"{\"mode\":\"destroy\"}", b"{\"mode\":{\"mode\":7}}", b"[" * 100_000,
        b"{\"revision\":-1e999,\"leaseEnd\":\"never\",\"nodes\":" + b"9" * 200_000,
    ]  # fmt: skip
    _respond(connection, "200 OK", chance.choice(bodies), "Content-Type: application/json")


def forged_headers(connection: Connection, chance: random.Random) -> None:
    """A good body, and headers that lie."""
    _respond(connection, "200 OK", chance.choice([_table(chance), _ACCEPTED]), *chance.sample(_LIES, 3))


def web_page(connection: Connection, chance: random.Random) -> None:
    _respond(connection, "200 OK", b"<h1>Please log in</h1>", "Content-Type: text/html")


def refusal(connection: Connection, chance: random.Random) -> None:
    status = chance.choice(_REFUSALS)
    _respond(connection, status, b"{}", chance.choice(["Retry-After: 0", "Retry-After: 99999999999", "Retry-After: x"]))


def redirect(connection: Connection, chance: random.Random) -> None:
    _respond(connection, chance.choice(["301 Moved", "307 There", "302 There"]), b"", "Location: /blocklist/table")


def other_success(connection: Connection, chance: random.Random) -> None:
    _respond(connection, chance.choice(["204 Nothing", "206 Part", "304 Same", "101 Other", "299 ?"]), b"")


def reset(connection: Connection, chance: random.Random) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def half_a_table(connection: Connection, chance: random.Random) -> None:
    """It ends in the middle, and its header promises more."""
    body = _table(chance)
    connection.sendall(_head("200 OK", f"Content-Length: {len(body)}") + body[: chance.randrange(len(body))])


def wrong_table(connection: Connection, chance: random.Random) -> None:
    """A table with one wrong line or head."""
    lines = _table(chance).splitlines(keepends=True)
    lines[chance.randrange(len(lines))] = chance.choice(
        [
            b"blocklist-table 3 9 1\n",
            b"blocklist-table 1 -5 99\n",
            b"blocklist-table 1 99999999999999999999 0\n",
            b"127.0.0.32\tsoon\tevacuate\tid\tcause\n",
            b"127.0.0.32\t-1\tevacuate\tid\tcause\n",
            b"127.0.0.32\t9223372036854775808\tevacuate\tid\tcause\n",
            b"127.0.0.32\t9223372036854775807\tdestroy\tid\tcause\n",
            b"127.0.0.32\n",
            b"\t\t\t\t\t\t\t\n",
            b"\0\xff\xfe\n",
            b"x" * 1_000_000 + b"\n",
        ]
    )
    _respond(connection, "200 OK", b"".join(lines))


def hostile_list(connection: Connection, chance: random.Random) -> None:
    """A valid table: any host may have any block or none, for ever or for a moment. Its clock jumps by centuries."""
    date = formatdate(chance.choice([0, time.time(), time.time() + 3_600, 2**37]), usegmt=True)
    _respond(connection, "200 OK", _table(chance), f'ETag: "{chance.randrange(1000)}"', f"Date: {date}")


def _empty_table(connection: Connection, chance: random.Random) -> None:
    _respond(connection, "200 OK", b"blocklist-table 1 1 0\n", 'ETag: "1"')


def accept(connection: Connection, chance: random.Random) -> None:
    """What a registration or a heartbeat expects."""
    _respond(connection, "200 OK", _ACCEPTED)


FAULTS: Final[Sequence[Answer]] = (
    hang, drip, drip_head, endless_headers, endless_header_line, endless_informational, endless_body, endless_lines,
    endless_chunk, gzip_bomb, garbage, garbage_body, wrong_json, forged_headers, web_page, refusal, redirect,
    other_success, reset, half_a_table, wrong_table,
)  # fmt: skip


@contextmanager
def hostile_service(seed: int, answers: Sequence[Answer] | None = None) -> Iterator[HostileService]:
    """Serve on a free port. Half of the responses are valid tables, unless `answers` says which there are."""
    service = HostileService(seed, answers or (*FAULTS, *(hostile_list,) * len(FAULTS)))
    with _serving(service):
        yield service


@contextmanager
def hanging_service() -> Iterator[HangingService]:
    """Serve on a free port."""
    service = HangingService()
    with _serving(service):
        yield service


@contextmanager
def hostile_proxy(seed: int, port: int) -> Iterator[HostileProxy]:
    """Serve on a free port, before the service on this port."""
    service = HostileProxy(seed, port)
    with _serving(service):
        yield service


@contextmanager
def _serving(service: HostileService) -> Iterator[None]:
    with service:
        thread = threading.Thread(target=service.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield
        finally:
            service.shutdown()
            thread.join()


class HostileService(socketserver.ThreadingTCPServer):
    """The server; `answered` counts the responses by name."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 100

    def __init__(self, seed: int, answers: Sequence[Answer]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answered: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._chance, self._answers = random.Random(seed), answers

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def seconds(self, chance: random.Random) -> float:
        """How long a response without end is continued."""
        return MAX_SECONDS

    def choose(self, request: bytes) -> tuple[Answer, random.Random]:
        """The answer to a request; a report is accepted half of the time."""
        with self._lock:
            answer = self._chance.choice(self._answers)
            if answer is hostile_list and b"/blocklist/table" not in request:
                answer = accept
            self.answered[answer.__name__] += 1
            return answer, random.Random(self._chance.random())


class HostileProxy(HostileService):
    """Passes two of five requests on to a real service. Few of its slow responses are as slow as they can be.

    `answered` has its own responses, and what the real service said to the application: REGISTERED and WRONG_TOKEN.
    """

    def __init__(self, seed: int, port: int) -> None:
        super().__init__(seed, (*FAULTS, *(hostile_list,) * (len(FAULTS) // 2)))
        self._port = port

    @property
    def hostile(self) -> int:
        """Number of hostile responses."""
        return self.answered.total() - self.answered[accept.__name__] - self.answered[REGISTERED]

    def seconds(self, chance: random.Random) -> float:
        return MAX_SECONDS if chance.random() < 0.03 else chance.random()

    def choose(self, request: bytes) -> tuple[Answer, random.Random]:
        with self._lock:
            passes, chance = self._chance.random() < 0.4, random.Random(self._chance.random())
        return (partial(self._pass_on, request), chance) if passes else super().choose(request)

    def _pass_on(self, request: bytes, connection: Connection, chance: random.Random) -> None:
        # The next request must come on another connection, as it may get another response.
        request = request.replace(b"Connection: keep-alive", b"Connection: close", 1)
        # The service keeps a request for up to 50 s; while it is down, the connection ends without a response.
        with socket.create_connection(("127.0.0.1", self._port), 60) as service:
            service.sendall(request)
            response = service.recv(_CHUNK)
            self._note(request.split(b" ", 1)[0], response[9:12])
            while response:
                connection.sendall(response)
                response = service.recv(_CHUNK)

    def _note(self, method: bytes, status: bytes) -> None:
        with self._lock:
            if status == b"401":
                self.answered[WRONG_TOKEN] += 1
            elif method == b"PUT" and status in {b"200", b"201"}:
                self.answered[REGISTERED] += 1


class HangingService(HostileService):
    """Sends one good table; the next one ends in the middle, and the connection stays open. It accepts all reports."""

    def __init__(self) -> None:
        super().__init__(0, [accept])
        self.hanging = 0
        """Number of responses that hang."""
        self.deregistered_meanwhile = False
        """Whether the application has deregistered while a response was hanging."""

    def choose(self, request: bytes) -> tuple[Answer, random.Random]:
        answer, chance = super().choose(request)
        if request.startswith(b"DELETE"):
            self.deregistered_meanwhile = self.hanging > 0
        if b"/blocklist/table" in request:
            answer = self._hang_in_a_table if b"If-None-Match" in request else _empty_table
        return answer, chance

    def _hang_in_a_table(self, connection: Connection, chance: random.Random) -> None:
        connection.settimeout(300)
        connection.sendall(_head("200 OK", "Transfer-Encoding: chunked") + b"40\r\nblocklist-table 1 2 5\n")
        self.hanging += 1
        with suppress(OSError):
            connection.recv(1)
        self.hanging -= 1


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        connection: Connection = self.request
        connection.settimeout(MAX_SECONDS)
        server = self.server
        assert isinstance(server, HostileService)
        # The client may leave at any time.
        with suppress(OSError):
            answer, chance = server.choose(_receive(connection))
            connection.settimeout(server.seconds(chance))
            # A list that changes all the time, but not without pause.
            time.sleep(0.02)
            answer(connection, chance)


_HEADERS: Final = ("Connection: close", "Blocklist-Revision: 1", "Blocklist-History: 00000001")
_ACCEPTED: Final = b'{"revision":1,"leaseEnd":"1","reported":[]}'
_LIES: Final = (
    "Content-Length: 3", "Content-Length: -1", "Content-Length: 99999999999999999999", "Content-Encoding: gzip",
    "Transfer-Encoding: chunked", "Connection: Upgrade\r\nUpgrade: h2c", "Blocklist-Revision: -99999999999999999999",
    "Blocklist-History: ../../../etc", "ETag: " + "x" * 60_000, "ETag: W/\"\xff", "Date: tomorrow", "Retry-After: -1",
    "\r\n".join(["X-More: y"] * 1_000),
)  # fmt: skip


@cache
def _bomb() -> bytes:
    return gzip.compress(b"\t" * 200_000_000)


def _receive(connection: Connection) -> bytes:
    """A whole request, or as much as was sent of it."""
    request = b""
    while data := connection.recv(_CHUNK):
        request += data
        head, end, body = request.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if end and len(body) >= (int(length[1]) if length else 0):
            break
    return request


def _head(status: str, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", *_HEADERS, *headers]
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"


def _respond(connection: Connection, status: str, body: bytes, *headers: str) -> None:
    connection.sendall(_head(status, f"Content-Length: {len(body)}", *headers) + body)


def _until_late(connection: Connection, data: bytes, *, pause: float = 0.0) -> None:
    deadline = time.monotonic() + (connection.gettimeout() or MAX_SECONDS)
    while time.monotonic() < deadline:
        connection.sendall(data)
        time.sleep(pause)


def _table(chance: random.Random) -> bytes:
    lines = b""
    others = [f"node-{number}.example.test" for number in range(chance.choice([0, 0, 3, 2_000]))]
    for name in (*HOSTS, *others):
        if chance.random() < 0.6:
            end = chance.choice([PERMANENT, 1, int(time.time() * 1000) + chance.randrange(3_000)])
            lines += _lines([name], chance.choice(["canary", "mark", "evacuate"]), end)
    return b"blocklist-table 1 %d %d\n" % (chance.randrange(1_000), lines.count(b"\n")) + lines


def _lines(names: Sequence[str], action: str, end: int) -> bytes:
    return "".join(f"{name}\t{end}\t{action}\t{name}\ttest\n" for name in names).encode()
