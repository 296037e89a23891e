"""Metrics for Prometheus. Most are read from the parts at a scrape, by collectors, at no cost to requests."""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.alertmanager import AlertBlocker, AlertOutcome
from app.engine.background import EvidenceBlocker, TaskHealth
from app.engine.handler import BlocklistHandler
from app.engine.list_view import ListView
from app.listeners.drift import DriftMonitor
from app.listeners.jobs import Jobs
from app.listeners.push import Pusher
from app.listeners.replication import ListenerWriter
from app.listeners.state import ListenerDirectory
from app.logs import isolated
from app.notices.notifier import Result
from app.store.queries import StaleError
from app.store.store import ClockOffset
from app.watch import ChangeFeed
from blocklist import __version__
from blocklist.model.changes import Change, ChangeType, Source
from blocklist.model.evidence import EvidenceStore, FindingKind
from blocklist.model.listener import DriftKind, ListenerRole

BEHIND_MS: Final = 30_000
"""A listener that has not applied a change of this age counts as behind."""
MAX_VERSIONS: Final = 20
"""Maximum number of samples of `blocklist_listener_versions`."""

_REQUESTED: Final = [source for source in Source if source is not Source.TIME]
_SOURCES: Final = dict.fromkeys(ChangeType, _REQUESTED) | {
    ChangeType.EXPIRED: [Source.TIME],
    ChangeType.NARROWED: [*Source],
}
_EXPIRED: Final = (ChangeType.EXPIRED, Source.TIME)
# These are half of all samples and nobody needs them: Prometheus notices by itself that a counter was reset.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """A registry of its own: two services in one process do not mix."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._next_rendering: asyncio.Task[bytes] | None = None
        self.fast_puts: Tally[int] = Tally()
        ProcessCollector(registry=registry)
        Info("blocklist_build", "Version of the service.", registry=registry).info({"version": __version__})
        changes = Counter("blocklist_changes", "Committed changes of the list.", ["type", "source"], registry=registry)
        self._changes = {
            (kind, source): changes.labels(kind.value, source.value)
            for kind, sources in _SOURCES.items()
            for source in sources
        }
        self.nodes_file_faulty = Gauge(
            "blocklist_nodes_file_faulty",
            "1 if BLOCKLIST_NODES_FILE cannot be used; what was read before stays in force.",
            registry=registry,
        )
        self._remote_changes = Counter(
            "blocklist_remote_changes",
            "Changes read from the database: made by another replica, or by a transaction that seemed to fail.",
            registry=registry,
        )
        self._requests = Histogram(
            "blocklist_request_seconds",
            "Duration of a request that reached a route; of a stream until it starts.",
            ["route", "method", "status"],
            buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 2, 10),
            registry=registry,
        )
        self._denied = Counter(
            "blocklist_requests_denied",
            "Requests refused for their credentials: missing, invalid, or without the role (forbidden).",
            ["reason"],
            registry=registry,
        )
        self._lost_log_lines = Counter(
            "blocklist_log_lines_lost", "Log lines of changes dropped because stderr was not read.", registry=registry
        )
        self.audit_lost = Counter(
            "blocklist_audit_records_lost",
            "Audit records dropped because the database was away for too long; the service's log has them.",
            registry=registry,
        )
        self.commit_seconds = Histogram("blocklist_commit_seconds", "Duration of a transaction.", registry=registry)
        self.commit_changes = Histogram(
            "blocklist_commit_changes",
            "Number of changes in a transaction.",
            buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000),
            registry=registry,
        )
        self.expiry_lateness = Histogram(
            "blocklist_expiry_lateness_seconds", "Time from a block's end to its expired change.", registry=registry
        )
        self.refused_by_limit = Counter(
            "blocklist_refused_by_limit", "Changes refused by a limit.", ["source"], registry=registry
        )
        self._stale_commits = Counter(
            "blocklist_commits_stale",
            "Transactions that lost to another replica's; their commands were executed again.",
            registry=registry,
        )
        self.compacted = Counter(
            "blocklist_log_compacted_changes", "Changes removed from the change log.", registry=registry
        )
        self._notices = Counter(
            "blocklist_notices", "Notices by result: sent, failed or timed_out.", ["result"], registry=registry
        )
        self.notices_left_out = Counter(
            "blocklist_notices_left_out",
            "Notices not sent: beyond the limit per minute, or too many waited for a target.",
            registry=registry,
        )
        self.push_seconds = Histogram(
            "blocklist_push_seconds", "Duration of a push, until its response.", registry=registry
        )
        for reason in ("missing", "invalid", "forbidden"):
            self._denied.labels(reason)
        for result in Result:
            self._notices.labels(result.value)
        for source in Source:
            if source is not Source.TIME:
                self.refused_by_limit.labels(source.value)

    def register(self, collector: Collector) -> None:
        """Add metrics that are read at each scrape."""
        self._registry.register(collector)

    def observe_request(self, route: str, method: str, status: int, seconds: float) -> None:
        """A response to a request; `route` is the template of its path."""
        self._requests.labels(route, method, f"{status // 100}xx").observe(seconds)

    def count_denied(self, reason: str) -> None:
        """A request was refused for its credentials: `missing`, `invalid` or `forbidden`."""
        self._denied.labels(reason).inc()

    def count_lost_log_lines(self, lines: int) -> None:
        self._lost_log_lines.inc(lines)

    def count_notice(self, result: Result) -> None:
        self._notices.labels(result.value).inc()

    def count_refused(self, source: Source) -> None:
        self.refused_by_limit.labels(source.value).inc()

    def count_changes(self, changes: Sequence[Change]) -> None:
        """Count the changes of one transaction that this replica committed."""
        self.commit_changes.observe(len(changes))
        counts = Tally((change.type, change.source or Source.REQUEST) for change in changes)
        for labels, number in counts.items():
            self._changes[labels].inc(number)
        for change in changes if _EXPIRED in counts else ():
            if change.type is ChangeType.EXPIRED:
                self.expiry_lateness.observe(max(0, change.at - change.node.end) / 1000)

    @contextmanager
    def commit(self) -> Iterator[None]:
        """Measure a transaction of changes, and count it if another replica has committed first."""
        started_at = perf_counter()
        try:
            yield
        except StaleError:
            with isolated("metrics of stale commits"):
                self._stale_commits.inc()
            raise
        finally:
            with isolated("metrics of commits"):
                self.commit_seconds.observe(perf_counter() - started_at)

    def count_remote_changes(self, changes: Sequence[Change]) -> None:
        self._remote_changes.inc(len(changes))

    async def render(self) -> bytes:
        """The metrics in Prometheus's text format, rendered in the next turn of the event loop for all that wait."""
        if self._next_rendering is None:
            self._next_rendering = asyncio.create_task(self._render_next())
        return await asyncio.shield(self._next_rendering)

    async def _render_next(self) -> bytes:
        await asyncio.sleep(0)
        # Who asks from now on gets a later state.
        self._next_rendering = None
        return generate_latest(self._registry)


@dataclass(eq=False, kw_only=True, slots=True)
class ServiceMetrics(Collector):
    """What is read from the parts of the service when Prometheus scrapes. `fast_puts` are PUTs by status."""

    view: ListView
    feed: ChangeFeed
    clock_offset: ClockOffset | None
    fast_puts: Mapping[int, int]
    handler: BlocklistHandler
    directory: ListenerDirectory
    writer: ListenerWriter
    pusher: Pusher
    evidence: EvidenceStore
    evidence_blocker: EvidenceBlocker
    drift: DriftMonitor
    task_health: TaskHealth
    alert_blocker: AlertBlocker

    def collect(self) -> Iterator[Metric]:
        yield from self._list()
        yield from self._clock()
        yield from self._fast_path()
        yield GaugeMetricFamily(
            "blocklist_queued_changes", "Number of change requests queued for the database.", self.handler.queue_length
        )
        yield from self._listeners()
        yield from self._evidence()
        yield from self._drift()
        yield from self._tasks()
        yield from self._alertmanager()

    def _list(self) -> Iterator[Metric]:
        view = self.view
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
        yield GaugeMetricFamily("blocklist_watches", "Number of open watch streams.", self.feed.open_watches)
        reads = {("fast",): view.fast_reads, ("route",): view.route_reads}
        yield _counters("blocklist_list_reads", "Responses to GET /blocklist.", ["path"], reads)

    def _clock(self) -> Iterator[Metric]:
        """0 if the database uses this clock; without a sample while the difference is unknown."""
        seconds = 0.0 if self.clock_offset is None else self.clock_offset.seconds
        text = "This machine's clock minus the database's."
        yield _gauges("blocklist_clock_offset_seconds", text, [], _known(seconds))

    def _fast_path(self) -> Iterator[Metric]:
        """Requests that are served below the routes: counted there by status, because labels would cost time."""
        classes = Tally({"2xx": 0, "4xx": 0, "5xx": 0})
        for status, count in self.fast_puts.items():
            classes[f"{status // 100}xx"] += count
        # 304 is counted as 2xx: to tell them apart would cost each read some time.
        reads = {
            ("/blocklist", "GET", "2xx"): self.view.fast_reads,
            ("/blocklist/table", "GET", "2xx"): self.view.table.fast_reads,
        }
        puts = {("/blocklist/nodes/{node_id}", "PUT", name): count for name, count in sorted(classes.items())}
        text = "Requests served on the fast path; their durations are not measured."
        yield _counters("blocklist_fast_requests", text, ["route", "method", "status"], reads | puts)

    def _listeners(self) -> Iterator[Metric]:
        lease_time, states = self.directory.lease_time(), {True: "live", False: "lapsed"}
        count = Tally((entry.listener.role, entry.is_live(lease_time)) for entry in self.directory.entries)
        listeners = {(role.value, state): count[role, live] for role in ListenerRole for live, state in states.items()}
        yield _gauges("blocklist_listeners", "Registered listeners.", ["role", "state"], listeners)
        # The most frequent versions only, as a caller may send anything.
        software = Tally((it.listener.software.product, it.listener.software.version) for it in self.directory.live())
        yield _gauges(
            "blocklist_listener_versions",
            f"Live listeners by product and version: the {MAX_VERSIONS} most frequent ones.",
            ["product", "version"],
            {(one or "unknown", two or "unknown"): count for (one, two), count in software.most_common(MAX_VERSIONS)},
        )
        yield from self._jobs()
        yield from self._lags(self.view.clock())
        yield GaugeMetricFamily("blocklist_task_managers", "Reported TaskManagers.", len(self.view.task_managers))
        yield CounterMetricFamily(
            "blocklist_leases_expired", "Listener leases that expired.", self.writer.expired_leases
        )
        pushes = {("delivered",): self.pusher.sent, ("failed",): self.pusher.failed}
        yield _counters("blocklist_pushes", "Pushes sent, empty ones included.", ["outcome"], pushes)

    def _jobs(self) -> Iterator[Metric]:
        """Without a sample of jobs while no manager reports which applications run."""
        found = Jobs(self.directory)
        text = "Jobs that run without a live agent, so that no block is in force there (GET /jobs)."
        yield _gauges("blocklist_jobs_without_agent", text, [], _known(found.total_without_agent))
        known = sum(source.unknown is None for source in found.sources)
        yield _gauges(
            "blocklist_job_sources",
            "Managers that report which applications run, by whether that is known now.",
            ["state"],
            {("known",): known, ("unknown",): len(found.sources) - known},
        )

    def _lags(self, now: int) -> Iterator[Metric]:
        live, revision = self.directory.applying(), self.view.tracker.revision
        behind = max((revision - (entry.listener.acked or 0) for entry in live), default=0)
        yield GaugeMetricFamily(
            "blocklist_listener_lag_revisions", "Largest number of revisions not applied by a live listener.", behind
        )
        lags = [(entry.listener.role, entry.lag_ms(self.feed, now)) for entry in live]
        yield GaugeMetricFamily(
            "blocklist_listener_lag_seconds",
            "Age of the oldest change not applied by a live listener.",
            max((lag for _, lag in lags), default=0) / 1000,
        )
        count = Tally(role for role, lag in lags if lag >= BEHIND_MS)
        text = "Live listeners that have not applied a change of 30 s ago."
        yield _gauges(
            "blocklist_listeners_behind", text, ["role"], {(role.value,): count[role] for role in ListenerRole}
        )

    def _evidence(self) -> Iterator[Metric]:
        assessed = self.evidence.assess(self.view.clock())
        count = Tally((each.evidence.finding.kind, each.ignored_reason is None) for each in assessed)
        yield _gauges(
            "blocklist_evidence",
            "Valid evidence from applications; `believed` is whether it counts.",
            ["kind", "believed"],
            {
                (it.value, str(believed).lower()): count[it, believed]
                for it in FindingKind
                for believed in (True, False)
            },
        )
        yield CounterMetricFamily(
            "blocklist_evidence_blocks", "Nodes blocked because of evidence.", self.evidence_blocker.nodes_blocked
        )

    def _drift(self) -> Iterator[Metric]:
        """Nodes that are not as the list says; without a value before the first observation."""
        latest = self.drift.latest
        count = Tally(kind for _, kind in {(it.node, it.kind) for it in latest.drift}) if latest is not None else {}
        drift = {} if latest is None else {(kind.value,): count[kind] for kind in DriftKind}
        text = "Nodes that are not as the list says, by what differs (GET /drift)."
        yield _gauges("blocklist_drift_nodes", text, ["kind"], drift)

    def _tasks(self) -> Iterator[Metric]:
        restarts = {(task,): number for task, number in sorted(self.task_health.restarts.items())}
        text = "Restarts of background tasks after an unexpected error."
        restarts[("pushes",)] = self.pusher.restarts
        yield _counters("blocklist_background_task_restarts", text, ["task"], restarts)

    def _alertmanager(self) -> Iterator[Metric]:
        blocker = self.alert_blocker
        outcomes = {(outcome.value,): blocker.alerts[outcome] for outcome in AlertOutcome}
        yield _counters("blocklist_alertmanager_alerts", "Alerts in posts, by outcome.", ["outcome"], outcomes)
        yield CounterMetricFamily("blocklist_alertmanager_posts", "Processed posts.", blocker.posts)
        text = "Alerts that Alertmanager omitted from posts."
        yield CounterMetricFamily("blocklist_alertmanager_truncated", text, blocker.truncated)


def _gauges(name: str, text: str, labels: Sequence[str], values: Mapping[Any, float]) -> Metric:
    """A gauge with these values by the values of its labels."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for its_labels, value in values.items():
        family.add_metric(its_labels, value)
    return family


def _counters(name: str, text: str, labels: Sequence[str], values: Mapping[Any, float]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for its_labels, value in values.items():
        family.add_metric(its_labels, value)
    return family


def _known(value: float | None) -> dict[tuple[str, ...], float]:
    """The only value of a gauge without labels; none if it is unknown."""
    return {} if value is None else {(): value}
