"""Reports the state of the application to the service, as a listener."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Final

from blocklist.client.credentials import BearerAuth
from blocklist.client.listener_session import ListenerSession
from blocklist.model.listener import ListenerRole, Registration
from blocklist.model.report import Report
from blocklist.spark.driver_bridge import DriverBridge, DriverError
from blocklist.spark.evidence_collector import EvidenceCollector
from blocklist.spark.heartbeat_report import make_report
from blocklist.spark.reconciler import AppliedState

log = logging.getLogger("blocklist.spark")

INTERVAL: Final = 1.0
"""Seconds between two reports of tasks on blocked hosts, and between two reports of evidence."""


class Reporter:
    """Registers the application as a JobMaster and reports. Used by the thread that uses the DriverBridge."""

    def __init__(
        self,
        bridge: DriverBridge,
        url: str,
        *,
        token: str | BearerAuth | None = None,
        evidence: bool = False,
        min_nodes: int = 0,
    ) -> None:
        """The session id is the application's attempt and the current time, so a later agent takes over.

        `evidence`: report Spark's own exclusions and speculations too. `min_nodes` above 0: report the nodes too.
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
        """Report a change of the applied state or of the executors at once, running tasks and evidence every second."""
        self._report_evidence()
        state, now = (applied, self._bridge.executor_changes()), time.monotonic()
        if state == self._last_reported and not (applied.node_ids and now >= self._next_report):
            return
        report = make_report(self._application, self._bridge.executors(), applied.node_ids, applied.refused)
        if not self._reports_nodes:
            report = replace(report, nodes=None)
        self._session.report(report, acked=applied.revision, history=applied.history)
        self._last_reported, self._next_report = state, now + INTERVAL

    def _report_evidence(self) -> None:
        now = time.monotonic()
        if self._evidence is None or now < self._next_evidence:
            return
        self._next_evidence = now + INTERVAL
        try:
            if not self._observing:
                self._bridge.start_observing()
            self._observing = True
            self._session.report(Report(evidence=self._evidence.update(self._bridge.observed(), now)))
        except DriverError:
            # Applying the list matters more: it must continue without evidence.
            log.exception("Cannot observe Spark's exclusions and speculations; no evidence is reported.")
            self._evidence = None
            self._session.report(Report(evidence={}))

    def close(self) -> None:
        """Deregister; gives up after a few seconds."""
        self._session.close()
