"""A service that has nothing but a table, in the second version, which may have canaries."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from blocklist import PERMANENT

ACCEPT: Final = "text/plain; version=2"
_WAIT_SECONDS: Final = 5.0
_ACKNOWLEDGED_SECONDS: Final = 60.0


class TableService:
    """The server. `put` returns once the application has acknowledged the table."""

    def __init__(self) -> None:  # noqa: C901 - a handler for each method
        self.accepted: set[str | None] = set()
        """What the requests for the table have accepted."""
        self.refused: dict[str, str] = {}
        self.running: dict[str, int] = {}
        """The numbers of running tasks on executors on blocked hosts, as reported last."""
        self._changed = threading.Condition()
        self._revision, self._acknowledged, self._lines = 0, -1, ""
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.accepted.add(self.headers["Accept"])
                status, etag, body = service._table(self.headers["If-None-Match"])
                self._send(status, body, {"ETag": etag, "Blocklist-History": "00000001"})

            def do_PUT(self) -> None:
                self._receive()
                self._send(200, "{}")

            def do_POST(self) -> None:
                service._report(json.loads(self._receive()))
                self._send(200, '{"reported":[]}')

            def do_DELETE(self) -> None:
                self._send(204, "")

            def _receive(self) -> bytes:
                return self.rfile.read(int(self.headers["Content-Length"]))

            def _send(self, status: int, body: str, headers: dict[str, str] | None = None) -> None:
                self.send_response(status)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with suppress(OSError):  # An application that ends does not wait.
                    self.wfile.write(body.encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def put(self, blocks: Mapping[str, str]) -> None:
        """Block these hosts, each with its action, and no others; the weakest come first."""
        with self._changed:
            self._lines = "".join(f"{host}\t{PERMANENT}\t{action}\t{host}\ttest\n" for host, action in blocks.items())
            self._revision += 1
            self._changed.notify_all()
            revision = self._revision
            assert self._changed.wait_for(lambda: self._acknowledged == revision, _ACKNOWLEDGED_SECONDS)

    def _table(self, known: str | None) -> tuple[int, str, str]:
        with self._changed:
            self._changed.wait_for(lambda: known != f'"{self._revision}"', _WAIT_SECONDS)
            etag = f'"{self._revision}"'
            if known == etag:
                return 304, etag, ""
            head = f"blocklist-table 2 {self._revision} {self._lines.count(chr(10))}\n"
            return 200, etag, head + self._lines

    def _report(self, body: dict[str, Any]) -> None:
        with self._changed:
            self._acknowledged = body.get("ackedRevision", self._acknowledged)
            self.refused = body.get("refused", self.refused)
            self.running = body.get("runningTasks", self.running)
            self._changed.notify_all()


@contextmanager
def table_service() -> Iterator[TableService]:
    service = TableService()
    try:
        yield service
    finally:
        service.close()
