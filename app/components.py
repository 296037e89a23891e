"""Service: the parts that main puts together, as the routers find them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import Request

from app.auth.authenticator import Authenticator
from app.auth.sessions import Sessions
from app.engine.evidence_blocks import EvidenceBlocks
from app.engine.handler import BlocklistHandler
from app.engine.last_changes import Origins
from app.engine.limits import Guard
from app.engine.list_view import ListView
from app.integrations.alertmanager.handler import AlertBlocks
from app.listeners.directory import Roll
from app.listeners.registry import Registry
from app.listeners.usable_nodes import UsableNodes
from app.listeners.writer import Keeper
from app.logs.change_log import ChangeLines
from app.metrics.metrics import Metrics
from app.net.addresses import Networks
from app.net.callback_policy import AllowedHosts
from app.push.pusher import Pusher
from app.settings import Settings
from app.store.store import Store
from app.watch.change_feed import ChangeFeed
from app.watch.stream_quota import Waits
from blocklist.model.evidence import EvidenceBook


@dataclass(frozen=True, kw_only=True, slots=True)
class Service:
    """One running service."""

    settings: Settings
    clock: Callable[[], int]
    store: Store
    view: ListView
    origins: Origins
    handler: BlocklistHandler
    guard: Guard
    feed: ChangeFeed
    allowed: AllowedHosts
    roll: Roll
    registry: Registry
    keeper: Keeper
    usable: UsableNodes
    evidence: EvidenceBook
    evidence_blocks: EvidenceBlocks
    alerts: AlertBlocks
    pusher: Pusher
    metrics: Metrics
    lines: ChangeLines
    auth: Authenticator
    sessions: Sessions
    proxies: Networks
    waits: Waits


def service_of(request: Request) -> Service:
    """The service that a request came to."""
    service: Service = request.app.state.service
    return service
