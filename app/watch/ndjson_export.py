"""An export: the change log, or what is wanted of it, as JSON lines to its present end, with one page in memory."""

from __future__ import annotations

from typing import Final, Protocol

import structlog
from starlette.types import Receive, Send

from app.store.history_queries import ChangeFilter
from app.store.store import ChangePage
from app.watch.change_feed import ChangeFeed
from app.watch.disconnect import run_until_disconnect
from blocklist.model.changes import Change
from blocklist.model.errors import UnavailableError
from blocklist.wire.changes import change_body
from blocklist.wire.json import dump_json

log = structlog.get_logger(__name__)

PAGE_CHANGES: Final = 500
"""Changes read and sent at once."""


class HistoryPages(Protocol):
    """The change log in the database."""

    async def changes_page(self, since: int, limit: int, criteria: ChangeFilter) -> ChangePage: ...


class NdjsonExport:
    """A stream from its first `page`, of PAGE changes, to revision `until`, at the pace at which the client reads.

    What cannot be sent any more (it was compacted meanwhile, the database went away, the credential ended, the service
    stops) ends it without the end of its body, so that nobody takes a part for the whole.
    """

    def __init__(
        self, kept: HistoryPages, feed: ChangeFeed, wanted: ChangeFilter, page: ChangePage, *, until: int
    ) -> None:
        self._log = kept
        self._feed = feed
        self._wanted = wanted
        self._page = page
        self._until = until
        self._ended = False

    def close(self) -> None:
        """The credential of the request has ended: no more of it."""
        self._ended = True

    async def run(self, receive: Receive, send: Send) -> None:
        """Answer the request."""
        await send({"type": "http.response.start", "status": 200, "headers": self._headers()})
        await run_until_disconnect(receive, self._lines(send))

    async def _lines(self, send: Send) -> None:
        page = self._page
        while True:
            shown = [change for change in page.changes if change.revision <= self._until]
            more = len(shown) == PAGE_CHANGES
            body = b"".join(map(_line, shown))
            await send({"type": "http.response.body", "body": body, "more_body": more})
            if not more:
                return
            since = shown[-1].revision
            try:
                page = await self._log.changes_page(since, PAGE_CHANGES, self._wanted)
            except UnavailableError as error:
                log.warning("an export was broken off", reason=error.detail)
                return
            if page.compacted > since or self._feed.closed or self._ended:
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
