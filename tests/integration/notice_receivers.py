"""Real targets of notices: an HTTP server for json:// and an SMTP server for mailto://, on loopback."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.http_server import Handler, serving
from tests.integration.process import Until, wait_until


class NoticeReceiver:
    """Title and message of each notice received. Without `release`, it accepts requests and does not answer."""

    def __init__(self) -> None:
        self.url = ""
        self.notices: list[tuple[str, str]] = []
        self.status = 200
        self.reason: str | None = None
        self.requests = 0
        self.release = threading.Event()
        self.release.set()

    @property
    def titles(self) -> list[str]:
        return [title for title, _ in self.notices]

    def wait_for(self, *titles: str, until: Until = wait_until) -> None:
        """Wait until exactly these notices were received, in any order."""
        until(lambda: sorted(self.titles) == sorted(titles) or len(self.titles) > len(titles))
        assert sorted(self.titles) == sorted(titles)


@contextmanager
def receiving_notices() -> Iterator[NoticeReceiver]:
    """Run an HTTP server for json:// on loopback."""
    receiver = NoticeReceiver()

    class Notices(Handler):
        def do_POST(self) -> None:
            received: dict[str, Any] = json.loads(self.body())
            receiver.requests += 1
            receiver.release.wait(60)
            if receiver.status == 200:
                receiver.notices.append((received["title"], received["message"]))
            self.reply(receiver.status, reason=receiver.reason)

    with serving(Notices) as url:
        receiver.url = url.replace("http:", "json:")
        try:
            yield receiver
        finally:
            receiver.release.set()


@contextmanager
def receiving_mail() -> Iterator[tuple[int, list[str]]]:
    """Run an SMTP server on loopback; its port, and the messages that it has accepted."""
    messages: list[str] = []

    class Session(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self._reply("220 test")
            while line := self.rfile.readline():
                command = line.split()[0].upper()
                if command == b"DATA":
                    self._reply("354 go on")
                    messages.append(b"".join(iter(self.rfile.readline, b".\r\n")).decode())
                self._reply("221 bye" if command == b"QUIT" else "250 ok")

        def _reply(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Session) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server.server_address[1], messages
        finally:
            server.shutdown()
            thread.join()
