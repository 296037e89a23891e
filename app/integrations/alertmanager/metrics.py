"""What Prometheus is told of Alertmanager's posts."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from app.integrations.alertmanager.handler import AlertBlocker
from app.integrations.alertmanager.rules import AlertOutcome


class AlertmanagerMetrics(Collector):
    """Read off the counts when somebody scrapes."""

    def __init__(self, blocks: AlertBlocker) -> None:
        self._blocks = blocks

    def collect(self) -> Iterable[Metric]:
        alerts = CounterMetricFamily(
            "blocklist_alertmanager_alerts", "Alerts of posts, by what became of them.", labels=["outcome"]
        )
        for outcome in AlertOutcome:
            alerts.add_metric([outcome.value], self._blocks.alerts[outcome])
        yield alerts
        yield CounterMetricFamily("blocklist_alertmanager_posts", "Posts that were taken.", self._blocks.posts)
        yield CounterMetricFamily(
            "blocklist_alertmanager_truncated", "Alerts that Alertmanager left out of posts.", self._blocks.truncated
        )
