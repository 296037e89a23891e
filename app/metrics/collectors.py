"""What metrics are read off the parts of the service at the moment somebody scrapes them."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.engine.list_view import ListView
from app.listeners.directory import ListenerDirectory
from app.listeners.lag import lag_of
from app.listeners.writer import ListenerWriter
from app.push.pusher import Pusher
from app.watch.change_feed import ChangeFeed
from blocklist.model.evidence import EvidenceStore, FindingKind
from blocklist.model.listener import ListenerRole


class ListMetrics(Collector):
    """The list, its readers and its database."""

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
        yield GaugeMetricFamily(
            "blocklist_database_away_seconds", "Since it last took one, while it is away.", view.age() or 0
        )
        yield GaugeMetricFamily("blocklist_watches", "Open watch streams.", self._feed.open_watches)
        reads = CounterMetricFamily("blocklist_list_reads", "Answers to GET /blocklist.", labels=["path"])
        reads.add_metric(["fast"], view.fast_reads)
        reads.add_metric(["route"], view.route_reads)
        yield reads


class FastPathMetrics(Collector):
    """What uvicorn's protocol answers below the routes: counted there, by status, as whole numbers."""

    def __init__(self, view: ListView, puts: Mapping[int, int]) -> None:
        self._view = view
        self._puts = puts

    def collect(self) -> Iterable[Metric]:
        found = CounterMetricFamily(
            "blocklist_fast_requests",
            "Requests answered below the routes; their times are not measured.",
            labels=["route", "method", "status"],
        )
        # A 304 is one of them: which of the two it was is not worth a look.
        found.add_metric(["/blocklist", "GET", "2xx"], self._view.fast_reads)
        classes = Tally({"2xx": 0, "4xx": 0, "5xx": 0})
        for status, number in self._puts.items():
            classes[f"{status // 100}xx"] += number
        for status_class, number in sorted(classes.items()):
            found.add_metric(["/blocklist/nodes/{node_id}", "PUT", status_class], number)
        yield found


class QueueMetrics(Collector):
    """Commands that wait for the database."""

    def __init__(self, waiting: Callable[[], int]) -> None:
        self._waiting = waiting

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("blocklist_waiting_commands", "Commands that wait for a transaction.", self._waiting())


class ListenerMetrics(Collector):
    """The listeners, how far behind they are, and what was pushed to them."""

    def __init__(
        self, view: ListView, feed: ChangeFeed, directory: ListenerDirectory, keeper: ListenerWriter, pusher: Pusher
    ) -> None:
        self._view = view
        self._feed = feed
        self._roll = directory
        self._keeper = keeper
        self._pusher = pusher

    def collect(self) -> Iterable[Metric]:
        now = self._view.clock()
        count = Tally((entry.listener.role, entry.listener.is_live(now)) for entry in self._roll.entries)
        listeners = GaugeMetricFamily("blocklist_listeners", "Registered listeners.", labels=["role", "state"])
        for role in ListenerRole:
            for live, state in ((True, "live"), (False, "lapsed")):
                listeners.add_metric([role.value, state], count[role, live])
        yield listeners
        yield from self._lags(now)
        yield GaugeMetricFamily("blocklist_task_managers", "Known TaskManagers.", len(self._view.task_managers))
        yield CounterMetricFamily("blocklist_leases_lapsed", "Leases that have lapsed.", self._keeper.expired_leases)
        pushes = CounterMetricFamily("blocklist_pushes", "Pushes and heartbeats sent.", labels=["outcome"])
        pushes.add_metric(["taken"], self._pusher.sent)
        pushes.add_metric(["failed"], self._pusher.failed)
        yield pushes

    def _lags(self, now: int) -> Iterable[Metric]:
        live, revision = self._roll.live(), self._view.tracker.revision
        behind = max((revision - (entry.listener.acked or 0) for entry in live), default=0)
        yield GaugeMetricFamily(
            "blocklist_listener_lag_revisions", "Of the live listener that is furthest behind.", behind
        )
        late = max((lag_of(entry, self._feed, now) for entry in live), default=0)
        yield GaugeMetricFamily(
            "blocklist_listener_lag_seconds", "Since there has been something that the slowest must apply.", late / 1000
        )


class EvidenceMetrics(Collector):
    """What applications say of nodes, and how many blocks came of it."""

    def __init__(self, book: EvidenceStore, made: Callable[[], int], clock: Callable[[], int]) -> None:
        self._book = book
        self._made = made
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        count = Tally(
            (own.evidence.finding.kind, own.ignored_reason is None) for own in self._book.assess(self._clock())
        )
        evidence = GaugeMetricFamily(
            "blocklist_evidence", "What applications say of nodes.", labels=["kind", "believed"]
        )
        for kind in FindingKind:
            for believed in (True, False):
                evidence.add_metric([kind.value, str(believed).lower()], count[kind, believed])
        yield evidence
        yield CounterMetricFamily("blocklist_evidence_blocks", "Nodes blocked by evidence.", self._made())
