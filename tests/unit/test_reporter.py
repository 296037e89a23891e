"""The reporter goes on, whatever becomes of the evidence."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from blocklist.spark.driver_bridge import DriverError, HealthTracker
from blocklist.spark.evidence_collector import Seen, Sort
from blocklist.spark.heartbeat_report import Executor
from blocklist.spark.reconciler import Applied
from blocklist.spark.reporter import Reporter


class Driver:
    """A driver whose insides may be unknown."""

    def __init__(self, *, known: bool) -> None:
        self.known = known
        self.asked: list[str] = []

    def application(self) -> tuple[str, str | None]:
        return "app-1", None

    def moves(self) -> int:
        return 0

    def executors(self) -> list[Executor]:
        self.asked.append("executors")
        return []

    def witness(self) -> None:
        self.asked.append("witness")
        if not self.known:
            raise DriverError("This Spark has no such listener.")

    def seen(self) -> list[Seen]:
        self.asked.append("seen")
        return [Seen(sort=Sort.APPLICATION, host="a")]


@contextmanager
def reporter(driver: Driver, *, evidence: bool) -> Iterator[Reporter]:
    """It reports to a port where nobody listens."""
    made = Reporter(cast("HealthTracker", driver), "http://127.0.0.1:9", evidence=evidence)
    try:
        yield made
    finally:
        made.close()


def test_it_asks_for_evidence_once_a_second() -> None:
    driver = Driver(known=True)
    with reporter(driver, evidence=True) as it:
        it.turn(Applied(revision=1))
        it.turn(Applied(revision=2))
    assert driver.asked[:3] == ["witness", "seen", "executors"]
    assert driver.asked.count("witness") == 1


def test_it_does_not_ask_unless_it_is_told_to() -> None:
    driver = Driver(known=True)
    with reporter(driver, evidence=False) as it:
        it.turn(Applied(revision=1))
    assert driver.asked == ["executors"]


def test_a_driver_that_cannot_tell_is_asked_once_and_all_else_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    driver = Driver(known=False)
    with caplog.at_level(logging.ERROR), reporter(driver, evidence=True) as it:
        it.turn(Applied(revision=1))
        it.turn(Applied(revision=2))
    assert driver.asked == ["witness", "executors", "executors"]
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == [
        "What Spark finds out about hosts is not reported."
    ]
