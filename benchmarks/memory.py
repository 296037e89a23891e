"""What the service holds in memory: 10,000 nodes, 1,000 watchers, and nothing of watchers that have left."""

import asyncio
import re
import time
from pathlib import Path

import uvloop

from benchmarks import peers
from benchmarks.harness import Row, Server, Target, scratch
from benchmarks.watch import BODY, WATCHERS
from benchmarks.watchers import broadcast, put

NODES = 10_000
ROUNDS = 10
OURS, BEFORE = "blocklist", "five rounds before"
WITH, AFTER, PEAK = "with watchers", "after they left", "peak"


def run() -> list[Row]:
    """Resident memory while the watchers are there, at its peak, and after each round of them came and left."""
    with scratch() as folder, peers.service(folder / "service") as server:
        peers.block(server, NODES)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            series = runner.run(_rounds(server))
    name = f"{NODES:,} nodes, {WATCHERS:,} watchers"
    halves = {OURS: series[AFTER][ROUNDS // 2 :], BEFORE: series[AFTER][: ROUNDS // 2]}
    return [
        Row(name=name, unit="MB", ours=OURS, samples={OURS: series[WITH]}, targets=[_at_most(None, 100)]),
        Row(name=f"{name}, peak while they get the list", unit="MB", ours=OURS, samples={OURS: series[PEAK]}),
        Row(name=f"{name} came and left", unit="MB", ours=OURS, samples=halves, targets=[_at_most(BEFORE, 1.02)]),
    ]


def _at_most(peer: str | None, factor: float) -> Target:
    return Target(peer=peer, factor=factor, at_least=False)


async def _rounds(server: Server) -> dict[str, list[float]]:
    """In each round the watchers come without a cursor, get the whole list and one change, and leave."""
    alone = _descriptors(server)
    series: dict[str, list[float]] = {WITH: [], AFTER: [], PEAK: []}
    for number in range(ROUNDS):
        Path(f"/proc/{server.pid}/clear_refs").write_text("5")  # forget the peak
        there = await broadcast(
            server, path="/blocklist/watch", count=WATCHERS, request=put("/blocklist/nodes/@", BODY)
        )
        there.changes = number  # each change a node of its own
        await there.change()
        series[WITH].append(_megabytes(server, "VmRSS"))
        series[PEAK].append(_megabytes(server, "VmHWM"))
        there.close()
        await _until_gone(server, alone)
        series[AFTER].append(_megabytes(server, "VmRSS"))
    return series


async def _until_gone(server: Server, descriptors: int) -> None:
    """The service has closed every watcher's connection."""
    deadline = time.monotonic() + 30
    while _descriptors(server) > descriptors:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{_descriptors(server) - descriptors} connections of watchers that left are still open")
        await asyncio.sleep(0.05)


def _descriptors(server: Server) -> int:
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


def _megabytes(server: Server, name: str) -> float:
    """A value of the process's status, in MB of a million bytes."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{server.pid}/status").read_text())
    assert found
    return int(found[1]) * 1024 / 1e6
