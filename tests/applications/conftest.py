"""One cluster and one service for all applications."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from blocklist import BlockAction
from demo.cluster import Cluster
from tests.applications.application import JAR, Application, Installation, Kind, obeying
from tests.applications.compiling import compile_applications
from tests.class_archive import archive_option
from tests.integration.bodies import current_list
from tests.integration.process import ServiceProcess, migrated_service, wait_until
from tests.spark_versions import SPARK_HOME, tested_spark

A, B, C = HOSTS = ("127.0.0.31", "127.0.0.32", "127.0.0.33")
MARK, EVACUATE = BlockAction.MARK_BLOCKED, BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS


@pytest.fixture(scope="session")
def spark() -> Installation:
    home = tested_spark()
    assert JAR.exists(), f"{JAR} is missing"
    return Installation(home=home, applications=compile_applications(home))


@pytest.fixture(scope="package")
def cluster(spark: Installation) -> Iterator[Cluster]:
    """Three workers; each has room for an executor and for a driver in cluster mode."""
    with Cluster(HOSTS, cores=3, memory="2g", home=spark.home, java_options=archive_option(spark.home)) as started:
        yield started


class Service:
    """The service, with the operations of the tests. Every change waits until the application has applied it."""

    def __init__(self, process: ServiceProcess) -> None:
        self.process = process
        self.client = process.client()

    @property
    def url(self) -> str:
        return self.process.url

    def put(self, *hosts: str, action: BlockAction = MARK) -> None:
        """Block hosts, with or without an application."""
        body = {"action": action.name, "cause": "test", "allowMerge": True}
        answer = self.client.put("/blocklist/nodes", json=dict.fromkeys(hosts, body))
        assert answer.status_code == 200, answer.text

    def block(self, host: str, action: BlockAction = MARK) -> None:
        """Block a host; return when the application has acknowledged it."""
        body = {"action": action.name, "cause": "test", "allowMerge": True}
        self._applied(self.client.put(f"/blocklist/nodes/{host}", json=body, headers={"Prefer": "wait=30"}))

    def unblock(self, host: str) -> None:
        """Free a host; return when the application has acknowledged it."""
        self._applied(self.client.delete(f"/blocklist/nodes/{host}", headers={"Prefer": "wait=30"}))

    def refused(self, host: str) -> str:
        """The application's reason not to carry out the block of a host; empty if it does, or is not registered."""
        listeners = self.client.get(f"/blocklist/nodes/{host}/status").json()["listeners"]
        return next((str(listener["refused"]) for listener in listeners if listener["refused"]), "")

    def is_applied(self, host: str) -> bool:
        """Whether the one registered application has acknowledged the last change of a host."""
        status = self.client.get(f"/blocklist/nodes/{host}/status").json()
        return bool(status["applied"] == status["of"] == 1)

    def listeners(self) -> list[str]:
        """The ids of the registered applications."""
        found = self.client.get("/listeners").json()["listeners"]
        return [listener["id"] for listener in found if listener["state"] == "live"]

    def agents(self) -> dict[str, str]:
        """For each job that is known, by its name and user: whether it has an agent."""
        jobs = self.client.get("/jobs").raise_for_status().json()["jobs"]
        return {job["description"] or job["id"]: job["agent"] for job in jobs}

    def await_listener(self) -> None:
        wait_until(lambda: len(self.listeners()) == 1)

    def evidence(self) -> dict[str, str]:
        """The nodes that applications report, to the reasons."""
        return {own["node"]: own["reason"] for own in self.client.get("/evidence").json()["evidence"]}

    def clear(self) -> None:
        """Free all nodes and remove all listeners."""
        for listener in self.listeners():
            self.client.delete(f"/listeners/{listener}")
        for node in current_list(self.client)[1]:
            self.client.delete(f"/blocklist/nodes/{node}")

    @staticmethod
    def _applied(answer: httpx.Response) -> None:
        assert answer.is_success, answer.text
        found = {name: value for name, value in answer.headers.items() if name.startswith("blocklist-")}
        assert found.get("blocklist-applied") == "1/1", found


@pytest.fixture(scope="package")
def service_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with migrated_service(tmp_path_factory.mktemp("service")) as process:
        yield process


@pytest.fixture
def service(service_process: ServiceProcess) -> Iterator[Service]:
    """The running service; its list and its listeners are removed before the test."""
    found = Service(service_process)
    with found.client:
        found.clear()
        yield found


StartApplication = Callable[..., Application]


@pytest.fixture
def start(spark: Installation, cluster: Cluster, service: Service, tmp_path: Path) -> Iterator[StartApplication]:
    """Start an application of a kind; what still runs is killed. `home` is the launcher's Spark."""
    with ExitStack() as stack:
        count = 0

        def started(kind: Kind, *, url: str | None = None, home: Path | None = None, **settings: object) -> Application:
            nonlocal count
            if kind.needs and not spark.has(kind.needs):
                # Only Spark 3.5: its PyPI package has no Connect server.
                assert os.environ.get(SPARK_HOME), f"{kind.needs}*.jar is missing"
                pytest.skip(f"NOT RUN: {kind.name}, because this Spark has no {kind.needs}*.jar")
            count += 1
            conf = obeying(service.url if url is None else url, **settings)
            own = replace(spark, home=home or spark.home)
            return stack.enter_context(Application(kind, own, cluster, tmp_path / f"{kind.name}-{count}", conf))

        yield started
