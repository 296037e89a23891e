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
from app.api.openapi import install_openapi
from app.auth.sessions import Sessions
from app.auth_setup import make_authenticator
from app.components import Components
from app.engine.background import Compactor, expire_blocks, probe_database, supervise
from app.engine.evidence_blocks import EvidenceBlocker
from app.engine.handler import BlocklistHandler
from app.engine.last_changes import LastChanges
from app.engine.limits import LimitGuard
from app.engine.list_view import ListView
from app.http.connection_limits import ConnectionLimits
from app.http.fast_get import CachedResponses
from app.http.request_tracking import RequestTrackingApp
from app.integrations.alertmanager.handler import AlertBlocker
from app.integrations.alertmanager.metrics import AlertmanagerMetrics
from app.listeners.directory import ListenerDirectory
from app.listeners.ownership import PushOwnership
from app.listeners.reader import ListenerReader
from app.listeners.registry import ListenerRegistry
from app.listeners.usable_nodes import UsableNodes
from app.listeners.writer import ListenerWriter
from app.logs.change_log import ChangeLogWriter
from app.metrics.metrics import MeasuredStore, Metrics
from app.net.addresses import Networks
from app.net.callback_policy import CallbackPolicy
from app.page import routes
from app.publisher import ChangePublisher
from app.push.batches import BatchCache
from app.push.pusher import Pusher
from app.push.resource_manager_barrier import ResourceManagerBarrier
from app.settings import Settings
from app.store.database import Topic
from app.store.queries import LoadedState
from app.store.schema_check import check_schema
from app.store.store import Store, make_store
from app.telemetry import telemetry_config
from app.watch.change_feed import ChangeFeed
from app.watch.stream_quota import StreamQuota
from blocklist.model.errors import UnavailableError
from blocklist.model.evidence import EvidenceRule, EvidenceStore
from blocklist.model.time import to_millis
from blocklist.model.tracker import BlocklistTracker

Clock = Callable[[], int]


def unix_millis() -> int:
    """The present in Unix milliseconds."""
    return time.time_ns() // 1_000_000


def create_app(settings: Settings, *, clock: Clock = unix_millis) -> FastAPI:
    """The service as an ASGI app. Starting it raises SchemaError if the database cannot be served."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        check_schema(settings.database_url)
        store = make_store(settings.database_url, secrets.token_hex(4), settings.database_timeout.total_seconds())
        try:
            service = _assemble(settings, clock, store, await store.open())
            app.state.service = service
            connection_limits = ConnectionLimits(
                header_timeout=settings.header_timeout.total_seconds(),
                body_timeout=settings.body_timeout.total_seconds(),
                max_connections=settings.max_connections,
            )
            async with _running(service), _enforcing_limits(connection_limits):
                # uvicorn hands this to each connection: for the protocols of app.http.
                yield {
                    "cached_responses": CachedResponses(service.view, service.authenticator),
                    "app": app,
                    "connection_limits": connection_limits,
                }
        finally:
            await store.close()

    # FastAPI's own /docs loads its scripts from elsewhere, and operators' networks are often closed: see app.page.docs.
    app = RequestTrackingApp(
        title="blocklist",
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        telemetry=telemetry_config(settings),
    )
    problems.install_handlers(app)
    for part in (nodes, node_status, listing, changes, listeners, evidence, alertmanager, health, tokens, routes):
        # Not include_router: it nests, and a nested route costs each request a second search.
        app.router.routes.extend(part.router.routes)
    install_openapi(app)
    return app


def stop_streams(app: FastAPI) -> None:
    """The service is about to stop: watches say bye, waiting readers get their answers."""
    service: Components = app.state.service
    service.feed.close()
    service.view.close()
    service.listeners.acks.notify_all()


def _assemble(settings: Settings, clock: Clock, store: Store, loaded: LoadedState) -> Components:
    tracker = BlocklistTracker(loaded.snapshot)
    view = ListView(tracker, clock, store.outage_seconds)
    origins = LastChanges(loaded.last_changes)
    feed = ChangeFeed(store, view)
    allowed = CallbackPolicy(settings.callback_hosts.split(","))
    rule = EvidenceRule(applications=settings.evidence_applications, window=to_millis(settings.evidence_window))
    book = EvidenceStore(rule, view.task_managers.nodes_of)
    directory = ListenerDirectory(view, book, clock)
    kept = store.listeners
    replica = PushOwnership(kept, store.replica, shared=store.replicated)
    follower = ListenerReader(kept, directory, tracker)
    keeper = ListenerWriter(kept, replica, directory, follower, tracker, clock, to_millis(settings.forget_listeners))
    registry = ListenerRegistry(kept, replica, directory, follower, keeper, view, clock)
    pusher = _pusher(settings, clock, registry, directory, feed, view, allowed)
    follower.on_registered = pusher.on_registered
    metrics = Metrics(view, feed, directory, keeper, pusher)
    metrics.show_evidence(book, lambda: blocks.nodes_blocked)
    memory = ChangePublisher(
        origins=origins,
        view=view,
        feed=feed,
        evidence=book,
        directory=directory,
        metrics=metrics,
        change_log=ChangeLogWriter(settings.log_format, metrics.count_lost_log_lines),
        replicated=store.replicated,
    )
    handler = BlocklistHandler(tracker, MeasuredStore(store, metrics), clock, memory, max_queued=settings.max_waiting)
    metrics.show_waiting(lambda: handler.queue_length)
    usable = UsableNodes(directory, view)
    guard = LimitGuard(settings.limits, usable, origins.created_by, metrics.count_refused)
    blocks = EvidenceBlocker(book, tracker, handler, guard, clock)
    alerts = AlertBlocker(
        handler,
        guard,
        node_label=settings.alertmanager_node_label,
        duration=to_millis(settings.alertmanager_duration),
    )
    metrics.show_alerts(AlertmanagerMetrics(alerts))
    auth = make_authenticator(settings, store.tokens, clock)
    return Components(
        settings=settings,
        clock=clock,
        store=store,
        view=view,
        last_changes=origins,
        handler=handler,
        limit_guard=guard,
        feed=feed,
        callback_policy=allowed,
        listeners=directory,
        registry=registry,
        listener_writer=keeper,
        usable_nodes=usable,
        evidence_book=book,
        evidence_blocker=blocks,
        alerts=alerts,
        pusher=pusher,
        metrics=metrics,
        change_log=memory.change_log,
        authenticator=auth,
        sessions=Sessions(auth, store.tokens, clock),
        trusted_proxies=Networks(settings.trusted_proxies.split(",")),
        stream_quota=StreamQuota(settings.max_waits_per_client),
    )


def _pusher(
    settings: Settings,
    clock: Clock,
    registry: ListenerRegistry,
    directory: ListenerDirectory,
    feed: ChangeFeed,
    view: ListView,
    allowed: CallbackPolicy,
) -> Pusher:
    gate = ResourceManagerBarrier(directory, settings.managers_first.total_seconds())
    pusher = Pusher(registry, feed, BatchCache(feed, view), gate, allowed, clock, settings.heartbeat.total_seconds())
    feed.streams.add(pusher)
    return pusher


def _remote_change_callbacks(service: Components) -> dict[Topic, Callable[[], None]]:
    """Who looks when another replica has something new on a topic."""
    return {
        Topic.CHANGES: service.handler.notify_remote_change,
        Topic.LISTENERS: service.listener_writer.notify_remote_change,
        Topic.TOKENS: service.authenticator.notify_remote_change,
    }


@asynccontextmanager
async def _enforcing_limits(limits: ConnectionLimits) -> AsyncIterator[None]:
    sweeping = asyncio.create_task(limits.run())
    try:
        yield
    finally:
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)


@asynccontextmanager
async def _running(service: Components) -> AsyncIterator[None]:
    tracker, handler = service.view.tracker, service.handler
    compactor = Compactor(
        tracker,
        service.store,
        service.clock,
        max_changes=service.settings.log_max_changes,
        max_age=service.settings.log_max_age,
        on_compacted=service.metrics.compacted.inc,
    )
    # Before anybody can hear what applications said: who may have been unblocked since is not blocked by that.
    await service.evidence_blocker.load(service.store)
    writing = asyncio.create_task(supervise("changes", handler.run))
    parts: dict[str, Callable[[], Awaitable[None]]] = {
        "ends": partial(expire_blocks, tracker, handler, service.clock),
        "compaction": compactor.run,
        "database": partial(probe_database, service.store, handler.notify_remote_change),
        "notifications": partial(service.store.listen, _remote_change_callbacks(service)),
        "listeners": service.listener_writer.run,
        "evidence": service.evidence_blocker.run,
    }
    if service.authenticator.enabled:
        parts |= {"tokens": service.authenticator.run, "sessions": service.sessions.run}
    helping = [asyncio.create_task(supervise(part, work)) for part, work in parts.items()]
    try:
        await service.authenticator.load()
        await service.listener_writer.load()
        yield
    finally:
        service.feed.close()
        for task in helping:
            task.cancel()
        await asyncio.gather(*helping, return_exceptions=True)
        await service.pusher.close()
        handler.close()
        await writing
        service.change_log.close()
        with suppress(UnavailableError):
            await service.listener_writer.close()
            await service.authenticator.save_used()
