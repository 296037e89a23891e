"""Backoff: the delay before a retry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocklist.model.node import Backoff

BACKOFF = Backoff(initial=0.2, cap=10.0, floor=0.05)


@pytest.mark.parametrize(
    ("failures", "jitter", "retry_after", "seconds"),
    [
        (1, 0.0, None, 0.05),
        (1, 1.0, None, 0.2),
        (2, 1.0, None, 0.4),
        (6, 1.0, None, 6.4),
        (7, 1.0, None, 10.0),
        (1000, 1.0, None, 10.0),
        (1, 0.0, 3.0, 3.0),
        (1, 0.0, 60.0, 10.0),
    ],
)
def test_the_wait_doubles_up_to_the_cap(
    failures: int, jitter: float, retry_after: float | None, seconds: float
) -> None:
    assert BACKOFF.delay(failures, jitter, retry_after) == pytest.approx(seconds)


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_the_wait_is_never_below_the_floor_nor_above_the_cap(failures: int, jitter: float) -> None:
    assert 0.05 <= BACKOFF.delay(failures, jitter) <= 10.0


def test_a_delay_without_a_failure_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        BACKOFF.delay(0, 0.5)
