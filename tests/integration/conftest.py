"""A service for each worker where tests use their own node ids, and a fresh one where revisions or restarts matter."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import httpx
import pytest

from tests.integration.process import ServiceProcess, environment, run_app, url_of
from tests.integration.receiver import Receiver, receiving

numbers = count(1)

Start = Callable[..., ServiceProcess]


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database as `python -m app migrate` makes it, to be copied."""
    database = tmp_path_factory.mktemp("migrated") / "blocklist.db"
    done = run_app("migrate", env=environment(database_url=url_of(database)))
    assert done.returncode == 0, done.stderr
    return database


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Iterator[ServiceProcess]:
    """The service that most tests share; each uses node ids of its own."""
    process = ServiceProcess(tmp_path_factory.mktemp("service"))
    shutil.copy(migrated, process.database)
    with process:
        yield process


@pytest.fixture(scope="session")
def client(service: ServiceProcess) -> Iterator[httpx.Client]:
    with service.client() as client:
        yield client


@pytest.fixture(scope="session")
def listened(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Iterator[ServiceProcess]:
    """A service for tests with listeners, which asks quiet ones each second."""
    process = ServiceProcess(tmp_path_factory.mktemp("listened"), heartbeat="1s")
    shutil.copy(migrated, process.database)
    with process:
        yield process


@pytest.fixture
def desk(listened: ServiceProcess) -> Iterator[httpx.Client]:
    """A client of that service, where nobody listens and nothing is blocked; revisions go on from test to test."""
    with listened.client() as client:
        yield client
        for listener in client.get("/listeners").json()["listeners"]:
            client.delete(f"/listeners/{listener['id']}")
        for node_id in client.get("/blocklist").json():
            client.delete(f"/blocklist/nodes/{node_id}")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A callback that takes whatever it is told."""
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Iterator[Start]:
    """Starts services with a list of their own (or a copy of `database`), and stops them after the test."""
    with ExitStack() as stack:

        def start(database: Path = migrated, **settings: str) -> ServiceProcess:
            process = ServiceProcess(tmp_path_factory.mktemp("service"), **settings)
            shutil.copy(database, process.database)
            return stack.enter_context(process)

        yield start


@pytest.fixture
def fresh(start: Start) -> ServiceProcess:
    """A service with an empty list at revision 0."""
    return start()


@pytest.fixture
def fresh_client(fresh: ServiceProcess) -> Iterator[httpx.Client]:
    with fresh.client() as client:
        yield client


@pytest.fixture
def node_id() -> str:
    """A node id that no other test uses."""
    return f"node-{next(numbers)}"


@pytest.fixture
def node(node_id: str) -> str:
    """The path of a node that no other test uses."""
    return f"/blocklist/nodes/{node_id}"
