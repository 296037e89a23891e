"""`make demo ON=yarn` shows containers that keep off a blocked node, and ends by itself."""

from __future__ import annotations

import pytest

from tests.demo_process import run_demo

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]


@pytest.mark.usefixtures("yarn_jars")
def test_the_demo_shows_containers_that_leave_an_evacuated_node() -> None:
    """The fixture has fetched the jars; the demo starts a cluster of its own."""
    _, evacuated = run_demo("demo.yarn", 4).split("w2.yarn.test is evacuated: its containers are ended.\n")
    assert "w3.yarn.test ■" in evacuated
    assert "Both are free again." in evacuated
