"""A proxy on loopback that can drop, delay or refuse connections and data."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from tests.integration.process import free_port


@dataclass(eq=False, slots=True)
class _Link:
    """One connection through the proxy. After losing bytes it never forwards any again."""

    client: socket.socket
    server: socket.socket
    drops_requests: bool
    drops_responses: bool
    wait: Callable[[], None]

    def forward(self) -> None:
        """Copy both ways until one side closes, and close the other."""
        answering = threading.Thread(target=self._copy, args=(self.server, self.client), daemon=True)
        answering.start()
        self._copy(self.client, self.server)
        answering.join()

    def close(self) -> None:
        for side in (self.client, self.server):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self.wait()
                if not self._drops(source):
                    target.sendall(data)
        # A connection that drops data does not report that the other side has closed.
        if not self._drops(source):
            self.close()

    def _drops(self, source: socket.socket) -> bool:
        return self.drops_requests if source is self.client else self.drops_responses


class FaultyProxy:
    """A proxy to port `target`, which may be changed for new connections."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = free_port()
        self._listening: socket.socket | None = None
        self._drops_requests = self._drops_responses = False
        self._delay_seconds = 0.0
        self._flowing = threading.Event()
        self._flowing.set()
        self._links: set[_Link] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._listen()
        return self

    def __exit__(self, *_: object) -> None:
        self._flowing.set()
        self.refuse_connections()

    def drop_connections(self) -> None:
        """Close all connections; accept new ones."""
        with self._lock:
            for link in self._links:
                link.close()

    def refuse_connections(self) -> None:
        """Close all connections, and refuse new ones."""
        if self._listening is not None:
            with suppress(OSError):
                self._listening.shutdown(socket.SHUT_RDWR)
            self._listening.close()
            self._listening = None
        self.drop_connections()

    def blackhole(self) -> None:
        """Lose all data of existing and new connections, without an error."""
        self._drop(requests=True)

    def drop_responses(self) -> None:
        """Lose the data from the server only: requests are executed without an answer."""
        self._drop(requests=False)

    def delay(self, seconds: float) -> None:
        """Delay all data by `seconds`."""
        self._delay_seconds = seconds

    def stall(self) -> None:
        """Deliver all data only after `restore`, even if its sender has closed."""
        self._flowing.clear()

    def restore(self) -> None:
        """End the fault; connections that have lost data stay silent."""
        self._drops_requests = self._drops_responses = False
        self._delay_seconds = 0.0
        self._flowing.set()
        if self._listening is None:
            self._listen()

    def _drop(self, *, requests: bool) -> None:
        with self._lock:
            self._drops_requests, self._drops_responses = requests, True
            for link in self._links:
                link.drops_requests, link.drops_responses = requests or link.drops_requests, True

    def _wait(self) -> None:
        self._flowing.wait()
        time.sleep(self._delay_seconds)

    def _listen(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listening,), daemon=True).start()

    def _accept(self, listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", self.target)) as server:
            with self._lock:
                link = _Link(client, server, self._drops_requests, self._drops_responses, self._wait)
                self._links.add(link)
            try:
                link.forward()
            finally:
                with self._lock:
                    self._links.discard(link)
