"""The commit statement for PostgreSQL, with any text in a change."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from app.main import unix_millis
from app.store.database import make_store
from blocklist.model.changes import Change, ChangeType, Source
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode
from tests.integration.databases import PostgresDatabases
from tests.postgres import PostgresServer

ODD: Final = (
    '"', "\\", '\\"', "{}", "{a,b}", ",", "NULL", "null", " leading and trailing ", "'; DROP TABLE changes; --",
    "%s %(a)s", "$1", "a\u2028b", "é e\u0301", "\U0001f525", "\\x00", "\\N", '""', "''",
)  # fmt: skip


@pytest.fixture
def url(postgres: PostgresServer, tmp_path: Path) -> Iterator[str]:
    databases = PostgresDatabases(postgres)
    yield databases.url_for(tmp_path)
    databases.drop(tmp_path)


def test_any_text_survives_a_commit(url: str) -> None:
    changes = [
        Change(
            revision=revision,
            type=ChangeType.BLOCKED,
            at=revision * 1000,
            node=BlockedNode(
                id=f"n{revision}", action=BlockAction.MARK_BLOCKED, start=-(2**62), end=PERMANENT, cause=text
            ),
            created_by=text if revision % 2 else None,
            forced=text if revision % 3 else None,
            source=Source.REQUEST,
        )
        for revision, text in enumerate(ODD, start=1)
    ]

    async def commit_and_reload() -> None:
        store = make_store(url, "here", 5.0, unix_millis)
        history = (await store.open()).snapshot.history
        await store.commit(changes, after=0, history=history)
        assert await store.changes(0) == changes
        await store.close()
        again = make_store(url, "there", 5.0, unix_millis)
        assert (await again.open()).snapshot.nodes == {change.node.id: change.node for change in changes}
        await again.close()

    asyncio.run(commit_and_reload())
