"""Service: the parts that main puts together, as the routers find them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import Request

from app.auth.addresses import Networks
from app.auth.authenticator import Authenticator
from app.auth.sessions import Sessions
from app.change_lines import ChangeLines
from app.evidence import EvidenceBlocks
from app.guard import Guard
from app.handler import BlocklistHandler
from app.integrations.alertmanager_blocks import AlertBlocks
from app.metrics import Metrics
from app.notify.callbacks import AllowedHosts
from app.notify.feed import ChangeFeed
from app.notify.keeper import Keeper
from app.notify.push import Pusher
from app.notify.registry import Registry
from app.notify.roll import Roll
from app.notify.usable import UsableNodes
from app.notify.waits import Waits
from app.origins import Origins
from app.settings import Settings
from app.store.store import Store
from app.view import ListView
from blocklist.evidence import EvidenceBook


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
