"""One service per worker, where tests use their own node ids; a fresh one where revisions or restarts matter.

The database is a SQLite file. Tests marked with `databases("sqlite", "postgresql")` run once on each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.integration.command import Command, install
from tests.integration.databases import Databases, PostgresDatabases, SqliteFiles
from tests.integration.in_process import InProcessService, ManualClock, RunningClock, in_process
from tests.integration.nginx import nginx_before
from tests.integration.process import ServiceProcess, environment, free_port, run_app, url_of, wait_until
from tests.integration.receiver import Receiver, receiving
from tests.integration.replicas import Replicas, running_replicas
from tests.integration.secured import SecuredInProcess, secured_in_process
from tests.pgbouncer import pgbouncer
from tests.postgres import PostgresServer

numbers = count(1)

Start = Callable[..., ServiceProcess]
StartInProcess = Callable[..., InProcessService]
StartReplicas = Callable[..., Replicas]
SERVERS: Final = {
    "postgresql": "postgres_databases",
    "pgbouncer-transaction": "pooled_by_transaction",
    "pgbouncer-session": "pooled_by_session",
}
"""The fixture of each other kind of database than SQLite."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Without a marker it is SQLite."""
    if "databases" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("databases")
        kinds, ids = (marker.args, None) if marker else (("sqlite",), [pytest.HIDDEN_PARAM])
        metafunc.parametrize("databases", kinds, ids=ids, indirect=True, scope="session")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests by database: at each change to another kind, the services that tests share start anew."""
    kinds = {place: kind for place, item in enumerate(items) if (kind := _database(item))}
    for place, item in zip(kinds, [items[place] for place in sorted(kinds, key=kinds.__getitem__)], strict=True):
        items[place] = item


def _database(item: pytest.Item) -> str | None:
    """The kind of database of a test; None if it uses none of these."""
    callspec = getattr(item, "callspec", None)
    return callspec and callspec.params.get("databases")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The server that most tests of a worker share, each with its own databases."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def empty_database(postgres: PostgresServer, tmp_path: Path) -> Iterator[str]:
    """The name of an empty PostgreSQL database."""
    postgres.create(tmp_path.name)
    yield tmp_path.name
    postgres.drop(tmp_path.name)


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database as `python -m app migrate` makes it, to be copied."""
    database = tmp_path_factory.mktemp("migrated") / "blocklist.db"
    done = run_app("migrate", env=environment(database_url=url_of(database)))
    assert done.returncode == 0, done.stderr
    return database


@pytest.fixture(scope="session")
def postgres_databases(postgres: PostgresServer) -> PostgresDatabases:
    return PostgresDatabases(postgres)


@pytest.fixture(scope="session")
def pooled_by_transaction(postgres: PostgresServer) -> Iterator[PostgresDatabases]:
    # What docs/replicas.md calls enough for two replicas.
    with pgbouncer(postgres, "transaction", pool_size=4) as port:
        yield PostgresDatabases(postgres, port=port)


@pytest.fixture(scope="session")
def pooled_by_session(postgres: PostgresServer) -> Iterator[PostgresDatabases]:
    with pgbouncer(postgres, "session", pool_size=14) as port:
        yield PostgresDatabases(postgres, port=port)


@pytest.fixture(scope="session")
def databases(request: pytest.FixtureRequest) -> Databases:
    """The databases of the services of a test."""
    kind = getattr(request, "param", "sqlite")
    if kind == "sqlite":
        return SqliteFiles(request.getfixturevalue("migrated"))
    found: Databases = request.getfixturevalue(SERVERS[kind])
    return found


@pytest.fixture
def database_url(databases: Databases, tmp_path: Path) -> Iterator[str]:
    """An empty database."""
    yield databases.url_for(tmp_path)
    databases.drop(tmp_path)


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[ServiceProcess]:
    """The service that most tests share, each with its own node ids."""
    folder = tmp_path_factory.mktemp("service")
    with ServiceProcess(folder, **databases.settings(folder)) as process:
        yield process


@pytest.fixture(scope="session")
def client(service: ServiceProcess) -> Iterator[httpx.Client]:
    with service.client() as client:
        yield client


@pytest.fixture(scope="session")
def listener_service(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[ServiceProcess]:
    """A service for tests with listeners; it sends empty pushes every second."""
    folder = tmp_path_factory.mktemp("listener_service")
    with ServiceProcess(folder, **databases.settings(folder), heartbeat="1s") as process:
        yield process


@pytest.fixture
def listener_client(listener_service: ServiceProcess) -> Iterator[httpx.Client]:
    """A client of that service, without listeners or blocked nodes; revisions continue from test to test."""
    with listener_service.client() as client:
        yield client
        for listener in client.get("/listeners").json()["listeners"]:
            client.delete(f"/listeners/{listener['id']}")
        for node_id in client.get("/blocklist").json():
            client.delete(f"/blocklist/nodes/{node_id}")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[SecuredInProcess]:
    """A service with authentication, for the tests of one file."""
    with secured_in_process(tmp_path_factory.mktemp("secured"), databases) as secured:
        yield secured


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A callback that acknowledges every push."""
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[Start]:
    """Starts services with an empty list (or that of a `folder`), and stops them after the test."""
    with ExitStack() as stack:

        def start(folder: Path | None = None, **settings: Any) -> ServiceProcess:
            own = folder or tmp_path_factory.mktemp("service")
            if folder is None:
                stack.callback(databases.drop, own)
            return stack.enter_context(ServiceProcess(own, **databases.settings(own), **settings))

        yield start


@pytest.fixture
def start_in_process(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[StartInProcess]:
    """Starts services in this process, with an empty list (or that of a `folder`); see `in_process`."""
    with ExitStack() as stack:

        def start(folder: Path | None = None, *, clock: ManualClock | None = None, **settings: str) -> InProcessService:
            own = folder or tmp_path_factory.mktemp("service")
            if folder is None:
                stack.callback(databases.drop, own)
            return stack.enter_context(in_process(clock, **databases.settings(own), **settings))

        yield start


@pytest.fixture
def timed(start_in_process: StartInProcess) -> InProcessService:
    """A fresh service for tests with listeners whose time they advance; it sends empty pushes every second."""
    return start_in_process(clock=RunningClock(), heartbeat="1s")


@pytest.fixture(scope="session")
def replicas(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[Replicas]:
    """Two replicas that most tests share, each with its own node ids."""
    folder = tmp_path_factory.mktemp("replicas")
    with running_replicas(folder, 2, **databases.settings(folder), heartbeat="1s") as replicas:
        yield replicas


@pytest.fixture
def client_a(replicas: Replicas) -> Iterator[httpx.Client]:
    """A client of the first of them. All listeners are removed after the test."""
    client = replicas.clients[0]
    yield client
    for listener in client.get("/listeners").json()["listeners"]:
        client.delete(f"/listeners/{listener['id']}")
    for client in replicas.clients:
        wait_until(lambda client=client: client.get("/listeners").json() == {"listeners": []})  # type: ignore[misc]


@pytest.fixture
def client_b(replicas: Replicas) -> httpx.Client:
    """A client of the second one."""
    return replicas.clients[1]


@pytest.fixture(scope="session")
def restartable_replicas(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[Replicas]:
    """Two replicas that tests kill, stop and start again. They trust a proxy on this machine.

    JobMasters wait for ResourceManagers longer than any test runs; a slow database is not an outage.
    """
    folder = tmp_path_factory.mktemp("restartable_replicas")
    settings = {"heartbeat": "1s", "trusted_proxies": "127.0.0.1/32"}
    settings |= {"max_waits_per_client": "20"} | databases.settings(folder)
    constants = {"app.listeners.push.MAX_WAIT_SECONDS": 600.0}
    with running_replicas(folder, 2, constants=constants, **settings) as replicas:
        yield replicas


@pytest.fixture(scope="session")
def nginx_url(tmp_path_factory: pytest.TempPathFactory, restartable_replicas: Replicas) -> Iterator[str]:
    """The URL of nginx in front of those replicas."""
    with nginx_before(tmp_path_factory.mktemp("nginx"), restartable_replicas.processes) as url:
        yield url


@pytest.fixture
def start_replicas(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[StartReplicas]:
    """Starts replicas with an empty list, and stops them after the test."""
    with ExitStack() as stack:

        def start(number: int = 2, **settings: Any) -> Replicas:
            folder = tmp_path_factory.mktemp("replicas")
            stack.callback(databases.drop, folder)
            return stack.enter_context(running_replicas(folder, number, **databases.settings(folder), **settings))

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


@pytest.fixture(scope="session")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the command is installed."""
    return install(tmp_path_factory.mktemp("command"))


@pytest.fixture
def command(binaries: Path, service: ServiceProcess) -> Command:
    """The command, set up for the shared service."""
    return Command(binaries, service.url)


@pytest.fixture
def configured(binaries: Path, service: ServiceProcess, tmp_path: Path) -> Command:
    """Two contexts and no BLOCKLIST_URL: the service is `lab`, the current one; nothing listens at `prod`."""
    command = Command(binaries, service.url)
    command.env["XDG_CONFIG_HOME"] = str(tmp_path)
    del command.env["BLOCKLIST_URL"]
    command.stdout_of("config", "set", "lab", "url", service.url)
    command.stdout_of("config", "set", "prod", "url", f"http://127.0.0.1:{free_port()}")
    return command
