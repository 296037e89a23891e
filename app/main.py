"""create_app: the only place where the parts of the service are put together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, Final

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig

from app.api import changes, errors, evidence, health, listeners, listing, nodes, proof
from app.evidence import EvidenceBlocks, hear
from app.fast_path import ReadyAnswers
from app.handler import BlocklistHandler
from app.metrics import MeasuredLog, Metrics
from app.notify.batches import Batches
from app.notify.callbacks import AllowedHosts
from app.notify.feed import ChangeFeed
from app.notify.gate import ManagersFirst
from app.notify.push import Pusher
from app.notify.registry import Registry
from app.notify.streaming import StreamingApp
from app.openapi import document
from app.service import Service
from app.settings import Settings
from app.store.schema import check
from app.store.store import Store
from app.upkeep import Compactor, expire_ended, find_again
from app.view import ListView
from blocklist.changes import Change
from blocklist.errors import UnavailableError
from blocklist.evidence import EvidenceBook, Rule
from blocklist.tracker import BlocklistTracker

Clock = Callable[[], int]
_NO_TELEMETRY: Final = TelemetryConfig(tracing=False, metrics=False, logs=False)


def unix_millis() -> int:
    """The present in Unix milliseconds."""
    return time.time_ns() // 1_000_000


def create_app(settings: Settings, *, clock: Clock = unix_millis) -> FastAPI:
    """The service as an ASGI app. Starting it raises SchemaError if the database cannot be served."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        check(settings.database_url)
        store = Store(settings.database_url)
        try:
            service = _assemble(settings, clock, store)
            app.state.service = service
            async with _running(service):
                # uvicorn hands this to each connection, where app.fast_path and app.fast_put answer from it.
                yield {"ready": ReadyAnswers(service.view), "app": app}
        finally:
            store.close()

    # No /docs: FastAPI's pages load their scripts from elsewhere, and operators' networks are often closed.
    app = StreamingApp(
        title="blocklist",
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        telemetry=_NO_TELEMETRY,
    )
    errors.install(app)
    for part in (nodes, proof, listing, changes, listeners, evidence, health):
        # Not include_router: it nests, and a nested route costs each request a second search.
        app.router.routes.extend(part.router.routes)
    document(app)
    return app


def stop_streams(app: FastAPI) -> None:
    """The service is about to stop: watches say bye, waiting readers get their answers."""
    service: Service = app.state.service
    service.feed.close()
    service.view.changed.ring()
    service.registry.acks.ring()


def _assemble(settings: Settings, clock: Clock, store: Store) -> Service:
    tracker = BlocklistTracker(store.open())
    view = ListView(tracker, clock, store.age)
    feed = ChangeFeed(store, view)
    allowed = AllowedHosts(settings.callback_hosts.split(","))
    rule = Rule(applications=settings.evidence_applications, window=_millis(settings.evidence_window))
    book = EvidenceBook(rule, view.task_managers.nodes_of)
    registry = Registry(store, view, book, clock, _millis(settings.forget_listeners))
    pusher = _pusher(settings, clock, registry, feed, view, allowed)
    metrics = Metrics(view, feed, registry, pusher)
    metrics.show_evidence(book, lambda: blocks.made)

    def publish(committed: Sequence[Change]) -> None:
        view.apply(committed)
        feed.publish(committed)
        hear(book, committed)
        metrics.count(committed)

    handler = BlocklistHandler(tracker, MeasuredLog(store, metrics), clock, publish, max_waiting=settings.max_waiting)
    blocks = EvidenceBlocks(book, tracker, handler, clock)
    return Service(
        settings=settings,
        clock=clock,
        store=store,
        view=view,
        handler=handler,
        feed=feed,
        allowed=allowed,
        registry=registry,
        evidence=book,
        evidence_blocks=blocks,
        pusher=pusher,
        metrics=metrics,
    )


def _pusher(
    settings: Settings, clock: Clock, registry: Registry, feed: ChangeFeed, view: ListView, allowed: AllowedHosts
) -> Pusher:
    gate = ManagersFirst(registry, settings.managers_first.total_seconds())
    pusher = Pusher(registry, feed, Batches(feed, view), gate, allowed, clock, settings.heartbeat.total_seconds())
    registry.came = pusher.came
    feed.waiting.add(pusher)
    return pusher


def _millis(duration: timedelta) -> int:
    return round(duration.total_seconds() * 1000)


@asynccontextmanager
async def _running(service: Service) -> AsyncIterator[None]:
    tracker, handler = service.view.tracker, service.handler
    compactor = Compactor(
        tracker,
        service.store,
        service.clock,
        max_changes=service.settings.log_max_changes,
        max_age=service.settings.log_max_age,
        compacted=service.metrics.compacted.inc,
    )
    writing = asyncio.create_task(handler.run())
    helping = [
        asyncio.create_task(expire_ended(tracker, handler, service.clock)),
        asyncio.create_task(compactor.run()),
        asyncio.create_task(find_again(service.store)),
        asyncio.create_task(service.registry.run()),
        asyncio.create_task(service.evidence_blocks.run()),
    ]
    try:
        await service.registry.load()
        await service.evidence_blocks.load(service.store)
        yield
    finally:
        service.feed.close()
        for task in helping:
            task.cancel()
        await asyncio.gather(*helping, return_exceptions=True)
        await service.pusher.close()
        handler.close()
        await writing
        with suppress(UnavailableError):
            await service.registry.flush()
