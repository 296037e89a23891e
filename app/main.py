"""create_app: the only place where the parts of the service are put together."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from fastapi import FastAPI

from app.api import alertmanager, changes, evidence, health, listeners, listing, node_status, nodes, problems, tokens
from app.api.openapi import document
from app.auth.sessions import Sessions
from app.auth_setup import make_authenticator
from app.components import Service
from app.engine.background import Compactor, expire_ended, find_again, steadily
from app.engine.evidence_blocks import EvidenceBlocks
from app.engine.handler import BlocklistHandler
from app.engine.last_changes import Origins
from app.engine.limits import Guard
from app.engine.list_view import ListView
from app.http.connection_limits import Patience
from app.http.fast_get import ReadyAnswers
from app.http.request_tracking import TrackedApp
from app.integrations.alertmanager.handler import AlertBlocks
from app.integrations.alertmanager.metrics import AlertmanagerMetrics
from app.listeners.directory import Roll
from app.listeners.ownership import Replica
from app.listeners.reader import Follower
from app.listeners.registry import Registry
from app.listeners.usable_nodes import UsableNodes
from app.listeners.writer import Keeper
from app.logs.change_log import ChangeLines
from app.metrics.metrics import MeasuredLog, Metrics
from app.net.addresses import Networks
from app.net.callback_policy import AllowedHosts
from app.page import routes
from app.publisher import Memory
from app.push.batches import Batches
from app.push.pusher import Pusher
from app.push.resource_manager_barrier import ManagersFirst
from app.settings import Settings
from app.store.database import Topic
from app.store.queries import Loaded
from app.store.schema_check import check
from app.store.store import Store, make_store
from app.telemetry import telemetry_of
from app.watch.change_feed import ChangeFeed
from app.watch.stream_quota import Waits
from blocklist.model.errors import UnavailableError
from blocklist.model.evidence import EvidenceBook, Rule
from blocklist.model.time import in_millis
from blocklist.model.tracker import BlocklistTracker

Clock = Callable[[], int]


def unix_millis() -> int:
    """The present in Unix milliseconds."""
    return time.time_ns() // 1_000_000


def create_app(settings: Settings, *, clock: Clock = unix_millis) -> FastAPI:
    """The service as an ASGI app. Starting it raises SchemaError if the database cannot be served."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        check(settings.database_url)
        store = make_store(settings.database_url, secrets.token_hex(4), settings.database_timeout.total_seconds())
        try:
            service = _assemble(settings, clock, store, await store.open())
            app.state.service = service
            patience = Patience(
                head=settings.header_timeout.total_seconds(),
                body=settings.body_timeout.total_seconds(),
                connections=settings.max_connections,
            )
            async with _running(service), _sweeping(patience):
                # uvicorn hands this to each connection: for the protocols of app.http.
                yield {"ready": ReadyAnswers(service.view, service.auth), "app": app, "patience": patience}
        finally:
            await store.close()

    # FastAPI's own /docs loads its scripts from elsewhere, and operators' networks are often closed: see app.page.docs.
    app = TrackedApp(
        title="blocklist",
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        telemetry=telemetry_of(settings),
    )
    problems.install(app)
    for part in (nodes, node_status, listing, changes, listeners, evidence, alertmanager, health, tokens, routes):
        # Not include_router: it nests, and a nested route costs each request a second search.
        app.router.routes.extend(part.router.routes)
    document(app)
    return app


def stop_streams(app: FastAPI) -> None:
    """The service is about to stop: watches say bye, waiting readers get their answers."""
    service: Service = app.state.service
    service.feed.close()
    service.view.close()
    service.roll.acks.ring()


def _assemble(settings: Settings, clock: Clock, store: Store, loaded: Loaded) -> Service:
    tracker = BlocklistTracker(loaded.snapshot)
    view = ListView(tracker, clock, store.age)
    origins = Origins(loaded.origins)
    feed = ChangeFeed(store, view)
    allowed = AllowedHosts(settings.callback_hosts.split(","))
    rule = Rule(applications=settings.evidence_applications, window=in_millis(settings.evidence_window))
    book = EvidenceBook(rule, view.task_managers.nodes_of)
    roll = Roll(view, book, clock)
    kept = store.listeners
    replica = Replica(kept, store.replica, shared=store.replicated)
    follower = Follower(kept, roll, tracker)
    keeper = Keeper(kept, replica, roll, follower, tracker, clock, in_millis(settings.forget_listeners))
    registry = Registry(kept, replica, roll, follower, keeper, view, clock)
    pusher = _pusher(settings, clock, registry, roll, feed, view, allowed)
    follower.came = pusher.came
    metrics = Metrics(view, feed, roll, keeper, pusher)
    metrics.show_evidence(book, lambda: blocks.made)
    memory = Memory(
        origins=origins,
        view=view,
        feed=feed,
        evidence=book,
        roll=roll,
        metrics=metrics,
        lines=ChangeLines(settings.log_format, metrics.lost),
        replicated=store.replicated,
    )
    handler = BlocklistHandler(tracker, MeasuredLog(store, metrics), clock, memory, max_waiting=settings.max_waiting)
    metrics.show_waiting(lambda: handler.waiting)
    usable = UsableNodes(roll, view)
    guard = Guard(settings.limits, usable, origins.created_by, metrics.refused)
    blocks = EvidenceBlocks(book, tracker, handler, guard, clock)
    alerts = AlertBlocks(
        handler,
        guard,
        node_label=settings.alertmanager_node_label,
        duration=in_millis(settings.alertmanager_duration),
    )
    metrics.show_alerts(AlertmanagerMetrics(alerts))
    auth = make_authenticator(settings, store.tokens, clock)
    return Service(
        settings=settings,
        clock=clock,
        store=store,
        view=view,
        origins=origins,
        handler=handler,
        guard=guard,
        feed=feed,
        allowed=allowed,
        roll=roll,
        registry=registry,
        keeper=keeper,
        usable=usable,
        evidence=book,
        evidence_blocks=blocks,
        alerts=alerts,
        pusher=pusher,
        metrics=metrics,
        lines=memory.lines,
        auth=auth,
        sessions=Sessions(auth, store.tokens, clock),
        proxies=Networks(settings.trusted_proxies.split(",")),
        waits=Waits(settings.max_waits_per_client),
    )


def _pusher(
    settings: Settings,
    clock: Clock,
    registry: Registry,
    roll: Roll,
    feed: ChangeFeed,
    view: ListView,
    allowed: AllowedHosts,
) -> Pusher:
    gate = ManagersFirst(roll, settings.managers_first.total_seconds())
    pusher = Pusher(registry, feed, Batches(feed, view), gate, allowed, clock, settings.heartbeat.total_seconds())
    feed.waiting.add(pusher)
    return pusher


def _looks(service: Service) -> dict[Topic, Callable[[], None]]:
    """Who looks when another replica has something new on a topic."""
    return {
        Topic.CHANGES: service.handler.look,
        Topic.LISTENERS: service.keeper.look,
        Topic.TOKENS: service.auth.look,
    }


@asynccontextmanager
async def _sweeping(patience: Patience) -> AsyncIterator[None]:
    sweeping = asyncio.create_task(patience.run())
    try:
        yield
    finally:
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)


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
    # Before anybody can hear what applications said: who may have been unblocked since is not blocked by that.
    await service.evidence_blocks.load(service.store)
    writing = asyncio.create_task(steadily("changes", handler.run))
    parts: dict[str, Callable[[], Awaitable[None]]] = {
        "ends": partial(expire_ended, tracker, handler, service.clock),
        "compaction": compactor.run,
        "database": partial(find_again, service.store, handler.look),
        "notifications": partial(service.store.listen, _looks(service)),
        "listeners": service.keeper.run,
        "evidence": service.evidence_blocks.run,
    }
    if service.auth.enabled:
        parts |= {"tokens": service.auth.run, "sessions": service.sessions.run}
    helping = [asyncio.create_task(steadily(part, work)) for part, work in parts.items()]
    try:
        await service.auth.load()
        await service.keeper.load()
        yield
    finally:
        service.feed.close()
        for task in helping:
            task.cancel()
        await asyncio.gather(*helping, return_exceptions=True)
        await service.pusher.close()
        handler.close()
        await writing
        service.lines.close()
        with suppress(UnavailableError):
            await service.keeper.leave()
            await service.auth.save_used()
