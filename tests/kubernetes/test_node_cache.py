"""NodeCache against a real API server: pages, a version that is too old; and an API server that is killed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from blocklist import BlocklistClient
from blocklist.managers.kubernetes import api_server
from blocklist.managers.kubernetes.api_server import ApiServer
from blocklist.managers.kubernetes.cluster_access import find_access
from blocklist.managers.kubernetes.nodes import NodeCache, list_nodes
from tests.integration.manager_process import acked_revision, pending_reason
from tests.integration.process import ServiceProcess, wait_until
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.kubelets import Kubelets
from tests.kubernetes.manager import KEY, is_blocked, manager_process

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


def test_an_outage_is_known_no_block_is_acknowledged_in_it_and_what_changed_meanwhile_is_read_after_it(
    tmp_path: Path,
    cache: NodeCache,
    cluster: Cluster,
    kubelets: Kubelets,
    fresh: ServiceProcess,
    client: BlocklistClient,
) -> None:
    """By the cache, and by a manager, whose former blocks become unknown.

    The last test of the folder: scheduler and controllers wait for half a minute before they connect again.
    """
    cache.start()
    with kubelets.nodes("away-66", "away-67"), manager_process(tmp_path, cluster, fresh):
        wait_until(lambda: cache.outage() is None and "away-66" in cache.nodes(), seconds=120)
        client.block("away-66", "Hot machine")
        wait_until(lambda: acked_revision(fresh, "kubernetes") == 1, seconds=120)
        wait_until(lambda: not pending_reason(fresh, "away-66"), seconds=120)
        cluster.kill_api_server()
        try:
            client.block("away-67", "Hot machine")
            wait_until(lambda: "It is unknown whether" in pending_reason(fresh, "away-66"), seconds=120)
            assert acked_revision(fresh, "kubernetes") == 1
            wait_until(lambda: cache.outage() is not None, seconds=120)
        finally:
            cluster.start_api_server()
        cluster.kubectl("cordon", "away-66")
        wait_until(lambda: cache.nodes()["away-66"].cordoned, seconds=120)
        assert cache.outage() is None
        wait_until(lambda: acked_revision(fresh, "kubernetes") == 2, seconds=120)
        wait_until(lambda: not pending_reason(fresh, "away-66"), seconds=120)
        assert is_blocked(kubelets.node("away-66"))
        assert is_blocked(kubelets.node("away-67"))
