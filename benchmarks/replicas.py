"""PostgreSQL compared with SQLite, several replicas with one, and the delay between replicas."""

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks import convergence, systems
from benchmarks.convergence import MERGE
from benchmarks.generator import Load, wrk_write
from benchmarks.harness import CORES, SERVER_CORE, Server, scratch
from benchmarks.rows import Row, Samples, Target, at_least, at_most, column
from benchmarks.sampling import rotate
from benchmarks.writes import BODY

SQLITE, POSTGRES = "SQLite", "PostgreSQL"
ONE, SEVERAL = "1 replica", {2: "2 replicas", 3: "3 replicas"}
WRITERS = 64
ROUNDS = 7

Servers = Mapping[str, list[Server]]


def run() -> list[Row]:
    """Return all rows on PostgreSQL."""
    systems.require("wrk")
    with scratch() as folder:
        return [*_databases(folder), *_several(folder)]


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


def _several(folder: Path) -> list[Row]:
    """PostgreSQL and all replicas use both cores, as does a single replica."""
    with ExitStack() as stack:
        start = _starter(stack, folder, CORES)
        servers = {ONE: start("one", 1)} | {name: start(f"of{count}-", count) for count, name in SEVERAL.items()}
        return [
            *_compared("distinct nodes", servers, body=BODY, ids=0),
            *_compared("one hot node", servers, body=MERGE, ids=1),
        ]


def _starter(stack: ExitStack, folder: Path, cores: Collection[int]) -> Callable[[str, int], list[Server]]:
    database = stack.enter_context(systems.postgres(cores=cores))

    def start(name: str, replicas: int) -> list[Server]:
        settings = {systems.DATABASE: database.create(name)}
        folders = [folder / f"{name}{one}" for one in range(replicas)]
        return [stack.enter_context(systems.service(own, settings, cores=cores)) for own in folders]

    return start


def _rows(name: str, servers: Servers, targets: list[Target], *, connections: int) -> list[Row]:
    """Measure changes per second, and their 99th percentile."""
    rate, p99, _, noise = _sample(servers, body=BODY, ids=0, connections=connections)
    return [
        Row(name=name, unit="PUTs/s", ours=POSTGRES, samples=rate, noise=noise, targets=targets),
        Row(name=f"{name}: 99th percentile", unit="ms", ours=POSTGRES, samples=p99, noise=noise),
    ]


def _compared(nodes: str, servers: Servers, *, body: str, ids: int) -> list[Row]:
    """Compare several replicas with one: changes per second, their 99th percentile, and the share refused."""
    rate, p99, refused, noise = _sample(servers, body=body, ids=ids, connections=WRITERS)
    rows = []
    for ours in SEVERAL.values():
        name, pair = f"{WRITERS} writers, {nodes}, {ours}", (ours, ONE)
        for what, unit, samples, targets in (
            ("", "PUTs/s", rate, [at_least(1, ONE)]),
            (": 99th percentile", "ms", p99, []),
            (": refused", "%", refused, [at_most(0)]),
        ):
            chosen = {contender: samples[contender] for contender in pair}
            rows.append(Row(name=name + what, unit=unit, ours=ours, samples=chosen, noise=noise, targets=targets))
    return rows


def _sample(servers: Servers, *, body: str, ids: int, connections: int) -> tuple[Samples, Samples, Samples, Samples]:
    """Rates, 99th percentiles, percentages of refused requests, and noise."""
    contenders: dict[str, Callable[[], Load]] = {
        contender: partial(_load, several, body=body, ids=ids, connections=connections)
        for contender, several in servers.items()
    }
    samples, noise = rotate(contenders, rounds=ROUNDS)
    rate, p99 = (column(samples, figure) for figure in range(2))
    refused = {name: [100 * load.refused / load.responses for load in taken] for name, taken in samples.items()}
    return rate, p99, refused, noise


def _load(servers: list[Server], *, body: str, ids: int, connections: int) -> Load:
    urls = [f"{server.url}/blocklist/nodes/worker-@" for server in servers]
    return wrk_write(*urls, method="PUT", body=body, connections=connections, ids=ids, refusals=True)
