"""The cluster of the tests itself."""

from __future__ import annotations

import pytest

from tests.yarn.cluster import YarnCluster

pytestmark = pytest.mark.timeout(600)


def test_containers_start_and_a_node_that_was_stopped_comes_back(yarn: YarnCluster) -> None:
    rest = yarn.rest()
    for _ in range(3):
        rest.submit()
    yarn.wait(lambda: sum(rest.containers().values()) == 3)
    yarn.stop_node(yarn.nodes[2])
    # A ResourceManager shows it neither as running nor as stopped for a moment.
    yarn.wait(lambda: yarn.states().get(yarn.nodes[2]) in {"SHUTDOWN", "LOST"})
    yarn.start_node(yarn.nodes[2])
    yarn.wait_running()
