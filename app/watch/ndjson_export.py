"""NdjsonExport: the change log, filtered, as JSON lines up to its current end, with one page in memory."""

from __future__ import annotations

from typing import Final

import structlog
from starlette.types import Receive, Send

from app.store.history_queries import ChangeFilter
from app.store.store import ChangePage, Store
from app.watch.change_feed import ChangeFeed
from app.watch.disconnect import run_until_disconnect
from blocklist.model.changes import Change
from blocklist.model.errors import UnavailableError
from blocklist.wire.changes import change_body
from blocklist.wire.json import dump_json

log = structlog.get_logger(__name__)

PAGE_CHANGES: Final = 500
"""Number of changes read and sent at once."""


class NdjsonExport:
    """Starts with `page`, of PAGE_CHANGES changes, and ends at revision `until`; reads on as fast as the client does.

    If the rest cannot be sent (compacted meanwhile, database unavailable, credential ended, service stopping), the
    response ends without the end of its body, so that the client does not take a part for the whole.
    """

    def __init__(self, store: Store, feed: ChangeFeed, criteria: ChangeFilter, page: ChangePage, *, until: int) -> None:
        self._store = store
        self._feed = feed
        self._criteria = criteria
        self._page = page
        self._until = until
        self._ended = False

    def close(self) -> None:
        """Send no more: the credential of the request has ended."""
        self._ended = True

    async def run(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._headers()})
        await run_until_disconnect(receive, self._lines(send))

    async def _lines(self, send: Send) -> None:
        page = self._page
        while True:
            sent = [change for change in page.changes if change.revision <= self._until]
            more = len(sent) == PAGE_CHANGES
            body = b"".join(map(_line, sent))
            await send({"type": "http.response.body", "body": body, "more_body": more})
            if not more:
                return
            since = sent[-1].revision
            try:
                page = await self._store.changes_page(since, PAGE_CHANGES, self._criteria)
            except UnavailableError as error:
                log.warning("export aborted", reason=error.detail)
                return
            if page.compacted > since or self._feed.closed or self._ended:
                log.warning("export aborted", compacted=page.compacted > since, stopping=self._feed.closed)
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
