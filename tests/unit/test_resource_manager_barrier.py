"""ResourceManagerBarrier: JobMasters wait for ResourceManagers, also when a new history uses a revision again."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from app.engine.list_view import ListView
from app.listeners.push import ResourceManagerBarrier
from app.listeners.reports import ListenerQuota
from app.listeners.state import ListenerDirectory, ListenerEntry
from app.store.listeners import Secret
from blocklist.model.changes import Snapshot
from blocklist.model.draft import BlocklistTracker
from blocklist.model.evidence import EvidenceStore
from blocklist.model.inventory import Inventory
from blocklist.model.listener import Listener, ListenerRole
from blocklist.model.names import ConfirmedNodes

pytestmark = pytest.mark.anyio

OLD, NEW = "0000000a", "0000000b"


def directory_with(manager: ListenerEntry) -> ListenerDirectory:
    tracker = BlocklistTracker(Snapshot(revision=0, history=OLD, nodes={}))
    view = ListView(tracker, lambda: 0, lambda: None)
    confirmed_nodes = ConfirmedNodes(authenticated=False)
    evidence = EvidenceStore(0, confirmed_nodes.principal_of)
    quota = ListenerQuota(max_listeners=1, max_bytes=1)
    directory = ListenerDirectory(view, evidence, confirmed_nodes, Inventory(), quota, lambda: 0)
    directory.add(manager)
    return directory


def acknowledge(directory: ListenerDirectory, manager: ListenerEntry, revision: int) -> None:
    directory.renew(manager, replace(manager.listener, acked=revision))


async def test_a_revision_that_was_applied_in_a_lost_history_is_waited_for_again() -> None:
    listener = Listener(
        id="rm",
        role=ListenerRole.RESOURCE_MANAGER,
        session="s1",
        callback_url=None,
        lease=1,
        lease_end=1,
        acked=1,
    )
    manager = ListenerEntry(listener=listener, secret=Secret(current="whsec_"))
    directory = directory_with(manager)
    barrier = ResourceManagerBarrier(directory)
    for history in (OLD, NEW):
        waiting = asyncio.create_task(barrier.wait(history, 2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done(), history
        acknowledge(directory, manager, 2)
        await waiting
        await barrier.wait(history, 2)
        directory.reset()
        acknowledge(directory, manager, 1)
