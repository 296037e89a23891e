"""Tells the service how the application stands, as its listener."""

from __future__ import annotations

import logging
import time
from typing import Final

from blocklist.client.credentials import Bearer
from blocklist.client.listener_session import Membership
from blocklist.model.listener import Registration, Role
from blocklist.spark.driver_bridge import DriverError, HealthTracker
from blocklist.spark.evidence_collector import Findings
from blocklist.spark.heartbeat_report import make_report
from blocklist.spark.reconciler import Applied

log = logging.getLogger("blocklist.spark")

LOOK: Final = 1.0
"""Seconds between two looks how many tasks run on blocked hosts, and what Spark finds out about hosts."""


class Reporter:
    """Registers the application as a JobMaster and reports. `turn` belongs to the thread of the HealthTracker."""

    def __init__(
        self,
        tracker: HealthTracker,
        url: str,
        *,
        token: str | Bearer | None = None,
        evidence: bool = False,
        min_nodes: int = 0,
    ) -> None:
        """The session is the application's attempt and the moment of this start: a later start takes over.

        With `evidence` it also tells what Spark finds out about hosts by itself, with `min_nodes` on which it runs.
        """
        self._tracker = tracker
        self._application, attempt = tracker.application()
        session = f"{attempt or 0}-{time.time_ns() // 1_000_000}"
        registration = Registration(id=self._application, role=Role.JOB_MASTER, session=session, min_nodes=min_nodes)
        self._tells_nodes = min_nodes > 0
        self._membership = Membership(url, registration, token=token)
        self._told: object = None
        self._next_look = self._next_finding = 0.0
        self._findings = Findings() if evidence else None
        self._witnessing = False

    @property
    def registered(self) -> bool:
        return self._membership.registered

    def turn(self, applied: Applied) -> None:
        """Report at once what was applied or refused and who came or went, each second what still runs and evidence."""
        self._testify()
        moment, now = (applied, self._tracker.moves()), time.monotonic()
        if moment == self._told and not (applied.known_as and now >= self._next_look):
            return
        report = make_report(self._application, self._tracker.executors(), applied.known_as, applied.refused)
        self._membership.say(
            acked=applied.revision,
            task_managers=report.task_managers,
            running_tasks=report.running_tasks,
            refused=report.refused,
            nodes=report.nodes if self._tells_nodes else None,
        )
        self._told, self._next_look = moment, now + LOOK

    def _testify(self) -> None:
        now = time.monotonic()
        if self._findings is None or now < self._next_finding:
            return
        self._next_finding = now + LOOK
        try:
            if not self._witnessing:
                self._tracker.witness()
            self._witnessing = True
            self._membership.say(evidence=self._findings.turn(self._tracker.seen(), now))
        except DriverError:
            # To obey the list matters more: nothing of it may stop because of this.
            log.exception("What Spark finds out about hosts is not reported.")
            self._findings = None
            self._membership.say(evidence={})

    def close(self) -> None:
        """Leave the service, if that takes no longer than a few seconds."""
        self._membership.close()
