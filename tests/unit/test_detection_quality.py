"""Synthetic runs repeat, and each kind has its fault."""

from __future__ import annotations

import pytest

from benchmarks.detection_quality.faults import FAULTS
from benchmarks.detection_quality.irregularities import IRREGULARITIES
from benchmarks.detection_quality.runs import draw_run
from blocklist.detection.slowness import scale, student_quantile, student_tail


@pytest.mark.parametrize("kind", ["2 times slower", "no GPU", "uniform"])
def test_a_seed_gives_one_run(kind: str) -> None:
    run = draw_run(kind, 3)
    assert run.applications == draw_run(kind, 3).applications
    assert run.applications != draw_run(kind, 4).applications


def test_faulty_hosts_are_labelled_and_healthy_runs_have_none() -> None:
    assert all(draw_run(kind, 1).conditions.faulty for kind in FAULTS)
    assert not any(draw_run(kind, 1).conditions.faulty for kind in IRREGULARITIES)


@pytest.mark.parametrize(("t", "freedom", "tail"), [(2.228, 10, 0.025), (3.169, 10, 0.005), (6.211, 10, 5e-5)])
def test_the_tail_of_students_t(t: float, freedom: int, tail: float) -> None:
    assert student_tail(t, freedom) == pytest.approx(tail, rel=0.05)
    assert student_tail(-t, freedom) == pytest.approx(1 - tail, rel=0.05)
    assert student_quantile(tail, freedom) == pytest.approx(t, rel=0.01)


def test_half_of_the_values_may_be_wild() -> None:
    assert scale([1.0, 2.0, 3.0, 1e9, -1e9]) == pytest.approx(1.4826)
