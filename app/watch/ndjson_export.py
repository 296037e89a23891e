"""An export: the change log, or what is wanted of it, as JSON lines to its present end, with one page in memory."""

from __future__ import annotations

from typing import Final, Protocol

import structlog
from starlette.types import Receive, Send

from app.store.history_queries import Wanted
from app.store.store import Page
from app.watch.change_feed import ChangeFeed
from app.watch.disconnect import until_disconnect
from blocklist.model.changes import Change
from blocklist.model.errors import UnavailableError
from blocklist.wire.nodes import change_body, dump_json

log = structlog.get_logger(__name__)

PAGE: Final = 500
"""Changes read and sent at once."""


class Log(Protocol):
    """The change log in the database."""

    async def page(self, since: int, limit: int, wanted: Wanted) -> Page: ...


class Export:
    """A stream from its first `page`, of PAGE changes, to revision `until`, at the pace at which the client reads.

    What cannot be sent any more (it was compacted meanwhile, the database went away, the credential ended, the service
    stops) ends it without the end of its body, so that nobody takes a part for the whole.
    """

    def __init__(self, kept: Log, feed: ChangeFeed, wanted: Wanted, page: Page, *, until: int) -> None:
        self._log = kept
        self._feed = feed
        self._wanted = wanted
        self._page = page
        self._until = until
        self._cut = False

    def cut(self) -> None:
        """The credential of the request has ended: no more of it."""
        self._cut = True

    async def run(self, receive: Receive, send: Send) -> None:
        """Answer the request."""
        await send({"type": "http.response.start", "status": 200, "headers": self._headers()})
        await until_disconnect(receive, self._lines(send))

    async def _lines(self, send: Send) -> None:
        page = self._page
        while True:
            shown = [change for change in page.changes if change.revision <= self._until]
            more = len(shown) == PAGE
            body = b"".join(map(_line, shown))
            await send({"type": "http.response.body", "body": body, "more_body": more})
            if not more:
                return
            since = shown[-1].revision
            try:
                page = await self._log.page(since, PAGE, self._wanted)
            except UnavailableError as error:
                log.warning("an export was broken off", reason=error.detail)
                return
            if page.compacted > since or self._feed.closed or self._cut:
                log.warning("an export was broken off", compacted=page.compacted > since, stopping=self._feed.closed)
                return

    def _headers(self) -> list[tuple[bytes, bytes]]:
        return [
            (b"content-type", b"application/x-ndjson"),
            (b"cache-control", b"no-cache"),
            (b"vary", b"Accept"),
            (b"blocklist-revision", b"%d" % self._until),
            (b"blocklist-history", self._feed.history.encode()),
        ]


def _line(change: Change) -> bytes:
    return dump_json(change_body(change)) + b"\n"
