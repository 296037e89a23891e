"""A proxy on loopback whose wire can be cut, or lose what it carries."""

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
    """One connection through the proxy. Once it has lost bytes it never carries any again."""

    client: socket.socket
    server: socket.socket
    loses_requests: bool
    loses_answers: bool
    linger: Callable[[], None]

    def carry(self) -> None:
        """Copy both ways until one side ends, and end the other; return then."""
        answering = threading.Thread(target=self._copy, args=(self.server, self.client), daemon=True)
        answering.start()
        self._copy(self.client, self.server)
        answering.join()

    def cut(self) -> None:
        for side in (self.client, self.server):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self.linger()
                if not self._loses(source):
                    target.sendall(data)
        # Of a wire that is silent nobody hears that the other side has gone.
        if not self._loses(source):
            self.cut()

    def _loses(self, source: socket.socket) -> bool:
        return self.loses_requests if source is self.client else self.loses_answers


class Proxy:
    """In front of the port `target`, which may be changed for connections to come, while it is entered."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = free_port()
        self._listening: socket.socket | None = None
        self._loses_requests = self._loses_answers = False
        self._lag = 0.0
        self._flowing = threading.Event()
        self._flowing.set()
        self._links: set[_Link] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._listen()
        return self

    def __exit__(self, *_: object) -> None:
        self._flowing.set()
        self.refuse()

    def cut(self) -> None:
        """End all connections; new ones are taken."""
        with self._lock:
            for link in self._links:
                link.cut()

    def refuse(self) -> None:
        """End all connections, and take no new ones."""
        if self._listening is not None:
            with suppress(OSError):
                self._listening.shutdown(socket.SHUT_RDWR)
            self._listening.close()
            self._listening = None
        self.cut()

    def silence(self) -> None:
        """Lose all that is sent, on connections that there are and on new ones; nobody is told."""
        self._lose(requests=True)

    def lose_answers(self) -> None:
        """Lose what the server says only: what it was asked for happens, and nobody hears of it."""
        self._lose(requests=False)

    def delay(self, seconds: float) -> None:
        """All that is sent arrives so much later."""
        self._lag = seconds

    def hold(self) -> None:
        """All that is sent arrives when the wire is restored, also what was sent by those who have gone by then."""
        self._flowing.clear()

    def restore(self) -> None:
        """Serve new connections; those that have lost anything stay silent."""
        self._loses_requests = self._loses_answers = False
        self._lag = 0.0
        self._flowing.set()
        if self._listening is None:
            self._listen()

    def _lose(self, *, requests: bool) -> None:
        with self._lock:
            self._loses_requests, self._loses_answers = requests, True
            for link in self._links:
                link.loses_requests, link.loses_answers = requests or link.loses_requests, True

    def _linger(self) -> None:
        self._flowing.wait()
        time.sleep(self._lag)

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
                link = _Link(client, server, self._loses_requests, self._loses_answers, self._linger)
                self._links.add(link)
            try:
                link.carry()
            finally:
                with self._lock:
                    self._links.discard(link)
