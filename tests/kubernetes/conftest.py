"""One cluster for all tests of a run.

A test adds the nodes that it needs (`with kubelets.nodes("worker-17"): …`) under names that no other test has, and pins
its pods to them where others' nodes would do, too.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from blocklist import BlocklistClient
from tests.debian import MissingError
from tests.integration.conftest import databases, fresh, listener_client, listener_service, migrated, start
from tests.integration.process import ServiceProcess
from tests.kubernetes.cluster import Cluster, running_cluster
from tests.kubernetes.control_plane import require_control_plane
from tests.kubernetes.helm_program import Helm, operator_definitions
from tests.kubernetes.kubelets import Kubelets, running_kubelets

__all__ = ["databases", "fresh", "listener_client", "listener_service", "migrated", "start"]

_BUILD_SECONDS = 3600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test may have to build the control plane."""
    for item in [item for item in items if item.path.is_relative_to(Path(__file__).parent)][:1]:
        item.add_marker(pytest.mark.timeout(_BUILD_SECONDS))


def not_run(what: str, error: MissingError) -> BaseException:
    """What ends a test that cannot run here: with CI set, it fails."""
    if os.environ.get("CI"):
        return pytest.fail.Exception(f"{error}.")
    return pytest.skip.Exception(f"not run, {what}: {error}.")


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane without nodes."""
    try:
        program = require_control_plane()
    except MissingError as error:
        raise not_run("all tests on Kubernetes", error) from None
    with running_cluster(program, tmp_path_factory.mktemp("kubernetes")) as cluster:
        yield cluster


@pytest.fixture(scope="package")
def kubelets(cluster: Cluster) -> Iterator[Kubelets]:
    """The kubelets of the nodes that tests add."""
    with running_kubelets(cluster) as kubelets:
        yield kubelets


@pytest.fixture(scope="session")
def rendering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Helm]:
    """Helm without a cluster."""
    try:
        helm = Helm(tmp_path_factory.mktemp("helm"))
    except MissingError as error:
        raise not_run("all tests of the chart", error) from None
    yield helm
    helm.close()


@pytest.fixture(scope="package")
def helm(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Helm:
    """Helm as the administrator of the cluster."""
    return Helm(tmp_path_factory.mktemp("helm"), cluster)


@pytest.fixture(scope="package")
def operator(cluster: Cluster) -> None:
    """The resource definitions of the Prometheus operator."""
    files = [word for file in operator_definitions() for word in ("-f", str(file))]
    cluster.kubectl("apply", "--server-side", *files)
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=120s", *files)


@pytest.fixture
def client(fresh: ServiceProcess) -> Iterator[BlocklistClient]:
    with BlocklistClient(fresh.url) as client:
        yield client


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of the test's own, deleted with what is in it."""
    name = f"test-{secrets.token_hex(4)}"
    cluster.make_namespace(name)
    yield name
    with cluster.api() as api:
        api.delete(f"/api/v1/namespaces/{name}")
