"""PostgreSQL compared with SQLite, several replicas with one, and the delay between replicas."""

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path

from benchmarks import convergence, systems
from benchmarks.convergence import MERGE
from benchmarks.cpu_shares import CpuShares
from benchmarks.generator import Load, wrk_write
from benchmarks.harness import CORES, SERVER_CORE, Server, scratch
from benchmarks.rows import Row, Samples, Target, at_least, at_most, column
from benchmarks.sampling import rotate
from benchmarks.writes import BODY

SQLITE, POSTGRES = "SQLite", "PostgreSQL"
ONE = "1 replica"
COUNTS = {1: ONE, 2: "2 replicas", 3: "3 replicas"}
WRITERS = 64
ROUNDS = 7
SHARE = 0.15
"""Of a core, for each replica: so PostgreSQL, the generator and three replicas do not compete for two cores."""
PERIOD = 10  # ms; with Kubernetes' 100 a replica would stand still for most of them

Servers = Mapping[str, list[Server]]
_Start = Callable[[str, int], list[Server]]


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
    """Replicas that have as much CPU each as a single one, and replicas that share the machine's two cores."""
    with ExitStack() as stack:
        start = _starter(stack, folder, CORES)
        shared = {name: start(f"shared{count}-", count) for count, name in COUNTS.items()}
        return [
            *_limited(stack, start),
            *_compared("two cores for all, distinct nodes", shared, [], body=BODY, ids=0),
            *_compared("two cores for all, one hot node", shared, [], body=MERGE, ids=1),
        ]


def _limited(stack: ExitStack, start: _Start) -> list[Row]:
    """Empty if this process may not make control groups."""
    names = [f"replica{one}of{count}" for count in COUNTS for one in range(count)]
    shares = CpuShares(names, None, period=PERIOD)
    try:
        shares.open()
    except OSError as error:
        print(f"replicas with CPU limits are not measured: that needs root and control groups ({error})", flush=True)
        return []
    stack.callback(shares.close)
    servers = {name: start(f"limited{count}-", count) for count, name in COUNTS.items()}
    for name, replica in zip(names, chain.from_iterable(servers.values()), strict=True):
        shares.join(name, replica.pid)
        shares.limit(name, SHARE)
    case, target = f"{SHARE:.0%} of a core each", [at_least(1, ONE)]
    return [
        *_compared(f"{case}, distinct nodes", servers, target, body=BODY, ids=0),
        *_compared(f"{case}, one hot node", servers, target, body=MERGE, ids=1),
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
    rate, p99, _, noise = _sample(servers, body=BODY, ids=0, connections=connections)
    return [
        Row(name=name, unit="PUTs/s", ours=POSTGRES, samples=rate, noise=noise, targets=targets),
        Row(name=f"{name}: 99th percentile", unit="ms", ours=POSTGRES, samples=p99, noise=noise),
    ]


def _compared(case: str, servers: Servers, targets: list[Target], *, body: str, ids: int) -> list[Row]:
    """Compare several replicas with one: changes per second, their 99th percentile, and the share refused."""
    rate, p99, refused, noise = _sample(servers, body=body, ids=ids, connections=WRITERS)
    rows = []
    for ours in (name for name in servers if name != ONE):
        name, pair = f"{case}, {ours}", (ours, ONE)
        for what, unit, samples, own_targets in (
            ("", "PUTs/s", rate, targets),
            (": 99th percentile", "ms", p99, []),
            (": refused", "%", refused, [at_most(0)]),
        ):
            chosen = {contender: samples[contender] for contender in pair}
            rows.append(Row(name=name + what, unit=unit, ours=ours, samples=chosen, noise=noise, targets=own_targets))
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
