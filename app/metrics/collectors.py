"""Collectors: metrics that are read from the parts of the service when Prometheus scrapes."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.alertmanager import AlertBlocker, AlertOutcome
from app.engine.background import TaskHealth
from app.engine.evidence_blocks import EvidenceBlocker
from app.engine.handler import BlocklistHandler
from app.engine.list_view import ListView
from app.listeners.drift import DriftMonitor
from app.listeners.push import Pusher
from app.listeners.replication import ListenerWriter
from app.listeners.state import ListenerDirectory
from app.store.store import ClockOffset
from app.watch.change_feed import ChangeFeed
from blocklist.model.evidence import EvidenceStore, FindingKind
from blocklist.model.listener import DriftKind, ListenerRole


class ListMetrics(Collector):
    """The list, its readers and its database."""

    def __init__(self, view: ListView, feed: ChangeFeed) -> None:
        self._view = view
        self._feed = feed

    def collect(self) -> Iterable[Metric]:
        view = self._view
        blocked = len(view.tracker.blocked(view.clock()))
        # FLIP-224, Metrics: the name is Flink's, not Prometheus's.
        yield GaugeMetricFamily("numBlockedNodes", "Number of nodes that are blocked now.", blocked)
        yield GaugeMetricFamily("blocklist_revision", "Current revision of the list.", view.tracker.revision)
        yield GaugeMetricFamily(
            "blocklist_database_up", "1, or 0 from an outage until all was read again.", view.age() is None
        )
        yield GaugeMetricFamily(
            "blocklist_database_outage_seconds",
            "Time since the last successful transaction before an outage, else 0.",
            view.age() or 0,
        )
        yield GaugeMetricFamily("blocklist_watches", "Number of open watch streams.", self._feed.open_watches)
        reads = CounterMetricFamily("blocklist_list_reads", "Responses to GET /blocklist.", labels=["path"])
        reads.add_metric(["fast"], view.fast_reads)
        reads.add_metric(["route"], view.route_reads)
        yield reads


class ClockMetrics(Collector):
    """The clock of this machine: 0 if the database uses the same; without a sample while the difference is unknown."""

    def __init__(self, offset: ClockOffset | None) -> None:
        self._offset = offset

    def collect(self) -> Iterable[Metric]:
        gauge = GaugeMetricFamily(
            "blocklist_clock_offset_seconds", "This machine's clock minus the database's.", labels=[]
        )
        seconds = 0.0 if self._offset is None else self._offset.seconds
        if seconds is not None:
            gauge.add_metric([], seconds)
        yield gauge


class FastPathMetrics(Collector):
    """Requests that are served below the routes: counted there by status, because labels would cost time."""

    def __init__(self, view: ListView, puts: Mapping[int, int]) -> None:
        self._view = view
        self._puts = puts

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            "blocklist_fast_requests",
            "Requests served on the fast path; their durations are not measured.",
            labels=["route", "method", "status"],
        )
        # 304 is counted as 2xx: to tell them apart would cost each read some time.
        requests.add_metric(["/blocklist", "GET", "2xx"], self._view.fast_reads)
        requests.add_metric(["/blocklist/table", "GET", "2xx"], self._view.table.fast_reads)
        classes = Tally({"2xx": 0, "4xx": 0, "5xx": 0})
        for status, count in self._puts.items():
            classes[f"{status // 100}xx"] += count
        for status_class, count in sorted(classes.items()):
            requests.add_metric(["/blocklist/nodes/{node_id}", "PUT", status_class], count)
        yield requests


class QueueMetrics(Collector):
    """The queue of changes."""

    def __init__(self, handler: BlocklistHandler) -> None:
        self._handler = handler

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "blocklist_queued_changes", "Number of change requests queued for the database.", self._handler.queue_length
        )


class ListenerMetrics(Collector):
    """The listeners, their lag, and the pushes to them."""

    def __init__(
        self, view: ListView, feed: ChangeFeed, directory: ListenerDirectory, writer: ListenerWriter, pusher: Pusher
    ) -> None:
        self._view = view
        self._feed = feed
        self._directory = directory
        self._writer = writer
        self._pusher = pusher

    def collect(self) -> Iterable[Metric]:
        now = self._view.clock()
        lease_time = self._directory.lease_time()
        count = Tally((entry.listener.role, entry.is_live(lease_time)) for entry in self._directory.entries)
        listeners = GaugeMetricFamily("blocklist_listeners", "Registered listeners.", labels=["role", "state"])
        for role in ListenerRole:
            for live, state in ((True, "live"), (False, "lapsed")):
                listeners.add_metric([role.value, state], count[role, live])
        yield listeners
        yield from self._lags(now)
        yield GaugeMetricFamily("blocklist_task_managers", "Reported TaskManagers.", len(self._view.task_managers))
        yield CounterMetricFamily(
            "blocklist_leases_expired", "Listener leases that expired.", self._writer.expired_leases
        )
        pushes = CounterMetricFamily("blocklist_pushes", "Pushes sent, empty ones included.", labels=["outcome"])
        pushes.add_metric(["delivered"], self._pusher.sent)
        pushes.add_metric(["failed"], self._pusher.failed)
        yield pushes

    def _lags(self, now: int) -> Iterable[Metric]:
        live, revision = self._directory.live(), self._view.tracker.revision
        behind = max((revision - (entry.listener.acked or 0) for entry in live), default=0)
        yield GaugeMetricFamily(
            "blocklist_listener_lag_revisions", "Largest number of revisions not applied by a live listener.", behind
        )
        lag = max((entry.lag_ms(self._feed, now) for entry in live), default=0)
        yield GaugeMetricFamily(
            "blocklist_listener_lag_seconds", "Age of the oldest change not applied by a live listener.", lag / 1000
        )


class EvidenceMetrics(Collector):
    """Evidence from applications, and the blocks made from it."""

    def __init__(self, evidence: EvidenceStore, blocker: EvidenceBlocker, clock: Callable[[], int]) -> None:
        self._evidence = evidence
        self._blocker = blocker
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        assessed = self._evidence.assess(self._clock())
        count = Tally((each.evidence.finding.kind, each.ignored_reason is None) for each in assessed)
        evidence = GaugeMetricFamily(
            "blocklist_evidence",
            "Valid evidence from applications; `believed` is whether it counts.",
            labels=["kind", "believed"],
        )
        for kind in FindingKind:
            for believed in (True, False):
                evidence.add_metric([kind.value, str(believed).lower()], count[kind, believed])
        yield evidence
        yield CounterMetricFamily(
            "blocklist_evidence_blocks", "Nodes blocked because of evidence.", self._blocker.nodes_blocked
        )


class DriftMetrics(Collector):
    """Nodes that are not as the list says; without a value before the first observation."""

    def __init__(self, monitor: DriftMonitor) -> None:
        self._monitor = monitor

    def collect(self) -> Iterable[Metric]:
        drift = GaugeMetricFamily(
            "blocklist_drift_nodes",
            "Nodes that are not as the list says, by what differs (GET /drift).",
            labels=["kind"],
        )
        if (latest := self._monitor.latest) is not None:
            count = Tally(kind for _, kind in {(each.node, each.kind) for each in latest.drift})
            for kind in DriftKind:
                drift.add_metric([kind.value], count[kind])
        yield drift


class TaskMetrics(Collector):
    """Background tasks that failed and were restarted."""

    def __init__(self, task_health: TaskHealth, pusher: Pusher) -> None:
        self._task_health = task_health
        self._pusher = pusher

    def collect(self) -> Iterable[Metric]:
        restarts = CounterMetricFamily(
            "blocklist_background_task_restarts",
            "Restarts of background tasks after an unexpected error.",
            labels=["task"],
        )
        for task, number in sorted(self._task_health.restarts.items()):
            restarts.add_metric([task], number)
        restarts.add_metric(["pushes"], self._pusher.restarts)
        yield restarts


# Metrics of Alertmanager's posts.


class AlertmanagerMetrics(Collector):
    """Reads the counts of AlertBlocker at each scrape."""

    def __init__(self, blocks: AlertBlocker) -> None:
        self._blocks = blocks

    def collect(self) -> Iterable[Metric]:
        alerts = CounterMetricFamily(
            "blocklist_alertmanager_alerts", "Alerts in posts, by outcome.", labels=["outcome"]
        )
        for outcome in AlertOutcome:
            alerts.add_metric([outcome.value], self._blocks.alerts[outcome])
        yield alerts
        yield CounterMetricFamily("blocklist_alertmanager_posts", "Processed posts.", self._blocks.posts)
        yield CounterMetricFamily(
            "blocklist_alertmanager_truncated", "Alerts that Alertmanager omitted from posts.", self._blocks.truncated
        )
