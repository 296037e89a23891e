"""PostgreSQL compared with SQLite, the delay between replicas, and replicas that change the list at the same time."""

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks import contention, convergence, systems
from benchmarks.generator import Load, wrk_write
from benchmarks.harness import SERVER_CORE, Server, scratch
from benchmarks.rows import Row, Target, at_least, column
from benchmarks.sampling import rotate
from benchmarks.writes import BODY

SQLITE, POSTGRES = "SQLite", "PostgreSQL"
WRITERS = 64
ROUNDS = 7

Servers = Mapping[str, list[Server]]
_Start = Callable[[str, int], list[Server]]


def run() -> list[Row]:
    """Return all rows on PostgreSQL."""
    systems.require("wrk")
    with scratch() as folder:
        return [*_databases(folder), *contention.rows(folder)]


def _databases(folder: Path) -> list[Row]:
    """PostgreSQL and the service share the server's core."""
    with ExitStack() as stack:
        start = _starter(stack, folder, (SERVER_CORE,))
        servers = {POSTGRES: start("alone", 1), SQLITE: [stack.enter_context(systems.service(folder / "sqlite"))]}
        slower = [at_least(0.7, SQLITE)]
        return [
            *_rows("1 writer", servers, slower, connections=1),
            *_rows(f"{WRITERS} writers", servers, slower, connections=WRITERS),
            *convergence.rows(*start("short", 2)),
        ]


def _starter(stack: ExitStack, folder: Path, cores: Collection[int]) -> _Start:
    database = stack.enter_context(systems.postgres(cores=cores))

    def start(name: str, replicas: int) -> list[Server]:
        settings = {systems.DATABASE: database.create(name)}
        folders = [folder / f"{name}{one}" for one in range(replicas)]
        return [stack.enter_context(systems.service(own, settings, cores=cores)) for own in folders]

    return start


def _rows(name: str, servers: Servers, targets: list[Target], *, connections: int) -> list[Row]:
    """Measure changes per second, and their 99th percentile."""
    contenders: dict[str, Callable[[], Load]] = {
        contender: partial(_load, several, connections) for contender, several in servers.items()
    }
    samples, noise = rotate(contenders, rounds=ROUNDS)
    rate, p99 = (column(samples, figure) for figure in range(2))
    return [
        Row(name=name, unit="PUTs/s", ours=POSTGRES, samples=rate, noise=noise, targets=targets),
        Row(name=f"{name}: 99th percentile", unit="ms", ours=POSTGRES, samples=p99, noise=noise),
    ]


def _load(servers: list[Server], connections: int) -> Load:
    urls = [f"{server.url}/blocklist/nodes/worker-@" for server in servers]
    return wrk_write(*urls, method="PUT", body=BODY, connections=connections, ids=0, refusals=True)
