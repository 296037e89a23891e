"""Memory of the service with 10,000 nodes and 1,000 watchers, and after watchers have disconnected."""

import asyncio
import time
from pathlib import Path

import uvloop

from benchmarks import systems
from benchmarks.broadcast import broadcast
from benchmarks.connections import put
from benchmarks.harness import Server, scratch, unless_quick
from benchmarks.rows import Row, at_most
from benchmarks.sampling import megabytes
from benchmarks.watch import BODY, WATCHERS

NODES = 10_000
ROUNDS = unless_quick(10, 2)
OURS, BEFORE = "blocklist", "five rounds earlier"
WITH, AFTER, PEAK = "with watchers", "after they left", "peak"


def run() -> list[Row]:
    """Measure resident memory with watchers, its peak, and after each round of watchers."""
    with scratch() as folder, systems.service(folder / "service") as server:
        systems.block(server, NODES)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            series = runner.run(_rounds(server))
    name = f"{NODES:,} nodes, {WATCHERS:,} watchers"
    halves = {OURS: series[AFTER][ROUNDS // 2 :], BEFORE: series[AFTER][: ROUNDS // 2]}
    return [
        Row(name=name, unit="MB", ours=OURS, samples={OURS: series[WITH]}, targets=[at_most(100)]),
        Row(name=f"{name}, peak during the snapshot", unit="MB", ours=OURS, samples={OURS: series[PEAK]}),
        Row(
            name=f"{name}, after they disconnected",
            unit="MB",
            ours=OURS,
            samples=halves,
            targets=[at_most(1.02, BEFORE)],
        ),
    ]


async def _rounds(server: Server) -> dict[str, list[float]]:
    """In each round the watchers connect without a cursor, receive the list and one change, and disconnect."""
    alone = _descriptors(server)
    series: dict[str, list[float]] = {WITH: [], AFTER: [], PEAK: []}
    for _ in range(ROUNDS):
        Path(f"/proc/{server.pid}/clear_refs").write_text("5")  # reset the peak
        watching = await broadcast(
            server, path="/blocklist/watch", watchers=WATCHERS, request=put("/blocklist/nodes/@", BODY)
        )
        await watching.change()
        series[WITH].append(megabytes(server.pid))
        series[PEAK].append(megabytes(server.pid, "VmHWM"))
        watching.close()
        await _await_disconnects(server, alone)
        series[AFTER].append(megabytes(server.pid))
    return series


async def _await_disconnects(server: Server, descriptors: int) -> None:
    """Wait until the service has closed the connections of all watchers."""
    deadline = time.monotonic() + 30
    while _descriptors(server) > descriptors:
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"{_descriptors(server) - descriptors} connections of disconnected watchers are still open"
            )
        await asyncio.sleep(0.05)


def _descriptors(server: Server) -> int:
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))
