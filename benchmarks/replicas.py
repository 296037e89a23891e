"""PostgreSQL compared with SQLite, two replicas with one, and the delay between replicas."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial

from benchmarks import convergence, systems
from benchmarks.convergence import MERGE
from benchmarks.generator import Load, wrk_write
from benchmarks.harness import Server, scratch
from benchmarks.rows import Row, Target, at_least, column
from benchmarks.sampling import rotate
from benchmarks.writes import BODY

SQLITE, POSTGRES, PAIR = "SQLite", "PostgreSQL", "PostgreSQL, 2 replicas"
WRITERS = 64
HOT = 10  # nodes that all writers change
ROUNDS = 7

Servers = Mapping[str, list[Server]]


def run() -> list[Row]:
    """PostgreSQL and all services share the server's core."""
    systems.require("wrk")
    with scratch() as folder, ExitStack() as stack:
        database = stack.enter_context(systems.postgres())

        def start(name: str, replicas: int) -> list[Server]:
            settings = {systems.DATABASE: database.create(name)}
            return [stack.enter_context(systems.service(folder / f"{name}{one}", settings)) for one in range(replicas)]

        servers = {POSTGRES: start("alone", 1), SQLITE: [stack.enter_context(systems.service(folder / "sqlite"))]}
        with_pair = {**servers, PAIR: start("pair", 2)}
        slower = [at_least(0.7, SQLITE)]
        return [
            *_rows("1 writer", servers, slower, connections=1),
            *_rows(f"{WRITERS} writers, distinct nodes", with_pair, slower, connections=WRITERS),
            *_rows(f"{WRITERS} writers, {HOT} hot nodes", with_pair, [], connections=WRITERS, hot=True),
            *convergence.rows(*start("short", 2)),
        ]


def _rows(name: str, servers: Servers, targets: list[Target], *, connections: int, hot: bool = False) -> list[Row]:
    """Measure changes per second, their 99th percentile, and the share refused because of conflicts."""
    contenders: dict[str, Callable[[], Load]] = {
        contender: partial(_load, several, connections, hot=hot) for contender, several in servers.items()
    }
    samples, noise = rotate(contenders, rounds=ROUNDS)
    rate, p99, responses, refused = (column(samples, figure) for figure in range(4))
    share = {
        contender: [100 * one / of for one, of in zip(refused[contender], responses[contender], strict=True)]
        for contender in servers
    }
    return [
        Row(name=name, unit="PUTs/s", ours=POSTGRES, samples=rate, noise=noise, targets=targets),
        Row(name=f"{name}: 99th percentile", unit="ms", ours=POSTGRES, samples=p99, noise=noise),
        *([Row(name=f"{name}: refused", unit="%", ours=POSTGRES, samples=share, noise=noise)] if hot else []),
    ]


def _load(servers: list[Server], connections: int, *, hot: bool) -> Load:
    urls = [f"{server.url}/blocklist/nodes/worker-@" for server in servers]
    return wrk_write(
        *urls,
        method="PUT",
        body=MERGE if hot else BODY,
        connections=connections,
        ids=HOT if hot else 0,
        refusals=True,
    )
