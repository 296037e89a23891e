"""One cluster, one service process, and as few applications as possible: they take most of the time.

Files with `spark` in their names, which come last, use applications with other settings than the default ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import httpx
import pytest

from blocklist import PERMANENT, BlockAction, BlocklistClient
from blocklist.spark import BlocklistAgent
from demo.cluster import Cluster, session, wait_until
from tests.acceptance.jobs import used_hosts
from tests.class_archive import archive_option
from tests.integration.process import NO_TLS, ServiceProcess, migrated_service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

A, B = "127.0.0.2", "127.0.0.3"
C = "worker-c.example.test"
Body = dict[str, Any]
MARK, EVACUATE = BlockAction.MARK_BLOCKED, BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    """Two workers named by address and one by name."""
    hosts = {A: "127.0.0.2", B: "127.0.0.3", C: "127.0.0.4"}
    with Cluster(hosts, java_options=archive_option()) as started:
        yield started


class Applications:
    """The application on the cluster; it is replaced when a test needs other settings."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._spark: SparkSession | None = None
        self._settings: dict[str, object] = {}

    def get(self, **settings: object) -> SparkSession:
        """Return the application with these settings, with an executor on each host."""
        if self._spark is None or settings != self._settings:
            self.stop()
            spark = session(self._cluster, spark__python__task__killTimeout="200ms", **settings)
            self._spark, self._settings = spark, settings
            # A registered executor is not yet ready: the scheduler knows its host after the first offer.
            wait_until(lambda: used_hosts(spark, self._cluster) == set(self._cluster.hosts), 180, "a task on each host")
        return self._spark

    def stop(self) -> None:
        if self._spark is not None:
            self._spark.stop()
            self._spark = None


@pytest.fixture(scope="package")
def applications(cluster: Cluster) -> Iterator[Applications]:
    running = Applications(cluster)
    yield running
    running.stop()


@pytest.fixture
def spark(applications: Applications) -> SparkSession:
    """An application with default settings."""
    return applications.get()


@pytest.fixture(scope="package")
def service_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with migrated_service(tmp_path_factory.mktemp("service")) as process:
        yield process


@pytest.fixture
def service(service_process: ServiceProcess) -> Iterator[BlocklistClient]:
    """A client of the running service. The list is empty before and after the test."""
    with BlocklistClient(service_process.url, timeout=30) as client:
        yield client
        for node_id in client.snapshot().nodes:
            client.unblock(node_id)


class ListenerApi:
    """The service's view of listeners and TaskManagers."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def get(self, path: str) -> Body:
        answer = self.http.get(path)
        assert answer.status_code == 200, answer.text
        body: Body = answer.json()
        return body

    def by_id(self) -> dict[str, Body]:
        return {listener["id"]: listener for listener in self.get("/listeners")["listeners"]}

    def task_managers(self, node_id: str) -> list[str]:
        found: list[str] = self.get("/blocklist")[node_id]["taskManagers"]
        return found

    def status(self, node_id: str) -> Body:
        """Return the status of a node at the only listener."""
        (only,) = self.get(f"/blocklist/nodes/{node_id}/status")["listeners"]
        status: Body = only
        return status

    def running(self, node_id: str) -> list[int | None]:
        return [task_manager["runningTasks"] for task_manager in self.status(node_id)["taskManagers"]]


@pytest.fixture
def listeners(service: BlocklistClient, service_process: ServiceProcess) -> Iterator[ListenerApi]:
    with service_process.client() as http:
        yield ListenerApi(http)


@pytest.fixture
def evidence(service: BlocklistClient) -> Callable[[], list[Body]]:
    """Returns what GET /evidence lists."""

    def listed() -> list[Body]:
        found: list[Body] = httpx.get(f"{service.url}/evidence", trust_env=False, verify=NO_TLS).json()["evidence"]
        return found

    return listed


@pytest.fixture
def reason(evidence: Callable[[], list[Body]]) -> Callable[[str], str]:
    """Returns the reason that is reported for a host."""
    return lambda host: next((str(own["reason"]) for own in evidence() if own["node"] == host), "")


class StartAgent(Protocol):
    """Start an agent on an application; it is stopped after the test."""

    def __call__(self, spark: SparkSession, **options: Any) -> BlocklistAgent: ...


@pytest.fixture
def start_agent(service_process: ServiceProcess) -> Iterator[StartAgent]:
    agents: list[BlocklistAgent] = []

    def start(spark: SparkSession, **options: Any) -> BlocklistAgent:
        agents.append(BlocklistAgent.start(spark, **{"url": service_process.url, **options}))
        return agents[-1]

    yield start
    for agent in agents:
        agent.stop()


@pytest.fixture
def agent(spark: SparkSession, service: BlocklistClient, start_agent: StartAgent) -> BlocklistAgent:
    """A registered agent on the application with default settings."""
    started = start_agent(spark)
    await_registration(started)
    return started


BlockNode = Callable[..., None]


@pytest.fixture
def block(service: BlocklistClient, agent: BlocklistAgent) -> BlockNode:
    """Block a node and wait until Spark has applied it, or with `refused` until the agent has refused it."""

    def block(node_id: str, action: BlockAction = MARK, *, end: int = PERMANENT, refused: bool = False) -> None:
        service.block(node_id, "test", action=action, end=end, allow_merge=True)
        known = (lambda: node_id in agent.status().refused) if refused else (lambda: is_blocked(agent, node_id))
        wait_until(known, 90, f"{node_id} in {agent.status()}")

    return block


def await_registration(agent: BlocklistAgent) -> None:
    wait_until(lambda: agent.status().registered, 90, "the registration")


def is_blocked(agent: BlocklistAgent, node_id: str) -> bool:
    return node_id in agent.status().blocked.values()


def unblock(service: BlocklistClient, agent: BlocklistAgent, node_id: str) -> None:
    """Unblock a node and wait until Spark has applied it."""
    service.unblock(node_id)
    wait_until(lambda: not is_blocked(agent, node_id), 90, f"{node_id} to be free")
