"""HTTP as bytes on a socket, for requests that an HTTP client would correct or refuse to send."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

_VOLATILE_HEADERS = ("date", "x-request-id")


@dataclass(frozen=True, kw_only=True)
class RawResponse:
    """One response as it was received; `headers` in their order, with names in lower case."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name.lower()), None)

    def json(self) -> Any:
        return json.loads(self.body)

    def without_volatile_headers(self) -> tuple[int, list[tuple[str, str]], bytes]:
        """What must not differ between two servers with the same content: all but the date and the request id."""
        return self.status, [header for header in self.headers if header[0] not in _VOLATILE_HEADERS], self.body


def request(
    target: str | bytes,
    *headers: str,
    method: str = "GET",
    body: bytes = b"",
    version: str = "HTTP/1.1",
    length: bool = True,
) -> bytes:
    """The bytes of one request, with Host; with Content-Length if there is a body."""
    path = target if isinstance(target, bytes) else target.encode()
    lines = [b"Host: localhost", *(header.encode("latin-1") for header in headers)]
    if body and length:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([method.encode() + b" " + path + b" " + version.encode(), *lines, b"", body])


def exchange(port: int, *payloads: bytes, methods: Iterable[str] = ("GET",)) -> list[RawResponse]:
    """Send the payloads on one connection and read a response for each of `methods` (that to a HEAD has no body)."""
    with connection_to(port) as connection:
        for payload in payloads:
            connection.sendall(payload)
        with connection.makefile("rb") as stream:
            return [read_response(stream, method) for method in methods]


def send_request(port: int, payload: bytes, method: str = "GET") -> RawResponse:
    """Send one request on a new connection."""
    return exchange(port, payload, methods=[method])[0]


def read_until_closed(port: int, payload: bytes) -> bytes:
    """Send, and read until the server closes the connection; without volatile lines."""
    with connection_to(port) as connection:
        connection.sendall(payload)
        with connection.makefile("rb") as stream:
            return without_volatile_lines(stream.read())


def without_volatile_lines(raw: bytes) -> bytes:
    """Without the lines that differ for each response: the date and the request id."""
    return re.sub(rb"(?im)^(date|x-request-id): [^\r]*\r\n", b"", raw)


@contextmanager
def connection_to(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        yield connection


def read_response(stream: IO[bytes], method: str = "GET") -> RawResponse:
    """Read one final response; interim ones (1xx) are skipped."""
    status, headers = _read_head(stream)
    while 100 <= status < 200:
        status, headers = _read_head(stream)
    named = dict(headers)
    if method == "HEAD" or status in (204, 304):
        body = b""
    elif named.get("transfer-encoding") == "chunked":
        body = b"".join(_read_chunks(stream))
    elif "content-length" in named:
        body = stream.read(int(named["content-length"]))
    else:
        body = stream.read()
    return RawResponse(status=status, headers=headers, body=body)


def _read_head(stream: IO[bytes]) -> tuple[int, tuple[tuple[str, str], ...]]:
    first = stream.readline().decode("latin-1")
    assert first.startswith("HTTP/1.1 "), f"not the head of a response: {first!r}"
    headers = []
    while line := stream.readline().decode("latin-1").rstrip("\r\n"):
        name, _, value = line.partition(":")
        headers.append((name.lower(), value.strip()))
    return int(first.split()[1]), tuple(headers)


def _read_chunks(stream: IO[bytes]) -> Iterator[bytes]:
    while size := int(stream.readline(), 16):
        yield stream.read(size)
        stream.readline()
    stream.readline()
