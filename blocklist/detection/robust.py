"""Robust statistics. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import erfc, log1p, sqrt
from statistics import median
from typing import Final

_NORMAL: Final = 1.4826
"""Standard deviations of a normal distribution per median absolute deviation."""


def scale(values: Sequence[float]) -> float:
    """Return the median absolute deviation as a standard deviation (Hampel 1974): half of the values may be wild."""
    centre = median(values)
    return _NORMAL * median(abs(value - centre) for value in values)


def student_tail(t: float, freedom: float) -> float:
    """Return the probability that Student's t with these degrees of freedom is at least `t`.

    Wallace (1959), Bounds on normal approximations to Student's and the chi-square distributions: within 5 % of the
    probability down to 1e-5 from five degrees of freedom on.
    """
    z = (8 * freedom + 1) / (8 * freedom + 3) * sqrt(freedom * log1p(t * t / freedom))
    tail = erfc(z / sqrt(2)) / 2
    return tail if t >= 0 else 1 - tail


def student_quantile(probability: float, freedom: float) -> float:
    """Return the t that is exceeded with this probability, at most a half. By bisection."""
    low, high = 0.0, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tail(middle, freedom) > probability else (low, middle)
    return high
