"""Components: the parts of the running service that requests need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import Request

from app.auth.authenticator import Authenticator
from app.auth.sessions import Sessions
from app.engine.dismissals import Dismissals
from app.engine.handler import BlocklistHandler
from app.engine.limits import LimitGuard
from app.engine.list_details import LastChanges
from app.engine.list_view import ListView
from app.engine.supervision import TaskHealth
from app.integrations.alertmanager.handler import AlertBlocker
from app.listeners.directory import ListenerDirectory
from app.listeners.drift import DriftMonitor
from app.listeners.nodes_file import NodesFile
from app.listeners.registry import ListenerRegistry
from app.listeners.usable_nodes import UsableNodes
from app.metrics.metrics import Metrics
from app.net.addresses import Networks
from app.net.body_quota import BodyQuota
from app.net.callback_policy import CallbackPolicy
from app.settings import Settings
from app.store.store import Store
from app.watch.change_feed import ChangeFeed
from app.watch.stream_quota import StreamQuota
from blocklist.model.automatic_blocks import AutomaticBlocks
from blocklist.model.evidence import EvidenceStore
from blocklist.model.inventory import Inventory


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineComponents:
    """The list: read in `view` and `feed`, its history in `store`; changed through `handler`."""

    view: ListView
    feed: ChangeFeed
    store: Store
    last_changes: LastChanges
    dismissals: Dismissals
    automatic_blocks: AutomaticBlocks
    handler: BlocklistHandler
    limit_guard: LimitGuard


@dataclass(frozen=True, kw_only=True, slots=True)
class ListenerComponents:
    """The listeners: read in `directory`, changed through `registry`."""

    directory: ListenerDirectory
    registry: ListenerRegistry
    usable_nodes: UsableNodes
    inventory: Inventory
    evidence: EvidenceStore
    drift: DriftMonitor
    callback_policy: CallbackPolicy


@dataclass(frozen=True, kw_only=True, slots=True)
class AccessComponents:
    """Who may do what, from where, and how many streams and unfinished bodies a client may have."""

    authenticator: Authenticator
    sessions: Sessions
    trusted_proxies: Networks
    stream_quota: StreamQuota
    body_quota: BodyQuota


@dataclass(frozen=True, kw_only=True, slots=True)
class Components:
    """One running service. What runs in the background is in app.lifecycle."""

    settings: Settings
    clock: Callable[[], int]
    engine: EngineComponents
    listeners: ListenerComponents
    access: AccessComponents
    alert_blocker: AlertBlocker
    metrics: Metrics
    task_health: TaskHealth
    nodes_file: NodesFile


def components_of(request: Request) -> Components:
    """The components of the service that received the request."""
    components: Components = request.app.state.components
    return components
