"""Service: the parts that main puts together, as the routers find them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import Request

from app.auth.authenticator import Authenticator
from app.auth.sessions import Sessions
from app.engine.evidence_blocks import EvidenceBlocker
from app.engine.handler import BlocklistHandler
from app.engine.last_changes import LastChanges
from app.engine.limits import LimitGuard
from app.engine.list_view import ListView
from app.integrations.alertmanager.handler import AlertBlocker
from app.listeners.directory import ListenerDirectory
from app.listeners.registry import ListenerRegistry
from app.listeners.usable_nodes import UsableNodes
from app.listeners.writer import ListenerWriter
from app.logs.change_log import ChangeLogWriter
from app.metrics.metrics import Metrics
from app.net.addresses import Networks
from app.net.callback_policy import CallbackPolicy
from app.push.pusher import Pusher
from app.settings import Settings
from app.store.store import Store
from app.watch.change_feed import ChangeFeed
from app.watch.stream_quota import StreamQuota
from blocklist.model.evidence import EvidenceStore


@dataclass(frozen=True, kw_only=True, slots=True)
class Components:
    """One running service."""

    settings: Settings
    clock: Callable[[], int]
    store: Store
    view: ListView
    last_changes: LastChanges
    handler: BlocklistHandler
    limit_guard: LimitGuard
    feed: ChangeFeed
    callback_policy: CallbackPolicy
    listeners: ListenerDirectory
    registry: ListenerRegistry
    listener_writer: ListenerWriter
    usable_nodes: UsableNodes
    evidence_book: EvidenceStore
    evidence_blocker: EvidenceBlocker
    alerts: AlertBlocker
    pusher: Pusher
    metrics: Metrics
    change_log: ChangeLogWriter
    authenticator: Authenticator
    sessions: Sessions
    trusted_proxies: Networks
    stream_quota: StreamQuota


def components_of(request: Request) -> Components:
    """The service that a request came to."""
    service: Components = request.app.state.service
    return service
