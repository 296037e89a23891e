"""assemble: the only place where the parts of the service are put together.

Each part receives what it needs in its constructor, so the order below is the direction of dependencies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.auth.sessions import Sessions
from app.auth_setup import make_authenticator
from app.components import AccessComponents, Components, EngineComponents, ListenerComponents
from app.engine.background import Compactor
from app.engine.dismissals import Dismissals
from app.engine.evidence_blocks import EvidenceBlocker
from app.engine.handler import BlocklistHandler
from app.engine.limits import LimitGuard
from app.engine.list_details import LastChanges
from app.engine.list_view import ListView
from app.engine.supervision import TaskHealth
from app.engine.table_view import TableView
from app.integrations.alertmanager.handler import AlertBlocker
from app.integrations.alertmanager.metrics import AlertmanagerMetrics
from app.lifecycle import Lifecycle
from app.listeners.directory import ListenerDirectory
from app.listeners.drift import DriftMonitor
from app.listeners.heartbeats import HeartbeatRecorder
from app.listeners.nodes_file import NodesFile
from app.listeners.ownership import PushOwnership
from app.listeners.quota import ListenerQuota
from app.listeners.reader import ListenerReader
from app.listeners.registry import ListenerRegistry
from app.listeners.unsaved_reports import UnsavedReports
from app.listeners.usable_nodes import UsableNodes
from app.listeners.writer import ListenerWriter
from app.logs.change_log import ChangeLogWriter
from app.metrics.collectors import (
    ClockMetrics,
    DriftMetrics,
    EvidenceMetrics,
    FastPathMetrics,
    ListenerMetrics,
    ListMetrics,
    QueueMetrics,
    TaskMetrics,
)
from app.metrics.metrics import MeasuredStore, Metrics
from app.net.addresses import Networks
from app.net.body_quota import BodyQuota
from app.net.callback_policy import CallbackPolicy
from app.net.notice_urls import make_senders
from app.notices.grouping import NoticeGroups
from app.notices.notifier import NoNotices, Notices, Notifier
from app.notices.observer import ListenerObserver
from app.notices.target import Target
from app.notices.tracked_nodes import TrackedNodes
from app.publisher import ChangePublisher
from app.push.batches import BatchCache
from app.push.pusher import Pusher
from app.push.resource_manager_barrier import ResourceManagerBarrier
from app.settings import Settings
from app.store.queries import LoadedState
from app.store.store import Store
from app.watch.change_feed import ChangeFeed
from app.watch.stream_quota import StreamQuota
from blocklist.model.automatic_blocks import AutomaticBlocks
from blocklist.model.confirmed_nodes import ConfirmedNodes
from blocklist.model.evidence import EvidenceRule, EvidenceStore
from blocklist.model.inventory import Inventory
from blocklist.model.limits import EvidenceLimit
from blocklist.model.time import to_millis
from blocklist.model.tracker import BlocklistTracker


@dataclass(frozen=True, kw_only=True, slots=True)
class _Base:
    """What every other part builds on."""

    settings: Settings
    clock: Callable[[], int]
    store: Store
    metrics: Metrics
    tracker: BlocklistTracker
    view: ListView
    feed: ChangeFeed
    evidence: EvidenceStore
    confirmed_nodes: ConfirmedNodes
    inventory: Inventory
    quota: ListenerQuota
    directory: ListenerDirectory
    task_health: TaskHealth
    nodes_file: NodesFile


@dataclass(frozen=True, kw_only=True, slots=True)
class _Listeners:
    """The listeners of this process and of other replicas, and the pushes to them."""

    pusher: Pusher
    writer: ListenerWriter
    registry: ListenerRegistry
    ownership: PushOwnership
    callback_policy: CallbackPolicy


@dataclass(frozen=True, kw_only=True, slots=True)
class _Engine:
    """What changes the list."""

    change_log: ChangeLogWriter
    dismissals: Dismissals
    automatic_blocks: AutomaticBlocks
    last_changes: LastChanges
    handler: BlocklistHandler
    usable_nodes: UsableNodes
    limit_guard: LimitGuard
    evidence_blocker: EvidenceBlocker
    alert_blocker: AlertBlocker
    drift: DriftMonitor
    notices: Notices


def assemble(
    settings: Settings, clock: Callable[[], int], store: Store, loaded: LoadedState
) -> tuple[Components, Lifecycle]:
    """The parts that requests need, and those that run in the background."""
    base = _base(settings, clock, store, loaded)
    listeners = _listeners(base)
    engine = _engine(base, listeners.ownership, loaded)
    access = _access(base)
    _register_metrics(base, listeners, engine)
    return _components(base, listeners, engine, access), _lifecycle(base, listeners, engine, access)


def _base(settings: Settings, clock: Callable[[], int], store: Store, loaded: LoadedState) -> _Base:
    inventory = Inventory()
    store.use_aliases(inventory.aliases)
    tracker = BlocklistTracker(loaded.snapshot, inventory.aliases)
    table = TableView(tracker, clock, inventory.identifiers, lambda: inventory.has_staged)
    view = ListView(tracker, clock, store.outdated_seconds, table)
    rule = EvidenceRule(applications=settings.evidence_applications, window=to_millis(settings.evidence_window))
    confirmed_nodes = ConfirmedNodes(
        authenticated=settings.auth == "tokens", aliases=inventory.aliases, machine_of=inventory.machine_of
    )
    evidence = EvidenceStore(
        rule,
        view.task_managers.nodes_of,
        confirmed_nodes.confirmed_name,
        confirmed_nodes.principal_of,
        inventory.aliases,
        inventory.machine_of,
    )
    quota = ListenerQuota(max_listeners=settings.max_listeners_per_token, max_bytes=settings.max_report_bytes_per_token)
    metrics = Metrics()
    directory = ListenerDirectory(view, evidence, confirmed_nodes, inventory, quota, clock)
    return _Base(
        settings=settings,
        clock=clock,
        store=store,
        metrics=metrics,
        tracker=tracker,
        view=view,
        feed=ChangeFeed(store, view),
        evidence=evidence,
        confirmed_nodes=confirmed_nodes,
        inventory=inventory,
        quota=quota,
        directory=directory,
        task_health=TaskHealth(),
        nodes_file=NodesFile(settings.nodes_file, directory.inventory_updater, metrics.nodes_file_faulty.set),
    )


def _listeners(base: _Base) -> _Listeners:
    database, directory, clock = base.store.listeners, base.directory, base.clock
    ownership = PushOwnership(database, base.store.replica, shared=base.store.replicated)
    unsaved = UnsavedReports(shared=base.store.replicated)
    heartbeats = HeartbeatRecorder(directory, unsaved, base.tracker, clock)
    callback_policy = base.settings.callback_policy
    pusher = _pusher(base, ownership, heartbeats, callback_policy)
    reader = ListenerReader(
        database,
        directory,
        base.tracker,
        on_registered=pusher.on_registered,
        clock=clock,
        replicated=base.store.replicated,
    )
    forget_after = to_millis(base.settings.forget_listeners)
    writer = ListenerWriter(database, ownership, directory, reader, unsaved, base.tracker, clock, forget_after)
    registry = ListenerRegistry(
        database, ownership, directory, reader, heartbeats, base.view, base.feed, base.quota, clock
    )
    return _Listeners(
        pusher=pusher, writer=writer, registry=registry, ownership=ownership, callback_policy=callback_policy
    )


def _pusher(
    base: _Base, ownership: PushOwnership, heartbeats: HeartbeatRecorder, callback_policy: CallbackPolicy
) -> Pusher:
    return Pusher(
        base.directory,
        ownership,
        heartbeats,
        base.feed,
        BatchCache(base.feed, base.view),
        ResourceManagerBarrier(base.directory, base.settings.managers_first.total_seconds()),
        callback_policy,
        base.clock,
        heartbeat_seconds=base.settings.heartbeat.total_seconds(),
        on_duration=base.metrics.push_seconds.observe,
    )


def _notices(base: _Base, ownership: PushOwnership, drift: DriftMonitor) -> Notices:
    settings, metrics = base.settings, base.metrics
    senders = make_senders(settings.notify_url)
    if not senders:
        return NoNotices()
    nodes = TrackedNodes()
    return Notifier(
        [Target(position, sender, metrics.count_notice) for position, sender in enumerate(senders, 1)],
        NoticeGroups(window=settings.notify_group.total_seconds(), max_per_minute=settings.notify_max_per_minute),
        nodes,
        ListenerObserver(nodes, base.directory, base.view, drift, base.clock),
        replicated=base.store.replicated,
        is_first=lambda: ownership.is_first,
        on_left_out=metrics.notices_left_out.inc,
    )


def _engine(base: _Base, ownership: PushOwnership, loaded: LoadedState) -> _Engine:
    settings, metrics = base.settings, base.metrics
    change_log = ChangeLogWriter(settings.log_format, metrics.count_lost_log_lines)
    last_changes = LastChanges(loaded.last_changes)
    dismissals = Dismissals(base.clock, loaded.dismissals, base.inventory.aliases)
    automatic_blocks = AutomaticBlocks(settings.repeat_rule, base.inventory.aliases)
    automatic_blocks.reset(loaded.automatic_blocks)
    drift = DriftMonitor(base.directory, base.view, last_changes, to_millis(settings.drift_after))
    notices = _notices(base, ownership, drift)
    publisher = ChangePublisher(
        last_changes=last_changes,
        view=base.view,
        feed=base.feed,
        evidence=base.evidence,
        dismissals=dismissals,
        automatic_blocks=automatic_blocks,
        directory=base.directory,
        metrics=metrics,
        change_log=change_log,
        notices=notices,
        replicated=base.store.replicated,
    )
    store = MeasuredStore(base.store, metrics)
    handler = BlocklistHandler(
        base.tracker, store, base.clock, publisher, replica=base.store.replica, max_queued=settings.max_waiting
    )
    usable_nodes = UsableNodes(base.directory, base.view, base.confirmed_nodes)
    limit_guard = LimitGuard(settings.limits, usable_nodes, base.inventory, metrics.count_refused)
    evidence_limit = EvidenceLimit(share=settings.evidence_max_share, confirmed=base.confirmed_nodes.__len__)
    return _Engine(
        change_log=change_log,
        dismissals=dismissals,
        automatic_blocks=automatic_blocks,
        last_changes=last_changes,
        handler=handler,
        usable_nodes=usable_nodes,
        limit_guard=limit_guard,
        evidence_blocker=EvidenceBlocker(
            base.evidence, base.tracker, handler, limit_guard, evidence_limit, automatic_blocks, dismissals, base.clock
        ),
        alert_blocker=AlertBlocker(
            handler,
            limit_guard,
            dismissals,
            automatic_blocks,
            node_label=settings.alertmanager_node_label,
            duration=to_millis(settings.alertmanager_duration),
        ),
        drift=drift,
        notices=notices,
    )


def _access(base: _Base) -> AccessComponents:
    settings = base.settings
    authenticator = make_authenticator(settings, base.store.tokens, base.clock)
    return AccessComponents(
        authenticator=authenticator,
        sessions=Sessions(authenticator, base.store.tokens, base.clock),
        trusted_proxies=Networks(settings.trusted_proxies.split(",")),
        stream_quota=StreamQuota(settings.max_waits_per_client),
        body_quota=BodyQuota(),
    )


def _register_metrics(base: _Base, listeners: _Listeners, engine: _Engine) -> None:
    for collector in (
        ListMetrics(base.view, base.feed),
        ClockMetrics(base.store.clock_offset),
        FastPathMetrics(base.view, base.metrics.fast_puts),
        QueueMetrics(engine.handler),
        ListenerMetrics(base.view, base.feed, base.directory, listeners.writer, listeners.pusher),
        EvidenceMetrics(base.evidence, engine.evidence_blocker, base.clock),
        DriftMetrics(engine.drift),
        AlertmanagerMetrics(engine.alert_blocker),
        TaskMetrics(base.task_health, listeners.pusher),
    ):
        base.metrics.register(collector)


def _components(base: _Base, listeners: _Listeners, engine: _Engine, access: AccessComponents) -> Components:
    return Components(
        settings=base.settings,
        clock=base.clock,
        engine=EngineComponents(
            view=base.view,
            feed=base.feed,
            store=base.store,
            last_changes=engine.last_changes,
            dismissals=engine.dismissals,
            automatic_blocks=engine.automatic_blocks,
            handler=engine.handler,
            limit_guard=engine.limit_guard,
        ),
        listeners=ListenerComponents(
            directory=base.directory,
            registry=listeners.registry,
            usable_nodes=engine.usable_nodes,
            inventory=base.inventory,
            evidence=base.evidence,
            drift=engine.drift,
            callback_policy=listeners.callback_policy,
        ),
        access=access,
        alert_blocker=engine.alert_blocker,
        metrics=base.metrics,
        task_health=base.task_health,
        nodes_file=base.nodes_file,
    )


def _lifecycle(base: _Base, listeners: _Listeners, engine: _Engine, access: AccessComponents) -> Lifecycle:
    compactor = Compactor(
        base.tracker,
        base.store,
        base.clock,
        max_changes=base.settings.log_max_changes,
        max_age=base.settings.log_max_age,
        on_compacted=base.metrics.compacted.inc,
    )
    return Lifecycle(
        clock=base.clock,
        tracker=base.tracker,
        store=base.store,
        handler=engine.handler,
        compactor=compactor,
        feed=base.feed,
        pusher=listeners.pusher,
        listener_writer=listeners.writer,
        evidence_blocker=engine.evidence_blocker,
        drift=engine.drift,
        inventory_updater=base.directory.inventory_updater,
        authenticator=access.authenticator,
        sessions=access.sessions,
        change_log=engine.change_log,
        task_health=base.task_health,
        nodes_file=base.nodes_file,
        notices=engine.notices,
    )
