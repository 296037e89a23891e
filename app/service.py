"""Service: the parts that main puts together, as the routers find them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import Request

from app.evidence import EvidenceBlocks
from app.handler import BlocklistHandler
from app.metrics import Metrics
from app.notify.callbacks import AllowedHosts
from app.notify.feed import ChangeFeed
from app.notify.push import Pusher
from app.notify.registry import Registry
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
    handler: BlocklistHandler
    feed: ChangeFeed
    allowed: AllowedHosts
    registry: Registry
    evidence: EvidenceBook
    evidence_blocks: EvidenceBlocks
    pusher: Pusher
    metrics: Metrics


def service_of(request: Request) -> Service:
    """The service that a request came to."""
    service: Service = request.app.state.service
    return service
