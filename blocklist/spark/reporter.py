"""Tells the service how the application stands, as its listener."""

from __future__ import annotations

import logging
import time
from typing import Final

from blocklist.client.credentials import BearerAuth
from blocklist.client.listener_session import ListenerSession
from blocklist.model.listener import ListenerRole, Registration
from blocklist.spark.driver_bridge import DriverBridge, DriverError
from blocklist.spark.evidence_collector import EvidenceCollector
from blocklist.spark.heartbeat_report import make_report
from blocklist.spark.reconciler import AppliedState

log = logging.getLogger("blocklist.spark")

INTERVAL: Final = 1.0
"""Seconds between two looks how many tasks run on blocked hosts, and what Spark finds out about hosts."""


class Reporter:
    """Registers the application as a JobMaster and reports. `turn` belongs to the thread of the HealthTracker."""

    def __init__(
        self,
        bridge: DriverBridge,
        url: str,
        *,
        token: str | BearerAuth | None = None,
        evidence: bool = False,
        min_nodes: int = 0,
    ) -> None:
        """The session is the application's attempt and the moment of this start: a later start takes over.

        With `evidence` it also tells what Spark finds out about hosts by itself, with `min_nodes` on which it runs.
        """
        self._bridge = bridge
        self._application, attempt = bridge.application()
        session = f"{attempt or 0}-{time.time_ns() // 1_000_000}"
        registration = Registration(
            id=self._application, role=ListenerRole.JOB_MASTER, session=session, min_nodes=min_nodes
        )
        self._reports_nodes = min_nodes > 0
        self._session = ListenerSession(url, registration, token=token)
        self._last_reported: object = None
        self._next_report = self._next_evidence = 0.0
        self._evidence = EvidenceCollector() if evidence else None
        self._observing = False

    @property
    def registered(self) -> bool:
        return self._session.registered

    def report_if_changed(self, applied: AppliedState) -> None:
        """Report at once what was applied or refused and who came or went, each second what still runs and evidence."""
        self._report_evidence()
        moment, now = (applied, self._bridge.executor_changes()), time.monotonic()
        if moment == self._last_reported and not (applied.node_ids and now >= self._next_report):
            return
        report = make_report(self._application, self._bridge.executors(), applied.node_ids, applied.refused)
        self._session.report(
            acked=applied.revision,
            task_managers=report.task_managers,
            running_tasks=report.running_tasks,
            refused=report.refused,
            nodes=report.nodes if self._reports_nodes else None,
        )
        self._last_reported, self._next_report = moment, now + INTERVAL

    def _report_evidence(self) -> None:
        now = time.monotonic()
        if self._evidence is None or now < self._next_evidence:
            return
        self._next_evidence = now + INTERVAL
        try:
            if not self._observing:
                self._bridge.start_observing()
            self._observing = True
            self._session.report(evidence=self._evidence.update(self._bridge.observed(), now))
        except DriverError:
            # To obey the list matters more: nothing of it may stop because of this.
            log.exception("What Spark finds out about hosts is not reported.")
            self._evidence = None
            self._session.report(evidence={})

    def close(self) -> None:
        """Leave the service, if that takes no longer than a few seconds."""
        self._session.close()
