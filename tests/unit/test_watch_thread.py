"""The list of a WatchThread follows a watch that may miss changes or fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import cast

import pytest

from blocklist import BlockAction, BlockedNode, Change, ChangeType, Snapshot, Watch
from blocklist.client.watch import WatchThread

Item = Snapshot | Change | Exception | None


class ScriptedWatch:
    """Yields the items it is given; None ends it, an exception is raised."""

    connected = True
    last_error = None

    def __init__(self) -> None:
        self.items: SimpleQueue[Item] = SimpleQueue()

    def __iter__(self) -> Iterator[Snapshot | Change]:
        while (item := self.items.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item

    def close(self) -> None:
        self.items.put(None)


class Script:
    """The watches that the thread opens, one after the other."""

    def __init__(self) -> None:
        self.watches: list[ScriptedWatch] = []
        self.opened, self.received = threading.Semaphore(0), threading.Semaphore(0)

    def open(self) -> Watch:
        self.watches.append(ScriptedWatch())
        self.opened.release()
        return cast("Watch", self.watches[-1])


def node(node_id: str) -> BlockedNode:
    return BlockedNode(id=node_id, action=BlockAction.MARK_BLOCKED, start=1, end=99, cause="disk")


def snapshot(revision: int, *ids: str) -> Snapshot:
    return Snapshot(revision=revision, history="00000001", nodes={node_id: node(node_id) for node_id in ids})


def blocked(revision: int, node_id: str) -> Change:
    return Change(revision=revision, type=ChangeType.BLOCKED, at=1, node=node(node_id))


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def feed(script: Script) -> Iterator[WatchThread]:
    feed = WatchThread(script.open, script.received.release)
    assert script.opened.acquire(timeout=10)
    yield feed
    feed.close()


def receive(script: Script, item: Item) -> None:
    """Let the current watch yield an item, and wait until the thread has received it."""
    script.watches[-1].items.put(item)
    assert script.received.acquire(timeout=10)


def ids(feed: WatchThread) -> set[str] | None:
    return None if feed.tracker is None else {node.id for node in feed.tracker}


def test_there_is_no_list_before_the_first_snapshot(script: Script, feed: WatchThread) -> None:
    assert (feed.apply_pending(), ids(feed)) == (False, None)
    receive(script, blocked(7, "n1"))
    assert (feed.apply_pending(), ids(feed)) == (False, None)


def test_snapshots_replace_the_list_and_changes_update_it(script: Script, feed: WatchThread) -> None:
    receive(script, snapshot(7, "n1"))
    assert (feed.apply_pending(), ids(feed)) == (True, {"n1"})
    receive(script, blocked(8, "n2"))
    assert (feed.apply_pending(), ids(feed)) == (True, {"n1", "n2"})
    assert feed.apply_pending() is False
    receive(script, snapshot(20, "n3"))
    assert (feed.apply_pending(), ids(feed)) == (True, {"n3"})


def test_a_missing_change_opens_a_new_watch_and_the_list_stays_until_then(script: Script, feed: WatchThread) -> None:
    receive(script, snapshot(7, "n1"))
    receive(script, blocked(9, "n2"))
    receive(script, blocked(10, "n3"))
    assert (feed.apply_pending(), ids(feed)) == (True, {"n1"})
    assert script.opened.acquire(timeout=10)
    receive(script, snapshot(10, "n1", "n2", "n3"))
    assert (feed.apply_pending(), ids(feed)) == (True, {"n1", "n2", "n3"})


@pytest.mark.parametrize("end", [None, RuntimeError("a bug")], ids=["ends", "breaks"])
def test_a_watch_that_ends_is_replaced_by_another(script: Script, feed: WatchThread, end: Item) -> None:
    receive(script, snapshot(7, "n1"))
    script.watches[-1].items.put(end)
    assert script.opened.acquire(timeout=10)
    receive(script, snapshot(8, "n2"))
    assert (feed.apply_pending(), ids(feed)) == (True, {"n2"})


def test_after_close_no_watch_is_opened(script: Script) -> None:
    feed = WatchThread(script.open, script.received.release)
    receive(script, snapshot(7, "n1"))
    feed.close()
    wait_for_end("blocklist-watch", lambda: len(script.watches) == 1)
    assert (feed.apply_pending(), ids(feed)) == (True, {"n1"})


def wait_for_end(name: str, condition: Callable[[], bool]) -> None:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(10)
    assert condition()
