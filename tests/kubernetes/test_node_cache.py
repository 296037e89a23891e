"""NodeCache against a real API server: pages, a version that is too old, an API server that is killed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from blocklist.managers.kubernetes import api_server
from blocklist.managers.kubernetes.api_server import ApiServer
from blocklist.managers.kubernetes.cluster_access import find_access
from blocklist.managers.kubernetes.nodes import NodeCache, list_nodes
from tests.integration.process import wait_until
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.kubelets import Kubelets
from tests.kubernetes.manager import KEY

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def api(cluster: Cluster) -> Iterator[ApiServer]:
    with ApiServer(find_access(cluster.admin_kubeconfig, None, Path("/none"), {})) as api:
        yield api


@pytest.fixture
def changed() -> threading.Event:
    return threading.Event()


@pytest.fixture
def cache(api: ApiServer, changed: threading.Event) -> Iterator[NodeCache]:
    """It is not started yet."""
    cache = NodeCache(api, KEY, changed.set)
    yield cache
    cache.close()


def test_all_pages_of_a_list_are_read(api: ApiServer, kubelets: Kubelets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server, "PAGE", 2)
    with kubelets.nodes("paged-11", "paged-12", "paged-13", "paged-14", "paged-15"):
        nodes, version = list_nodes(api, KEY)
        assert {f"paged-{number}" for number in range(11, 16)} <= nodes.keys()
        assert int(version) > 0


def test_a_version_that_is_too_old_is_listed_again(
    cache: NodeCache, kubelets: Kubelets, changed: threading.Event
) -> None:
    with kubelets.nodes("listed-21"):
        cache._nodes, cache._version = {}, "1"
        cache.start()
        wait_until(lambda: "listed-21" in cache.nodes(), seconds=120)
        assert cache.outage() is None
        changed.clear()
        with kubelets.nodes("listed-22"):
            wait_until(lambda: "listed-22" in cache.nodes(), seconds=120)
            assert changed.is_set()
        wait_until(lambda: "listed-22" not in cache.nodes(), seconds=120)


def test_an_outage_is_known_and_what_changed_meanwhile_is_read_after_it(
    cache: NodeCache, cluster: Cluster, kubelets: Kubelets
) -> None:
    cache.start()
    with kubelets.nodes("outage-23"):
        wait_until(lambda: cache.outage() is None and "outage-23" in cache.nodes(), seconds=120)
        cluster.kill_api_server()
        try:
            wait_until(lambda: cache.outage() is not None, seconds=120)
        finally:
            cluster.start_api_server()
        cluster.kubectl("cordon", "outage-23")
        wait_until(lambda: cache.nodes()["outage-23"].cordoned, seconds=120)
        assert cache.outage() is None
