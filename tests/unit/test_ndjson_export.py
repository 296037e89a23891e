"""An export that cannot be completed is aborted: it never ends as if it were complete."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from starlette.types import Message

from app.api.change_log import PAGE_CHANGES, NdjsonExport
from app.store.queries import ALL, ChangeFilter
from app.store.store import ChangePage, Store
from app.watch import ChangeFeed
from blocklist.model.changes import Change, ChangeType
from blocklist.model.errors import UnavailableError
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode

NODE = BlockedNode(id="a", action=BlockAction.MARK_BLOCKED, start=0, end=PERMANENT, cause="disk")


def page(since: int, number: int = PAGE_CHANGES, compacted: int = 0) -> ChangePage:
    changes = [Change(revision=since + n, type=ChangeType.MERGED, at=0, node=NODE) for n in range(1, number + 1)]
    return ChangePage(changes=changes, compacted=compacted)


class FakeLog:
    """A change log that returns these pages."""

    def __init__(self, *pages: ChangePage | UnavailableError) -> None:
        self._pages = list(pages)

    async def changes_page(self, since: int, limit: int, criteria: ChangeFilter) -> ChangePage:
        answer = self._pages.pop(0)
        if isinstance(answer, UnavailableError):
            raise answer
        return answer


class FakeFeed:
    """The part of a ChangeFeed that an export needs."""

    history = "00000000"
    closed = False


def exported(log: FakeLog, *, until: int = 2 * PAGE_CHANGES, cut: bool = False, closed: bool = False) -> list[Message]:
    """What is sent to the client, for two pages."""
    sent: list[Message] = []
    feed = FakeFeed()
    feed.closed = closed

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    export = NdjsonExport(cast("Store", log), cast("ChangeFeed", feed), ALL, page(0), until=until)
    if cut:
        export.close()
    asyncio.run(export.run(receive, send))
    return sent


def test_it_continues_to_its_end() -> None:
    sent = exported(FakeLog(page(PAGE_CHANGES), page(2 * PAGE_CHANGES)))
    assert [message.get("more_body") for message in sent] == [None, True, True, False]
    assert b"".join(message.get("body", b"") for message in sent).count(b"\n") == 2 * PAGE_CHANGES


def test_changes_after_its_start_are_not_exported() -> None:
    sent = exported(FakeLog(page(PAGE_CHANGES)), until=PAGE_CHANGES + 10)
    assert b"".join(message.get("body", b"") for message in sent).count(b"\n") == PAGE_CHANGES + 10
    assert sent[-1]["more_body"] is False


@pytest.mark.parametrize(
    ("log", "how"),
    [
        (FakeLog(page(PAGE_CHANGES + 5, compacted=PAGE_CHANGES + 5)), {}),
        (FakeLog(UnavailableError("away")), {}),
        (FakeLog(page(PAGE_CHANGES)), {"cut": True}),
        (FakeLog(page(PAGE_CHANGES)), {"closed": True}),
    ],
    ids=["compacted", "away", "cut", "stopping"],
)
def test_an_aborted_export_has_no_end(log: FakeLog, how: dict[str, bool]) -> None:
    sent = exported(log, **how)
    assert sent[-1]["more_body"] is True
