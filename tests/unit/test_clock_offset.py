"""ClockOffset: what is certain of the difference between two clocks, and when it is logged."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from app.store.store import ClockOffset


@pytest.mark.parametrize(
    ("asked_at", "database_time", "answered_at", "seconds"),
    [
        (1000, 1005, 1010, 0.0),
        (61_000, 1000, 61_010, 60.0),
        (1000, 61_000, 1010, -59.99),
        (1000, 1500, 9000, 0.0),  # a pause of this process, or a slow answer
    ],
)
def test_the_offset_is_the_least_that_explains_the_times(
    asked_at: int, database_time: int, answered_at: int, seconds: float
) -> None:
    offset = ClockOffset(lambda: 0)
    offset.record(asked_at, database_time, answered_at)
    assert offset.seconds == pytest.approx(seconds)


def test_a_large_offset_is_logged_once_and_its_end_too() -> None:
    offset = ClockOffset(lambda: 0)
    with capture_logs() as lines:
        for ahead in (900, 1100, 5000, 900, 0):
            offset.record(ahead, 0, ahead)
    assert [(line["log_level"], line["seconds_ahead"]) for line in lines] == [("warning", 1.1), ("info", 0.9)]
