"""Metrics for Prometheus. Most are read off the parts when somebody scrapes, so that the hot paths count nothing."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Sequence
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.registry import Collector

from app.engine.list_view import ListView
from app.listeners.directory import ListenerDirectory
from app.listeners.writer import ListenerWriter
from app.metrics.collectors import EvidenceMetrics, FastPathMetrics, ListenerMetrics, ListMetrics, QueueMetrics
from app.push.pusher import Pusher
from app.store.queries import StaleError
from app.store.store import Store
from app.watch.change_feed import ChangeFeed
from blocklist import __version__
from blocklist.model.changes import Change, ChangeType, Source
from blocklist.model.evidence import EvidenceStore

_CHANGED_BY: Final = {
    kind: [Source.TIME] if kind is ChangeType.EXPIRED else [source for source in Source if source is not Source.TIME]
    for kind in ChangeType
}
_EXPIRED: Final = (ChangeType.EXPIRED, Source.TIME)
# Half of all samples, and nobody asks for them: Prometheus sees by itself when a counter begins anew.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The service's own registry: two services in one process do not mix."""

    def __init__(
        self, view: ListView, feed: ChangeFeed, directory: ListenerDirectory, keeper: ListenerWriter, pusher: Pusher
    ) -> None:
        self._registry = registry = CollectorRegistry()
        self._view = view
        self.fast_puts: Tally[int] = Tally()
        for collector in (ListMetrics(view, feed), ListenerMetrics(view, feed, directory, keeper, pusher)):
            registry.register(collector)
        registry.register(FastPathMetrics(view, self.fast_puts))
        ProcessCollector(registry=registry)
        Info("blocklist_build", "What is running.", registry=registry).info({"version": __version__})
        changes = Counter("blocklist_changes", "Committed changes of the list.", ["type", "source"], registry=registry)
        self._changes = {
            (kind, source): changes.labels(kind.value, source.value)
            for kind, sources in _CHANGED_BY.items()
            for source in sources
        }
        self._remote_changes = Counter(
            "blocklist_changes_found",
            "Changes found in the database, not counted by type: another replica made them, or a transaction that"
            " seemed to fail.",
            registry=registry,
        )
        self._requests = Histogram(
            "blocklist_request_seconds",
            "Time of a request that came to a route; of a stream until it begins.",
            ["route", "method", "status"],
            buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 2, 10),
            registry=registry,
        )
        self._denied = Counter(
            "blocklist_requests_denied",
            "Requests refused for their credentials: missing, invalid, or not enough (forbidden).",
            ["reason"],
            registry=registry,
        )
        self._lost_log_lines = Counter(
            "blocklist_log_lines_lost", "Lines of changes that could not be written in time.", registry=registry
        )
        for reason in ("missing", "invalid", "forbidden"):
            self._denied.labels(reason)
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
        self.refused_by_limit = Counter(
            "blocklist_refused_by_limit", "Changes that a limit refused.", ["source"], registry=registry
        )
        self._stale = Counter(
            "blocklist_commits_stale",
            "Transactions that came second to another replica's; their commands were decided anew.",
            registry=registry,
        )
        self.compacted = Counter("blocklist_log_compacted_changes", "Changes dropped from the log.", registry=registry)
        push_seconds = Histogram("blocklist_push_seconds", "From a push to its answer.", registry=registry)
        pusher.on_duration = push_seconds.observe
        for source in Source:
            if source is not Source.TIME:
                self.refused_by_limit.labels(source.value)

    def show_evidence(self, book: EvidenceStore, made: Callable[[], int]) -> None:
        """Show what applications say, and how many blocks came of it."""
        self._registry.register(EvidenceMetrics(book, made, self._view.clock))

    def show_alerts(self, alerts: Collector) -> None:
        """Show what Alertmanager has posted."""
        self._registry.register(alerts)

    def show_waiting(self, waiting: Callable[[], int]) -> None:
        """Show how many commands wait."""
        self._registry.register(QueueMetrics(waiting))

    def observe_request(self, route: str, method: str, status: int, seconds: float) -> None:
        """A request came to a route (its template) and was answered so."""
        self._requests.labels(route, method, f"{status // 100}xx").observe(seconds)

    def count_denied(self, reason: str) -> None:
        """A request was refused for its credentials: `missing`, `invalid` or `forbidden`."""
        self._denied.labels(reason).inc()

    def count_lost_log_lines(self, lines: int) -> None:
        """So many lines of the log could not be written in time."""
        self._lost_log_lines.inc(lines)

    def count_refused(self, source: Source) -> None:
        """A limit refused a change that came this way."""
        self.refused_by_limit.labels(source.value).inc()

    def count_changes(self, changes: Sequence[Change]) -> None:
        """These changes were committed, in one transaction."""
        self.commit_changes.observe(len(changes))
        ways = Tally((change.type, change.source or Source.REQUEST) for change in changes)
        for way, number in ways.items():
            self._changes[way].inc(number)
        for change in changes if _EXPIRED in ways else ():
            if change.type is ChangeType.EXPIRED:
                self.expiry_lateness.observe(max(0, change.at - change.node.end) / 1000)

    def count_stale_commit(self) -> None:
        """A transaction came second."""
        self._stale.inc()

    def count_remote_changes(self, changes: Sequence[Change]) -> None:
        """These changes were found in the database."""
        self._remote_changes.inc(len(changes))

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self._registry)


class MeasuredStore:
    """The store as the handler's log, with each transaction measured."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self.tail = store.tail
        self.load = store.load
        self.renew_history = store.renew_history

    async def commit(self, changes: Sequence[Change], *, after: int, history: str) -> None:
        """See Store.commit."""
        try:
            with self._metrics.commit_seconds.time():
                await self._store.commit(changes, after=after, history=history)
        except StaleError:
            self._metrics.count_stale_commit()
            raise
