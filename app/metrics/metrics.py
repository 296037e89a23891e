"""Metrics for Prometheus. Most are read from the parts at a scrape (app.metrics.collectors), at no cost to requests."""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Final

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
from prometheus_client.registry import Collector

from app.logs.isolation import isolated
from app.notices.notifier import Result
from app.store.queries import StaleError
from blocklist import __version__
from blocklist.model.changes import Change, ChangeType, Source

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
        """A notice was sent to one target, or was not."""
        self._notices.labels(result.value).inc()

    def count_refused(self, source: Source) -> None:
        """A limit refused a change."""
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
        """Count changes that were read from the database."""
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
