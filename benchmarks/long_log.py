"""A change log with a million changes compared with a short one, a million claims, and reads during compaction."""

import json
import shutil
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

from benchmarks import systems
from benchmarks.harness import fetch, scratch, unless_quick
from benchmarks.latency import run_get_latencies
from benchmarks.request_cost import cost
from benchmarks.rows import Row, at_least, at_most, column
from benchmarks.sampling import megabytes, rotate

NODES = 1000
CHANGES = unless_quick(1_000_000, 100_000)
LONG, SHORT = f"{CHANGES:,} changes", f"{NODES:,} changes"
OWNERS = 5  # of claims on each node
CLAIMS = unless_quick(1_000_000, 20_000)
ALL_CLAIMS = f"{CLAIMS:,} claims"
COMPACTING, IDLE = "during compaction", "no compaction"
ROUNDS = 7
COMPACTIONS = 4
SECONDS = unless_quick(10.0, 2.0)  # of a sample; the compaction takes longer than all samples together
RATE = 200  # GETs per second


class Start(NamedTuple):
    """Start-up time (ms), memory afterwards (MB), GETs per second, and µs of CPU for each."""

    took: float
    memory: float
    rate: float
    cpu: float


class ClaimTimes(NamedTuple):
    """Start-up time (ms), memory afterwards (MB), and times of a GET of a page and of a PUT (ms)."""

    took: float
    memory: float
    page: float
    put: float


class Pause(NamedTuple):
    """99th percentile and maximum of GETs (ms), and changes compacted per second."""

    p99: float
    worst: float
    dropped: float


def run() -> list[Row]:
    """The service itself fills the log."""
    systems.require("wrk")
    with scratch() as folder:
        long, short = folder / "long", folder / "short"
        for database, changes in ((short, NODES), (long, CHANGES)):
            _fill_log(database, changes)
        return [*_starts(long, short), *_pauses(long), *_claims(folder / "claims")]


def _fill_log(folder: Path, changes: int) -> None:
    """Each request merges a later end into every node: many changes, a constant number of nodes."""
    with systems.service(folder) as server:
        for number in range(changes // NODES):
            body = {"action": "MARK_BLOCKED", "cause": "lost 3 partitions", "endTimestamp": 4_102_444_800_000 + number}
            several = {f"worker-{node:05d}": {**body, "allowMerge": True} for node in range(NODES)}
            _expect_ok(fetch(server.port, "/blocklist/nodes", method="PUT", body=json.dumps(several)))


def _starts(long: Path, short: Path) -> list[Row]:
    contenders: dict[str, Callable[[], Start]] = {LONG: partial(_start, long), SHORT: partial(_start, short)}
    samples, noise = rotate(contenders, rounds=ROUNDS)
    took, memory, rate, cpu = (column(samples, figure) for figure in range(4))
    same = [at_most(1.1, SHORT)]
    name = f"GET of {NODES:,} nodes"
    return [
        Row(name="start-up time", unit="ms", ours=LONG, samples=took, noise=noise, targets=same),
        Row(name="memory after start-up", unit="MB", ours=LONG, samples=memory, noise=noise, targets=same),
        Row(name=name, unit="requests/s", ours=LONG, samples=rate, noise=noise, targets=[at_least(0.9, SHORT)]),
        Row(name=name, unit="µs of CPU", ours=LONG, samples=cpu, noise=noise, targets=same),
    ]


def _start(folder: Path) -> Start:
    started = time.perf_counter()
    with systems.serving(folder) as server:
        took = (time.perf_counter() - started) * 1000
        fetch(server.port, "/blocklist")
        memory = megabytes(server.pid)
        return Start(took, memory, *cost(server, "/blocklist"))


def _pauses(long: Path) -> list[Row]:
    """The log shrinks from sample to sample and is never completely compacted; the idle service has a copy."""
    copy = long.with_name("copy")
    shutil.copytree(long, copy)
    contenders: dict[str, Callable[[], Pause]] = {
        COMPACTING: partial(_pause, long, compacting=True),
        IDLE: partial(_pause, copy, compacting=False),
    }
    samples, noise = rotate(contenders, rounds=COMPACTIONS)
    p99, worst, dropped = (column(samples, figure) for figure in range(3))
    name = f"GET of {NODES:,} nodes, {RATE}/s"
    as_at_rest, unnoticed = [at_most(1.5, IDLE)], [at_most(50)]
    return [
        Row(name=f"{name}: 99th percentile", unit="ms", ours=COMPACTING, samples=p99, noise=noise, targets=as_at_rest),
        Row(name=f"{name}: maximum", unit="ms", ours=COMPACTING, samples=worst, noise=noise, targets=unnoticed),
        Row(name="compaction rate", unit="changes/s", ours=COMPACTING, samples={COMPACTING: dropped[COMPACTING]}),
    ]


def _pause(folder: Path, *, compacting: bool) -> Pause:
    with systems.serving(folder, {"BLOCKLIST_LOG_MAX_CHANGES": "1000"} if compacting else {}) as server:
        before = _oldest(server.port)
        times = run_get_latencies(server, seconds=SECONDS, rate=RATE)
        after = _oldest(server.port)
    if compacting and after > CHANGES - 2 * NODES:
        raise RuntimeError("the compaction ended before the sample")
    return Pause(p99=quantiles(times, n=100)[-1], worst=max(times), dropped=(after - before) / SECONDS)


def _oldest(port: int) -> int:
    """Return the first revision that is still in the log."""
    status, _, response = fetch(port, "/blocklist/changes?since=0&limit=1")
    problem = json.loads(response)
    return int(problem["oldest"]) if status == 410 else 1


def _claims(folder: Path) -> list[Row]:
    """Each of the owners claims every node: how long it takes to read them all, and one page of one owner's."""
    with systems.service(folder) as server:
        for owner in range(OWNERS):
            _claim_all(server.port, f"alertmanager/{owner:08x}")
    samples, noise = rotate({ALL_CLAIMS: partial(_read_claims, folder)}, rounds=COMPACTIONS)
    took, memory, page, first = (column(samples, figure) for figure in range(4))
    return [
        Row(name="start-up time", unit="ms", ours=ALL_CLAIMS, samples=took, noise=noise),
        Row(name="memory after start-up", unit="MB", ours=ALL_CLAIMS, samples=memory),
        Row(name="claims of one owner, the last of the pages", unit="ms", ours=ALL_CLAIMS, samples=page),
        Row(name="PUT of a claim", unit="ms", ours=ALL_CLAIMS, samples=first),
    ]


def _claim_all(port: int, owner: str) -> None:
    nodes = CLAIMS // OWNERS
    body = {"action": "MARK_BLOCKED", "cause": f"alert {owner[-8:]}", "endTimestamp": 4_102_444_800_000}
    for begin in range(0, nodes, NODES):
        several = {f"worker-{node:06d}": body for node in range(begin, min(begin + NODES, nodes))}
        _expect_ok(fetch(port, f"/claims/{owner}", method="PUT", body=json.dumps(several)))


def _read_claims(folder: Path) -> ClaimTimes:
    started = time.perf_counter()
    with systems.serving(folder) as server:
        took = _milliseconds_since(started)
        memory = megabytes(server.pid)
        started = time.perf_counter()
        owner, last = "alertmanager/00000001", f"worker-{CLAIMS // OWNERS - 101:06d}"
        _expect_ok(fetch(server.port, f"/claims?owner={owner}&after={last}"))
        page = _milliseconds_since(started)
        started = time.perf_counter()
        body = {"action": "MARK_BLOCKED", "cause": f"again at {time.time_ns()}"}
        path = "/blocklist/nodes/worker-000000/claims/anna"
        _expect_ok(fetch(server.port, path, method="PUT", body=json.dumps(body)))
        return ClaimTimes(took, memory, page, _milliseconds_since(started))


def _expect_ok(response: tuple[int, Mapping[str, str], bytes]) -> None:
    status, _, body = response
    if status not in (200, 201):
        raise RuntimeError(f"{status}: {body[:500]!r}")


def _milliseconds_since(started: float) -> float:
    return (time.perf_counter() - started) * 1000
