"""The cost of heartbeats: 5,000 listeners with ten TaskManagers each, one heartbeat per 10 s.

And the load of 1,000 agents: a ListenerSession each, in threads of one process, and an open watch.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from statistics import quantiles

import uvloop

from benchmarks import systems
from benchmarks.connections import HttpConnection
from benchmarks.fanout import HOST, Fanout, connect, get
from benchmarks.harness import Server, fetch, scratch, unless_quick
from benchmarks.latency import get_latencies
from benchmarks.rows import Row
from benchmarks.sampling import cpu_seconds
from blocklist.client.session import ListenerSession
from blocklist.model.listener import ListenerRole, Registration, Report

LISTENERS = unless_quick(5000, 500)
INTERVAL = 10.0  # seconds, Flink's heartbeat.interval
TASK_MANAGERS = 10
SECONDS = 10.0  # of one sample: one heartbeat per listener
ROUNDS = unless_quick(3, 1)
CONNECTIONS = 50
GETS = 50  # per second, one after the other
AGENTS = unless_quick(1000, 100)


def run() -> list[Row]:
    """Measure the CPU of the service and the latency of GET /blocklist, with heartbeats and without."""
    with scratch() as folder, systems.service(folder / "service") as server:
        systems.block(server, 10)
        for number in range(LISTENERS):
            _register(server, number)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            pairs = [
                (runner.run(_sample(server, heartbeats=True)), runner.run(_sample(server, heartbeats=False)))
                for _ in range(ROUNDS)
            ]
            agents = runner.run(_agents(server))
    with_load, idle = zip(*pairs, strict=True)
    name = f"{LISTENERS:,} listeners, one heartbeat each per {INTERVAL:g} s"
    with_, without = "with heartbeats", "without"
    return [
        Row(name=f"{name}: CPU", unit="% of one core", ours=with_,
            samples={with_: [sample[0] for sample in with_load], without: [sample[0] for sample in idle]}),
        Row(name=f"{name}: GET /blocklist, 99th percentile", unit="ms", ours=with_,
            samples={with_: [sample[1] for sample in with_load], without: [sample[1] for sample in idle]}),
        Row(name=f"{AGENTS:,} agents: CPU of the service", unit="% of one core", ours="unchanged", samples=agents),
    ]  # fmt: skip


def _register(server: Server, number: int) -> None:
    body = json.dumps({"role": "JOB_MASTER", "sessionId": "s1", "leaseSeconds": 3600})
    status, _, response = fetch(server.port, f"/listeners/app-{number}", method="PUT", body=body)
    if status != 201:
        raise RuntimeError(f"{status}: {response[:500]!r}")


async def _sample(server: Server, *, heartbeats: bool) -> tuple[float, float]:
    """Return percent of a core, and the 99th percentile of GETs in ms."""
    started, cpu = time.perf_counter(), cpu_seconds(server.pid)
    sending = [asyncio.create_task(_send_heartbeats(server, part)) for part in range(CONNECTIONS if heartbeats else 0)]
    times = await get_latencies(server, seconds=SECONDS, rate=GETS)
    await asyncio.gather(*sending)
    share = (cpu_seconds(server.pid) - cpu) / (time.perf_counter() - started)
    return share * 100, quantiles(times, n=100)[-1]


async def _send_heartbeats(server: Server, part: int) -> None:
    """Send the heartbeats of every CONNECTIONS-th listener, spread over the time."""
    writer = await _connect(server)
    mine = range(part, LISTENERS, CONNECTIONS)
    started = time.perf_counter()
    for count, number in enumerate(mine):
        await asyncio.sleep(started + (count + part / CONNECTIONS) * SECONDS / len(mine) - time.perf_counter())
        await writer.send(_heartbeat(number))
    writer.close()


async def _agents(server: Server) -> dict[str, list[float]]:
    """Return percent of a core while the reports do not change, and while each changes every second."""
    watches = await connect(server, Fanout(), [get("/blocklist/watch")] * AGENTS)
    sessions = [_start_session(server, number) for number in range(AGENTS)]
    try:
        while not all(session.registered for session in sessions):
            await asyncio.sleep(0.1)
        quiet = [await _cpu_share(server, sessions, changing=False) for _ in range(ROUNDS)]
        return {
            "unchanged": quiet,
            "changed every second": [await _cpu_share(server, sessions, changing=True) for _ in range(ROUNDS)],
        }
    finally:
        for session in sessions:
            await asyncio.to_thread(session.close)
        for watch in watches:
            if watch.transport is not None:
                watch.transport.close()


def _start_session(server: Server, number: int) -> ListenerSession:
    registration = Registration(id=f"agent-{number}", role=ListenerRole.JOB_MASTER, session="s1")
    session = ListenerSession(f"http://{HOST}:{server.port}", registration)
    task_managers = {
        f"agent-{number}:{index}": f"worker-{(number + index) % 1000:05d}" for index in range(TASK_MANAGERS)
    }
    session.report(Report(task_managers=task_managers, refused={}), acked=10)
    return session


async def _cpu_share(server: Server, sessions: Sequence[ListenerSession], *, changing: bool) -> float:
    started, cpu = time.perf_counter(), cpu_seconds(server.pid)
    for second in range(int(SECONDS)):
        for number, session in enumerate(sessions if changing else ()):
            session.report(Report(running_tasks={f"agent-{number}:0": second}))
        await asyncio.sleep(1)
    return (cpu_seconds(server.pid) - cpu) / (time.perf_counter() - started) * 100


def _heartbeat(number: int) -> bytes:
    task_managers = {f"app-{number}:{index}": f"worker-{(number + index) % 1000:05d}" for index in range(TASK_MANAGERS)}
    running = dict.fromkeys(task_managers, int(time.monotonic()) % 4)
    body = json.dumps(
        {"sessionId": "s1", "ackedRevision": 10, "taskManagers": task_managers, "runningTasks": running}
    ).encode()
    head = f"POST /listeners/app-{number}/heartbeat HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def _connect(server: Server) -> HttpConnection:
    _, writer = await asyncio.get_running_loop().create_connection(HttpConnection, HOST, server.port)
    return writer
