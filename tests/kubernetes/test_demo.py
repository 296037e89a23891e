"""`make demo ON=kubernetes` shows pods that keep off a blocked node, and ends by itself."""

from __future__ import annotations

import pytest

from tests.demo_process import run_demo
from tests.kubernetes.cluster import Cluster

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]


def test_the_demo_shows_pods_that_leave_an_evacuated_node(cluster: Cluster) -> None:
    """The fixture has built the control plane; the demo starts one of its own."""
    _, evacuated = run_demo("demo.kubernetes", 3).split("worker-18 is evacuated: its pods are ended.\n")
    assert "worker-19 ■" in evacuated
    assert "Both are free again." in evacuated
