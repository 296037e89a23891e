"""The HTTP server of tests: a handler's class on a port of loopback, in threads of this process."""

from __future__ import annotations

import ssl
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

_NO_HEADERS: Final[Mapping[str, str]] = {}


class Handler(BaseHTTPRequestHandler):
    """A handler that logs nothing."""

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def reply(
        self,
        status: int,
        body: bytes = b"",
        headers: Mapping[str, str] = _NO_HEADERS,
        *,
        reason: str | None = None,
        length: int | None = None,
    ) -> None:
        """Send a response, whose body may go on up to `length` bytes. The client may have given up."""
        self.send_response(status, reason)
        for name, value in {**headers, "Content-Length": str(len(body) if length is None else length)}.items():
            self.send_header(name, value)
        with suppress(OSError):
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *arguments: object) -> None:
        """A client that closes its connection is part of some tests."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(*arguments)  # type: ignore[arg-type]


@contextmanager
def serving(handler: type[Handler], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve on loopback; the URL, without a slash at its end."""
    with _Server(("127.0.0.1", 0), handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        accepting = threading.Thread(target=server.serve_forever, args=(0.02,))
        accepting.start()
        try:
            yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            accepting.join()
