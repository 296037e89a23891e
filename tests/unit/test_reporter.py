"""The reporter continues when evidence cannot be observed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from blocklist.spark.driver_bridge import DriverBridge, DriverError
from blocklist.spark.evidence_collector import Observation, ObservationKind
from blocklist.spark.heartbeat_report import Executor
from blocklist.spark.reconciler import AppliedState
from blocklist.spark.reporter import Reporter


class FakeDriver:
    """A driver whose internals may be unsupported."""

    def __init__(self, *, supported: bool) -> None:
        self.supported = supported
        self.calls: list[str] = []

    def application(self) -> tuple[str, str | None]:
        return "app-1", None

    def executor_changes(self) -> int:
        return 0

    def executors(self) -> list[Executor]:
        self.calls.append("executors")
        return []

    def start_observing(self) -> None:
        self.calls.append("start_observing")
        if not self.supported:
            raise DriverError("This Spark has no such listener.")

    def observed(self) -> list[Observation]:
        self.calls.append("observed")
        return [Observation(kind=ObservationKind.APPLICATION, host="a")]


@contextmanager
def reporter(driver: FakeDriver, *, evidence: bool) -> Iterator[Reporter]:
    """A reporter for a port on which nothing listens."""
    made = Reporter(cast("DriverBridge", driver), "http://127.0.0.1:9", evidence=evidence)
    try:
        yield made
    finally:
        made.close()


def test_observation_starts_once_and_is_polled_at_the_interval() -> None:
    driver = FakeDriver(supported=True)
    with reporter(driver, evidence=True) as it:
        it.report_if_changed(AppliedState(revision=1))
        it.report_if_changed(AppliedState(revision=2))
    assert driver.calls[:3] == ["start_observing", "observed", "executors"]
    assert driver.calls.count("start_observing") == 1


def test_without_report_evidence_nothing_is_observed() -> None:
    driver = FakeDriver(supported=True)
    with reporter(driver, evidence=False) as it:
        it.report_if_changed(AppliedState(revision=1))
    assert driver.calls == ["executors"]


def test_a_driver_without_support_is_tried_once_and_heartbeats_continue(caplog: pytest.LogCaptureFixture) -> None:
    driver = FakeDriver(supported=False)
    with caplog.at_level(logging.ERROR), reporter(driver, evidence=True) as it:
        it.report_if_changed(AppliedState(revision=1))
        it.report_if_changed(AppliedState(revision=2))
    assert driver.calls == ["start_observing", "executors", "executors"]
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == [
        "Cannot observe Spark's exclusions and speculations; no evidence is reported."
    ]
