"""One service for all applications of these tests; each test has its own namespace and nodes."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from blocklist import BlockAction
from tests.applications.conftest import Service, service, service_process
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.kubelets import Kubelets
from tests.kubernetes.spark.application import ROLE, Application, Spark, obeying
from tests.spark_versions import tested_spark

__all__ = ["service", "service_process"]

MARK, EVACUATE = BlockAction.MARK_BLOCKED, BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS
ACCOUNT: Final = "spark"


@pytest.fixture(scope="session")
def spark() -> Spark:
    return Spark.prepare(tested_spark())


class Pool:
    """Nodes that only the test's applications select: `nodes` are their names, `networks` those of their pods."""

    def __init__(self, kubelets: Kubelets) -> None:
        self.name = f"pool-{secrets.token_hex(3)}"
        self.nodes: list[str] = []
        self.networks: dict[str, str] = {}
        self._kubelets = kubelets

    def add(self, *, cpu: str = "2", name: str = "", hostname: str = "") -> str:
        """Add a node, on which so many executors of one core have room; its name."""
        name = name or f"{self.name.replace('pool', 'worker')}-{len(self.nodes) + 1}"
        labels = {"pool": self.name} | ({"kubernetes.io/hostname": hostname} if hostname else {})
        self._kubelets.add_node(name, cpu=cpu, labels=labels)
        [address] = [
            a["address"] for a in self._kubelets.node(name)["status"]["addresses"] if a["type"] == "InternalIP"
        ]
        self.networks[name] = address.removesuffix("1")
        self.nodes.append(name)
        return name

    def remove(self) -> None:
        for node in self.nodes:
            self._kubelets.delete_node(node)


@pytest.fixture
def pool(kubelets: Kubelets) -> Iterator[Pool]:
    made = Pool(kubelets)
    yield made
    made.remove()


@pytest.fixture
def account(cluster: Cluster, namespace: str) -> str:
    """The token of the ServiceAccount of the test's drivers."""
    return cluster.make_service_account(namespace, ACCOUNT, ROLE)


StartApplication = Callable[..., Application]


@pytest.fixture
def start(
    spark: Spark, kubelets: Kubelets, namespace: str, account: str, pool: Pool, service: Service, tmp_path: Path
) -> Iterator[StartApplication]:
    """Start an application that obeys the service. What still runs at the end of the test is killed."""
    with ExitStack() as stack:
        count = 0

        def started(
            *, cluster_mode: bool = False, token: str = "", driver_home: Path | None = None, **settings: object
        ) -> Application:
            nonlocal count
            count += 1
            application = Application(
                spark,
                kubelets,
                tmp_path / f"application-{count}",
                namespace=namespace,
                token=token or account,
                pool=pool.name,
                cluster_mode=cluster_mode,
                conf=obeying(service.url, **settings),
                driver_home=driver_home,
            )
            return stack.enter_context(application)

        yield started
