"""Tells the service how the application stands, as its listener."""

from __future__ import annotations

import time
from typing import Final

from blocklist.listener import Registration, Role
from blocklist.membership import Membership
from blocklist.spark.health_tracker import HealthTracker
from blocklist.spark.report import make_report
from blocklist.spark.steering import Applied

LOOK: Final = 1.0
"""Seconds between two looks how many tasks run on blocked hosts."""


class Reporter:
    """Registers the application as a JobMaster and reports. `turn` belongs to the thread of the HealthTracker."""

    def __init__(self, tracker: HealthTracker, url: str) -> None:
        """The session is the application's attempt and the moment of this start: a later start takes over."""
        self._tracker = tracker
        self._application, attempt = tracker.application()
        session = f"{attempt or 0}-{time.time_ns() // 1_000_000}"
        registration = Registration(id=self._application, role=Role.JOB_MASTER, session=session)
        self._membership = Membership(url, registration)
        self._told: object = None
        self._next_look = 0.0

    @property
    def registered(self) -> bool:
        return self._membership.registered

    def turn(self, applied: Applied) -> None:
        """Report at once what was applied or refused and who came or went, and each second what still runs."""
        moment, now = (applied, self._tracker.moves()), time.monotonic()
        if moment == self._told and not (applied.known_as and now >= self._next_look):
            return
        report = make_report(self._application, self._tracker.executors(), applied.known_as, applied.refused)
        self._membership.say(
            acked=applied.revision,
            task_managers=report.task_managers,
            running_tasks=report.running_tasks,
            refused=report.refused,
        )
        self._told, self._next_look = moment, now + LOOK

    def close(self) -> None:
        """Leave the service, if that takes no longer than a few seconds."""
        self._membership.close()
