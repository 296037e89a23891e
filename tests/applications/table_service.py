"""A service that has nothing but a table."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from blocklist import PERMANENT
from tests.http_server import Handler, serving

_WAIT_SECONDS: Final = 5.0
_ACKNOWLEDGED_SECONDS: Final = 60.0


class TableService:
    """The server. `put` returns once the application has acknowledged the table."""

    def __init__(self) -> None:
        self.url = ""
        self.refused: dict[str, str] = {}
        self.running: dict[str, int] = {}
        """The numbers of running tasks on executors on blocked hosts, as reported last."""
        self._changed = threading.Condition()
        self._revision, self._acknowledged, self._lines = 0, -1, ""

    def put(self, blocks: Mapping[str, str]) -> None:
        """Block these hosts, each with its action, and no others; the weakest come first."""
        with self._changed:
            self._lines = "".join(f"{host}\t{PERMANENT}\t{action}\t{host}\ttest\n" for host, action in blocks.items())
            self._revision += 1
            self._changed.notify_all()
            revision = self._revision
            assert self._changed.wait_for(lambda: self._acknowledged == revision, _ACKNOWLEDGED_SECONDS)

    def table(self, known: str | None) -> tuple[int, str, str]:
        with self._changed:
            self._changed.wait_for(lambda: known != f'"{self._revision}"', _WAIT_SECONDS)
            etag = f'"{self._revision}"'
            if known == etag:
                return 304, etag, ""
            head = f"blocklist-table 1 {self._revision} {self._lines.count(chr(10))}\n"
            return 200, etag, head + self._lines

    def report(self, body: dict[str, Any]) -> None:
        with self._changed:
            self._acknowledged = body.get("ackedRevision", self._acknowledged)
            self.refused = body.get("refused", self.refused)
            self.running = body.get("runningTasks", self.running)
            self._changed.notify_all()


@contextmanager
def table_service() -> Iterator[TableService]:
    service = TableService()

    class Requests(Handler):
        def do_GET(self) -> None:
            status, etag, body = service.table(self.headers["If-None-Match"])
            self.reply(status, body.encode(), {"ETag": etag, "Blocklist-History": "00000001"})

        def do_PUT(self) -> None:
            self.body()
            self.reply(200, b"{}")

        def do_POST(self) -> None:
            service.report(json.loads(self.body()))
            self.reply(200, b'{"reported":[]}')

        def do_DELETE(self) -> None:
            self.reply(204)

    with serving(Requests) as service.url:
        yield service
