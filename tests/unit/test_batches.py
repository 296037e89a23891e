"""BatchCache: the bodies of pushes, also when a new history uses revisions of the old one again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, cast

from app.engine.list_view import ListView
from app.listeners.push import BatchCache
from app.store.store import Store
from app.watch import ChangeFeed
from blocklist.model.changes import Change, ChangeType, Snapshot
from blocklist.model.draft import BlocklistTracker
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode

OLD, NEW = "0000000a", "0000000b"


def blocked_node(node_id: str) -> BlockedNode:
    return BlockedNode(id=node_id, action=BlockAction.MARK_BLOCKED, start=0, end=PERMANENT, cause="disk")


def snapshot(history: str, *node_ids: str) -> Snapshot:
    """A list at the revision that is the number of its nodes."""
    return Snapshot(revision=len(node_ids), history=history, nodes={name: blocked_node(name) for name in node_ids})


class Replica:
    """What pushes read from: the list, its feed and the cache. `on_read` runs while changes are read from the log."""

    def __init__(self, first: Snapshot) -> None:
        self.view = ListView(BlocklistTracker(first), lambda: 1000, lambda: None)
        self.feed = ChangeFeed(cast("Store", self), self.view)
        self.batches = BatchCache(self.feed, self.view)
        self.log: list[Change] = []
        self.on_read: Callable[[], None] = lambda: None

    async def changes(self, since: int, limit: int) -> list[Change]:
        """The log in the database."""
        self.on_read()
        return [change for change in self.log if change.revision > since][:limit]

    def block(self, node_id: str) -> None:
        """Commit a change."""
        revision = self.view.tracker.revision + 1
        change = Change(revision=revision, type=ChangeType.BLOCKED, at=1, created_by=None, node=blocked_node(node_id))
        self.view.tracker.apply(change)
        self.view.apply([change])
        self.feed.publish([change])
        self.log.append(change)

    def reset(self, loaded: Snapshot) -> None:
        """The database has another list, and another history."""
        self.view.tracker.reset(loaded)
        self.view.reset()
        self.feed.reset()

    async def push(self, acked: int | None) -> dict[str, Any]:
        """The fields of a push after `acked`."""
        batch = await self.batches.get(acked, self.feed.revision)
        body: dict[str, Any] = json.loads(b"{" + batch.body)
        assert (batch.history, batch.to_revision) == (body["history"], body["toRevision"])
        return body


def in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


def ids(body: dict[str, Any]) -> list[str]:
    return [node["id"] for node in body["blocked"]]


@in_loop
async def test_a_reused_revision_is_not_pushed_with_the_changes_of_the_lost_one() -> None:
    replica = Replica(snapshot(OLD, "kept"))
    replica.block("lost")
    assert ids(await replica.push(1)) == ["lost"]
    replica.reset(snapshot(NEW, "kept"))
    replica.block("new")
    body = await replica.push(1)
    assert (ids(body), body["history"]) == (["new"], NEW)


@in_loop
async def test_a_reused_revision_is_not_pushed_with_the_list_of_the_lost_one() -> None:
    replica = Replica(snapshot(OLD, "kept", "lost"))
    assert ids(await replica.push(None)) == ["kept", "lost"]
    replica.reset(snapshot(NEW, "kept", "new"))
    body = await replica.push(None)
    assert (ids(body), body["history"], body["snapshot"]) == (["kept", "new"], NEW, True)


@in_loop
async def test_changes_that_were_read_while_a_new_history_began_are_replaced_by_the_whole_list() -> None:
    replica = Replica(snapshot(OLD))
    replica.block("kept")
    replica.block("lost")
    replica.reset(snapshot(OLD, "kept", "lost"))
    replica.on_read = lambda: replica.reset(snapshot(NEW, "kept", "new"))
    body = await replica.push(1)
    assert (ids(body), body["history"], body["snapshot"]) == (["kept", "new"], NEW, True)


@in_loop
async def test_each_kind_of_push_names_its_history() -> None:
    replica = Replica(snapshot(OLD))
    replica.block("a")
    for acked, whole in ((None, True), (0, False), (1, False)):
        body = await replica.push(acked)
        assert (body["history"], body["snapshot"], body["fromRevision"]) == (OLD, whole, acked or 0)


@in_loop
async def test_a_snapshot_of_the_cache_starts_at_the_revision_of_each_listener() -> None:
    replica = Replica(snapshot(OLD, "a"))
    replica.feed.revision = 5000  # changes up to here are no longer in the log
    for acked in (0, 7, 9):
        body = await replica.push(acked)
        assert (body["fromRevision"], body["snapshot"], body["history"]) == (acked, True, OLD)
