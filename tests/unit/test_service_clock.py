"""The clock of the service, as a client of it knows it."""

from __future__ import annotations

from email.utils import formatdate

import pytest

from blocklist.client import transport
from blocklist.client.transport import ServiceClock

HOUR = 3_600_000


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """`ahead`: by how many milliseconds this machine's clock is set ahead."""
    settings = {"ahead": 0}
    right = transport._own_now
    monkeypatch.setattr(transport, "_own_now", lambda: right() + settings["ahead"])
    return settings


def received() -> ServiceClock:
    """The clock after a response that has just come."""
    found = ServiceClock()
    found.on_date(formatdate(usegmt=True))
    return found


def test_a_clock_that_is_set_after_the_response_does_not_move_the_time_of_the_service(own: dict[str, int]) -> None:
    found, before = received(), transport._own_now()
    assert found.ahead() == 0
    own["ahead"] = HOUR
    assert abs(found.now() - before) < HOUR / 2
    assert abs(found.ahead() + HOUR) < HOUR / 2


def test_a_small_difference_counts_as_none(own: dict[str, int]) -> None:
    found = received()
    own["ahead"] = 1_000
    assert found.ahead() == 0


def test_without_a_response_the_clock_is_that_of_the_machine(own: dict[str, int]) -> None:
    own["ahead"] = HOUR
    assert (ServiceClock().ahead(), abs(ServiceClock().now() - transport._own_now()) < 60_000) == (0, True)
