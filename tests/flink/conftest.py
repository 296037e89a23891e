"""One cluster and one service for all tests here; Flink's package may be missing: see package.py."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blocklist import BlocklistClient
from demo.java_home import java_home
from tests.flink.bridge_process import BridgeProcess, ServiceView
from tests.flink.cluster import SPECULATION, FlinkCluster, internal_tls
from tests.flink.compiling import compile_job
from tests.flink.package import FLINK_2, PackageMissingError, flink_lib
from tests.integration.process import ServiceProcess, migrated_service, wait_until

FindLib = Callable[[str], Path]


@pytest.fixture(scope="session")
def find_lib() -> FindLib:
    """The jars of a version of Flink. Without them tests are skipped; with CI in the environment they fail."""

    def find(version: str) -> Path:
        try:
            return flink_lib(version)
        except PackageMissingError as error:
            if "CI" in os.environ:
                pytest.fail(str(error))
            pytest.skip(f"NOT RUN: the tests of Flink. {error}")

    return find


@pytest.fixture(scope="session")
def java() -> Path:
    return java_home() / "bin" / "java"


@pytest.fixture(scope="session")
def job_jar(java: Path, find_lib: FindLib, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The jar of CountJob, for all versions."""
    return compile_job(java, find_lib(FLINK_2), tmp_path_factory.mktemp("job"))


@pytest.fixture(scope="package")
def cluster(java: Path, find_lib: FindLib, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlinkCluster]:
    """With TLS; those of other kinds are without."""
    folder = tmp_path_factory.mktemp("flink")
    settings = SPECULATION | internal_tls(java, folder)
    with FlinkCluster(java, find_lib(FLINK_2), folder / "cluster", settings) as started:
        yield started.start()


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with migrated_service(tmp_path_factory.mktemp("service")) as process:
        yield process


@pytest.fixture(scope="package")
def running_bridge(cluster: FlinkCluster, service: ServiceProcess) -> Iterator[BridgeProcess]:
    with BridgeProcess(cluster.folder, service.url, cluster) as bridge:
        yield bridge


@pytest.fixture
def client(service: ServiceProcess) -> Iterator[BlocklistClient]:
    """A client of the service. The list is empty after the test."""
    with BlocklistClient(service.url, timeout=30) as opened:
        yield opened
        for node_id in opened.snapshot().nodes:
            opened.unblock(node_id)


@pytest.fixture
def view(service: ServiceProcess) -> Iterator[ServiceView]:
    with service.client() as http:
        yield ServiceView(http)


@pytest.fixture
def bridge(running_bridge: BridgeProcess, cluster: FlinkCluster, client: BlocklistClient) -> BridgeProcess:
    """The running bridge, with an empty list and all TaskManagers free in Flink."""
    wait_until(lambda: not any(cluster.task_managers().values()), seconds=150)
    return running_bridge


@pytest.fixture
def submit(cluster: FlinkCluster, job_jar: Path, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Submits CountJob; what still runs after the test is cancelled."""
    jobs: list[str] = []

    def run(mode: str, numbers: int, micros: int, *options: str, parallelism: int = 4, second: int = 0) -> str:
        out = f"file://{tmp_path}/out"
        jobs.append(
            cluster.submit(job_jar, mode, numbers, micros, second, parallelism, out, f"{mode.lower()} count", *options)
        )
        return jobs[-1]

    yield run
    for job in jobs:
        cluster.cancel(job)
