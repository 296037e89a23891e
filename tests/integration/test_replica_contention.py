"""A replica that others keep overtaking: on a real PostgreSQL, with a second replica that commits first."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Self, cast

import pytest

from app.engine.handler import BlocklistHandler
from app.main import unix_millis
from app.store.database import make_store
from app.store.queries import LoadedState, Topic
from app.store.store import Store
from blocklist.model.changes import Author, Change
from blocklist.model.draft import Draft
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode
from blocklist.model.tracker import BlocklistTracker
from tests.integration.databases import PostgresDatabases
from tests.postgres import PostgresServer

LOSSES: Final = 60


@pytest.fixture
def url(postgres: PostgresServer, tmp_path: Path) -> Iterator[str]:
    databases = PostgresDatabases(postgres)
    yield databases.url_for(tmp_path)
    databases.drop(tmp_path)


class SilentPublisher:
    def publish(self, changes: Sequence[Change], *, from_log: bool) -> None:
        pass

    def reset(self, loaded: LoadedState) -> None:
        pass


class OvertakenStore:
    """A replica's store; before each of its first commits the other replica commits a change."""

    def __init__(self, own: Store, other: Store) -> None:
        self._own = own
        self._other = other
        self.overtaken = 0
        self.tail, self.load, self.renew_history = own.tail, own.load, own.renew_history
        self.announce_contention = own.announce_contention

    async def commit(self, changes: Sequence[Change], *, after: int, history: str) -> None:
        if self.overtaken < LOSSES:
            self.overtaken += 1
            draft = Draft(BlocklistTracker((await self._other.load()).snapshot), 1000)
            draft.block(blocked_node(f"other-{self.overtaken}"), allow_merge=False)
            await self._other.commit(draft.changes, after=after, history=history)
        await self._own.commit(changes, after=after, history=history)


class Announcements:
    """The replicas that announce to a store that their commits keep losing."""

    def __init__(self, store: Store) -> None:
        self.names: asyncio.Queue[str | None] = asyncio.Queue()
        self._listening = asyncio.Event()
        callbacks = {Topic.CHANGES: lambda _: self._listening.set(), Topic.CONTENTION: self.names.put_nowait}
        self._task = asyncio.create_task(store.listen(callbacks))

    async def __aenter__(self) -> Self:
        await self._listening.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


def blocked_node(node_id: str) -> BlockedNode:
    return BlockedNode(id=node_id, action=BlockAction.MARK_BLOCKED, start=1000, end=PERMANENT, cause="hot")


def test_a_change_overtaken_many_times_in_a_row_is_announced_and_committed(url: str) -> None:
    async def scenario() -> None:
        own, other = (make_store(url, name, 30.0, unix_millis) for name in ("own", "other"))
        loaded = await own.open()
        await other.open()
        log = OvertakenStore(own, other)
        tracker = BlocklistTracker(loaded.snapshot)
        handler = BlocklistHandler(tracker, cast("Store", log), lambda: 1000, SilentPublisher(), replica="own")
        running = asyncio.create_task(handler.run())
        async with Announcements(other) as announcements:
            outcome = await handler.submit(
                lambda draft: draft.block(blocked_node("mine"), allow_merge=False), Author("ops")
            )
            assert await announcements.names.get() == "own"
        assert (outcome.revision, log.overtaken) == (LOSSES + 1, LOSSES)
        handler.close()
        await running
        await own.close()
        await other.close()

    asyncio.run(scenario())
