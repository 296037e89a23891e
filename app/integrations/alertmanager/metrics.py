"""Metrics of Alertmanager's posts."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from app.integrations.alertmanager.handler import AlertBlocker
from app.integrations.alertmanager.rules import AlertOutcome


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
