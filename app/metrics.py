"""Metrics for Prometheus. Most are read off the parts when somebody scrapes, so that the hot paths count nothing."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.notify.feed import ChangeFeed
from app.notify.push import Pusher
from app.notify.registry import Registry
from app.store.store import Store
from app.view import ListView
from blocklist.changes import Change, ChangeType
from blocklist.evidence import EvidenceBook, Kind
from blocklist.listener import Role


class Metrics:
    """The service's own registry: two services in one process do not mix."""

    def __init__(self, view: ListView, feed: ChangeFeed, listeners: Registry, pusher: Pusher) -> None:
        self._registry = registry = CollectorRegistry()
        self._view = view
        registry.register(_Parts(view, feed))
        registry.register(_Listeners(view, listeners, pusher))
        self.changes = Counter("blocklist_changes", "Committed changes of the list.", ["type"], registry=registry)
        self.commit_seconds = Histogram("blocklist_commit_seconds", "Time of a transaction.", registry=registry)
        self.commit_changes = Histogram(
            "blocklist_commit_changes",
            "Changes in one transaction.",
            buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000),
            registry=registry,
        )
        self.expiry_lateness = Histogram(
            "blocklist_expiry_lateness_seconds", "From a block's end to its expired change.", registry=registry
        )
        self.compacted = Counter("blocklist_log_compacted_changes", "Changes dropped from the log.", registry=registry)
        push_seconds = Histogram("blocklist_push_seconds", "From a push to its answer.", registry=registry)
        pusher.seconds = push_seconds.observe
        for kind in ChangeType:
            self.changes.labels(kind.value)

    def show_evidence(self, book: EvidenceBook, made: Callable[[], int]) -> None:
        """Show what applications say, and how many blocks came of it."""
        self._registry.register(_Evidence(book, made, self._view.clock))

    def count(self, changes: Sequence[Change]) -> None:
        """These changes were committed, in one transaction."""
        self.commit_changes.observe(len(changes))
        for change in changes:
            self.changes.labels(change.type.value).inc()
            if change.type is ChangeType.EXPIRED:
                self.expiry_lateness.observe(max(0, change.at - change.node.end) / 1000)

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self._registry)


class MeasuredLog:
    """The store as the handler's log, with each transaction measured."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self.revision = store.revision
        self.changes = store.changes

    async def commit(self, changes: Sequence[Change]) -> None:
        """See Store.commit."""
        with self._metrics.commit_seconds.time():
            await self._store.commit(changes)


class _Parts(Collector):
    def __init__(self, view: ListView, feed: ChangeFeed) -> None:
        self._view = view
        self._feed = feed

    def collect(self) -> Iterable[Metric]:
        view = self._view
        blocked = len(view.tracker.blocked(view.clock()))
        # FLIP-224, Metrics: the name is Flink's, not Prometheus's.
        yield GaugeMetricFamily("numBlockedNodes", "Nodes blocked at present.", blocked)
        yield GaugeMetricFamily("blocklist_revision", "The present revision.", view.tracker.revision)
        yield GaugeMetricFamily("blocklist_database_up", "Whether it took the last transaction.", view.age() is None)
        yield GaugeMetricFamily("blocklist_watches", "Open watch streams.", self._feed.readers)
        reads = CounterMetricFamily("blocklist_list_reads", "Answers to GET /blocklist.", labels=["path"])
        reads.add_metric(["fast"], view.fast_reads)
        reads.add_metric(["route"], view.route_reads)
        yield reads


class _Listeners(Collector):
    def __init__(self, view: ListView, registry: Registry, pusher: Pusher) -> None:
        self._view = view
        self._registry = registry
        self._pusher = pusher

    def collect(self) -> Iterable[Metric]:
        now, revision = self._view.clock(), self._view.tracker.revision
        count = Tally((member.listener.role, member.listener.live(now)) for member in self._registry)
        listeners = GaugeMetricFamily("blocklist_listeners", "Registered listeners.", labels=["role", "state"])
        for role in Role:
            for live, state in ((True, "live"), (False, "lapsed")):
                listeners.add_metric([role.value, state], count[role, live])
        yield listeners
        lag = max((revision - (member.listener.acked or 0) for member in self._registry.live()), default=0)
        yield GaugeMetricFamily(
            "blocklist_listener_lag_revisions", "Of the live listener that is furthest behind.", lag
        )
        yield GaugeMetricFamily("blocklist_task_managers", "Known TaskManagers.", len(self._view.task_managers))
        yield CounterMetricFamily("blocklist_leases_lapsed", "Leases that have lapsed.", self._registry.lapses)
        pushes = CounterMetricFamily("blocklist_pushes", "Pushes and heartbeats sent.", labels=["outcome"])
        pushes.add_metric(["taken"], self._pusher.sent)
        pushes.add_metric(["failed"], self._pusher.failed)
        yield pushes


class _Evidence(Collector):
    def __init__(self, book: EvidenceBook, made: Callable[[], int], clock: Callable[[], int]) -> None:
        self._book = book
        self._made = made
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        count = Tally((own.evidence.finding.kind, own.doubt is None) for own in self._book.listed(self._clock()))
        evidence = GaugeMetricFamily(
            "blocklist_evidence", "What applications say of nodes.", labels=["kind", "believed"]
        )
        for kind in Kind:
            for believed in (True, False):
                evidence.add_metric([kind.value, str(believed).lower()], count[kind, believed])
        yield evidence
        yield CounterMetricFamily("blocklist_evidence_blocks", "Nodes blocked by evidence.", self._made())
