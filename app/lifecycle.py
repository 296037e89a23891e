"""Lifecycle: the background tasks of the service, from the start to the last write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

from app.auth.authenticator import Authenticator
from app.auth.sessions import Sessions
from app.engine.background import Compactor, expire_blocks, probe_database
from app.engine.evidence_blocks import EvidenceBlocker
from app.engine.handler import BlocklistHandler
from app.engine.supervision import TaskHealth
from app.listeners.drift import DriftMonitor
from app.listeners.inventory_updater import InventoryUpdater
from app.listeners.nodes_file import NodesFile
from app.listeners.writer import ListenerWriter
from app.logs.change_log import ChangeLogWriter
from app.logs.isolation import isolated
from app.notices.notifier import Notices
from app.push.pusher import Pusher
from app.store.database import OnRemoteChange, Topic
from app.store.store import Store
from app.watch.change_feed import ChangeFeed
from blocklist.model.changes import Author, Source
from blocklist.model.draft import Draft
from blocklist.model.errors import UnavailableError
from blocklist.model.tracker import BlocklistTracker


@dataclass(frozen=True, kw_only=True, slots=True)
class Lifecycle:
    """What runs beside the requests."""

    clock: Callable[[], int]
    tracker: BlocklistTracker
    store: Store
    handler: BlocklistHandler
    compactor: Compactor
    feed: ChangeFeed
    pusher: Pusher
    listener_writer: ListenerWriter
    evidence_blocker: EvidenceBlocker
    drift: DriftMonitor
    authenticator: Authenticator
    sessions: Sessions
    change_log: ChangeLogWriter
    task_health: TaskHealth
    nodes_file: NodesFile
    inventory_updater: InventoryUpdater
    notices: Notices

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start all tasks; on leaving stop them, and write what is not saved yet. Raises UnavailableError."""
        # Before the first heartbeat: evidence about a node that was unblocked by hand must not block it again.
        await self.evidence_blocker.load(self.store)
        # Before the first request: the names in the file count from the first block on.
        await self.nodes_file.check()
        self.inventory_updater.apply_all()
        handler_task = self.task_health.start("changes", self.handler.run)
        tasks = [self.task_health.start(name, work) for name, work in self._tasks().items()]
        try:
            await self.authenticator.load()
            await self.listener_writer.load()
            yield
        finally:
            await self._stop(tasks, handler_task)

    def _tasks(self) -> dict[str, Callable[[], Awaitable[None]]]:
        tasks: dict[str, Callable[[], Awaitable[None]]] = {
            "expiry": partial(expire_blocks, self.tracker, self.handler, self.clock),
            "compaction": self.compactor.run,
            "database": partial(probe_database, self.store, self._read_again),
            "notifications": partial(self.store.listen, self._on_remote_change()),
            "listeners": self.listener_writer.run,
            "evidence": self.evidence_blocker.run,
            "drift": self.drift.run,
            "inventory": self.inventory_updater.run,
        }
        if self.nodes_file.is_configured:
            tasks["nodes file"] = self.nodes_file.run
        if self.notices.is_enabled:
            tasks["notices"] = self.notices.run
        if self.authenticator.enabled:
            tasks |= {"tokens": self.authenticator.run, "sessions": self.sessions.run}
        return tasks

    def _on_remote_change(self) -> dict[Topic, OnRemoteChange]:
        """What is notified when another replica has written something of a topic."""
        return {
            Topic.CHANGES: self.handler.notify_remote_change,
            Topic.CONTENTION: self.handler.notify_contention,
            Topic.LISTENERS: self.listener_writer.notify_remote_change,
            Topic.TOKENS: self.authenticator.notify_remote_change,
        }

    async def _read_again(self) -> None:
        """Read what other replicas may have written during an outage. Raises UnavailableError."""
        await self.authenticator.refresh()
        await self.sessions.refresh()
        self.handler.notify_remote_change()
        await self.handler.submit(_change_nothing, Author(source=Source.TIME))
        await self.listener_writer.refresh()

    async def _stop(self, tasks: list[asyncio.Task[None]], handler_task: asyncio.Task[None]) -> None:
        self.feed.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with isolated("end of the pushes"):
            await self.pusher.close()
        # Not cancelled: it commits what it has accepted.
        self.handler.close()
        await handler_task
        self.change_log.close()
        with isolated("last notices"):
            await self.notices.close()
        with isolated("last write of the listeners"), suppress(UnavailableError):
            await self.listener_writer.close()
        with isolated("last write of the tokens"), suppress(UnavailableError):
            await self.authenticator.save_used()


def _change_nothing(_: Draft) -> None:
    """A command whose outcome, like every refusal, follows from all changes in the log."""
