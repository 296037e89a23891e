"""A proxy on loopback that closes connections after a given number of bytes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Final

from tests.integration.fake_servers import tcp_server

ALL: Final = 2**62


@dataclass
class TruncatingProxy:
    """Its address, and the number of accepted connections."""

    address: str = ""
    accepted: int = 0


@contextmanager
def truncating_proxy(port: int, cuts: Iterable[tuple[int, int]]) -> Iterator[TruncatingProxy]:
    """A proxy to a port: `cuts` are the maximum number of bytes to the server and back, for each connection.

    Connections after those of `cuts` are left alone.
    """
    each, turn = chain(cuts, repeat((ALL, ALL))), threading.Lock()
    cutter = TruncatingProxy()

    def serve(client: socket.socket) -> None:
        with turn:
            there, back = next(each)
            cutter.accepted += 1
        with socket.create_connection(("127.0.0.1", port)) as server:
            _forward(client, server, there, back)

    # A daemon: connections that are not cut stay open.
    with tcp_server(serve, daemon=True) as url:
        cutter.address = url.removeprefix("http://")
        yield cutter


def _forward(client: socket.socket, server: socket.socket, there: int, back: int) -> None:
    answering = threading.Thread(target=_copy, args=(server, client, back))
    answering.start()
    _copy(client, server, there)
    answering.join()


def _copy(source: socket.socket, target: socket.socket, limit: int) -> None:
    """Copy up to the limit, then close both."""
    with suppress(OSError):
        while limit and (data := source.recv(min(65536, limit))):
            target.sendall(data)
            limit -= len(data)
    for side in (source, target):
        with suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)
