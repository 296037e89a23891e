"""Commits on PostgreSQL: any text in a change, and several replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Final

import pytest

from app.main import unix_millis
from app.store.database import make_store
from app.store.queries import StaleError
from app.store.store import Store
from blocklist.model.changes import Change, ChangeType, Snapshot, Source
from blocklist.model.claims import Claim
from blocklist.model.draft import Draft
from blocklist.model.errors import UnavailableError
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode
from blocklist.model.tracker import BlocklistTracker
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


@pytest.mark.parametrize("locked", [False, True])
def test_any_text_survives_a_commit(url: str, locked: bool) -> None:
    changes = []
    for revision, text in enumerate(ODD, start=1):
        node = BlockedNode(
            id=f"n{revision}", action=BlockAction.MARK_BLOCKED, start=-(2**62), end=PERMANENT, cause=text
        )
        change = Change(
            revision=revision,
            type=ChangeType.BLOCKED,
            at=revision * 1000,
            node=node,
            claims=(Claim(owner=text, author=None, block=node),),
            created_by=text if revision % 2 else None,
            forced=text if revision % 3 else None,
            source=Source.REQUEST,
        )
        changes.append(change)

    async def commit_and_reload() -> None:
        store = make_store(url, "here", 5.0, unix_millis)
        history = (await store.open()).snapshot.history
        async with store.locked(0) if locked else nullcontext():
            await store.commit(changes, after=0, history=history)
        assert await store.changes(0) == changes
        await store.close()
        again = make_store(url, "there", 5.0, unix_millis)
        assert (await again.open()).snapshot.nodes == {change.node.id: change.node for change in changes}
        await again.close()

    asyncio.run(commit_and_reload())


async def open_stores(url: str, seconds: float, *names: str) -> tuple[str, list[Store]]:
    """The history, and a store for each of these replicas."""
    stores = [make_store(url, name, seconds, unix_millis) for name in names]
    histories = [(await store.open()).snapshot.history for store in stores]
    return histories[0], stores


async def close(*stores: Store) -> None:
    for store in stores:
        await store.close()


def test_a_replica_that_has_locked_the_log_commits_first(url: str) -> None:
    async def scenario() -> None:
        history, (own, other) = await open_stores(url, 30.0, "own", "other")
        await other.commit(blocks("a", after=0), after=0, history=history)
        async with own.locked(0) as tail:
            assert (tail.revision, [change.node.id for change in tail.changes]) == (1, ["a"])
            overtaking = asyncio.create_task(other.commit(blocks("b", after=1), after=1, history=history))
            await asyncio.sleep(0.2)
            await own.commit(blocks("c", after=1), after=1, history=history)
        with pytest.raises(StaleError):
            await overtaking
        assert [change.node.id for change in await other.changes(0)] == ["a", "c"]
        await own.commit(blocks("d", after=2), after=2, history=history)
        await close(own, other)

    asyncio.run(scenario())


def test_a_lock_is_released_without_a_commit(url: str) -> None:
    async def scenario() -> None:
        history, (own, other) = await open_stores(url, 30.0, "own", "other")
        async with own.locked(0):
            await own.commit([], after=0, history=history)
        await other.commit(blocks("a", after=0), after=0, history=history)

        async def lose() -> None:
            async with own.locked(0):
                await own.commit(blocks("b", after=0), after=0, history=history)

        with pytest.raises(StaleError):
            await lose()
        await other.commit(blocks("b", after=1), after=1, history=history)
        await close(own, other)

    asyncio.run(scenario())


def test_a_replica_that_stalls_with_the_log_locked_does_not_stop_another(url: str) -> None:
    async def scenario() -> None:
        history, (own, other) = await open_stores(url, 3.0, "own", "other")

        async def stall() -> None:
            async with own.locked(0):
                await other.commit(blocks("a", after=0), after=0, history=history)
                await own.commit(blocks("b", after=0), after=0, history=history)

        with pytest.raises(UnavailableError):
            await stall()
        assert [change.node.id for change in await other.changes(0)] == ["a"]
        await close(own, other)

    asyncio.run(scenario())


def blocks(*node_ids: str, after: int) -> list[Change]:
    """Changes that block these nodes, after a revision."""
    draft = Draft(BlocklistTracker(Snapshot(revision=after, history="00000000")), 1000)
    for node_id in node_ids:
        node = BlockedNode(id=node_id, action=BlockAction.MARK_BLOCKED, start=1000, end=PERMANENT, cause="hot")
        draft.block(node, allow_merge=False)
    return draft.changes
