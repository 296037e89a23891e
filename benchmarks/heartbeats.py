"""What heartbeats cost: 5,000 listeners, each with ten TaskManagers, one heartbeat each in ten seconds.

And 1,000 agents, as the service sees them: a Membership each, in threads of one process, and an open watch.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from statistics import quantiles

import uvloop

from benchmarks import peers
from benchmarks.harness import Server, fetch, scratch, unless_quick
from benchmarks.latency import gets_beside
from benchmarks.rows import Row
from benchmarks.sampling import cpu_seconds
from benchmarks.watchers import HOST, Fanout, connect, get
from benchmarks.writers import HttpWriter
from blocklist.client.listener_session import Membership
from blocklist.model.listener import Registration, Role

LISTENERS = unless_quick(5000, 500)
INTERVAL = 10.0  # seconds, Flink's heartbeat.interval
TASK_MANAGERS = 10
SECONDS = 10.0  # of one sample: each listener is heard once
ROUNDS = unless_quick(3, 1)
CONNECTIONS = 50
GETS = 50  # a second, one after the other
AGENTS = unless_quick(1000, 100)


def run() -> list[Row]:
    """CPU of the service, and the time of a GET /blocklist beside the heartbeats and without them."""
    with scratch() as folder, peers.service(folder / "service") as server:
        peers.block(server, 10)
        for number in range(LISTENERS):
            _register(server, number)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            pairs = [
                (runner.run(_sample(server, beats=True)), runner.run(_sample(server, beats=False)))
                for _ in range(ROUNDS)
            ]
            agents = runner.run(_agents(server))
    busy, idle = zip(*pairs, strict=True)
    name = f"{LISTENERS:,} listeners, a heartbeat each in {INTERVAL:g} s"
    with_, without = "with heartbeats", "without"
    return [
        Row(name=f"{name}: CPU", unit="% of one core", ours=with_,
            samples={with_: [sample[0] for sample in busy], without: [sample[0] for sample in idle]}),
        Row(name=f"{name}: GET /blocklist, 99th percentile", unit="ms", ours=with_,
            samples={with_: [sample[1] for sample in busy], without: [sample[1] for sample in idle]}),
        Row(name=f"{AGENTS:,} agents: CPU of the service", unit="% of one core", ours="quiet", samples=agents),
    ]  # fmt: skip


def _register(server: Server, number: int) -> None:
    body = json.dumps({"role": "JOB_MASTER", "sessionId": "s1", "leaseSeconds": 3600})
    status, _, answer = fetch(server.port, f"/listeners/app-{number}", method="PUT", body=body)
    if status != 201:
        raise RuntimeError(f"{status}: {answer[:500]!r}")


async def _sample(server: Server, *, beats: bool) -> tuple[float, float]:
    """Per cent of a core, and milliseconds of the 99th percentile of GETs."""
    began, cpu = time.perf_counter(), cpu_seconds(server.pid)
    sending = [asyncio.create_task(_beat(server, part)) for part in range(CONNECTIONS if beats else 0)]
    times = await gets_beside(server, seconds=SECONDS, rate=GETS)
    await asyncio.gather(*sending)
    share = (cpu_seconds(server.pid) - cpu) / (time.perf_counter() - began)
    return share * 100, quantiles(times, n=100)[-1]


async def _beat(server: Server, part: int) -> None:
    """The heartbeats of every so many-th listener, spread over the time."""
    writer = await _connect(server)
    mine = range(part, LISTENERS, CONNECTIONS)
    began = time.perf_counter()
    for count, number in enumerate(mine):
        await asyncio.sleep(began + (count + part / CONNECTIONS) * SECONDS / len(mine) - time.perf_counter())
        await writer.ask(_heartbeat(number))
    writer.close()


async def _agents(server: Server) -> dict[str, list[float]]:
    """Per cent of a core, while all is quiet, and while each has news of a blocked host in each second."""
    watches = await connect(server, Fanout(), [get("/blocklist/watch")] * AGENTS)
    members = [_member(server, number) for number in range(AGENTS)]
    try:
        while not all(member.registered for member in members):
            await asyncio.sleep(0.1)
        quiet = [await _share(server, members, news=False) for _ in range(ROUNDS)]
        return {"quiet": quiet, "news each second": [await _share(server, members, news=True) for _ in range(ROUNDS)]}
    finally:
        for member in members:
            await asyncio.to_thread(member.close)
        for watch in watches:
            if watch.transport is not None:
                watch.transport.close()


def _member(server: Server, number: int) -> Membership:
    me = Registration(id=f"agent-{number}", role=Role.JOB_MASTER, session="s1")
    member = Membership(f"http://{HOST}:{server.port}", me)
    task_managers = {f"agent-{number}:{own}": f"worker-{(number + own) % 1000:05d}" for own in range(TASK_MANAGERS)}
    member.say(acked=10, task_managers=task_managers, refused={})
    return member


async def _share(server: Server, members: Sequence[Membership], *, news: bool) -> float:
    began, cpu = time.perf_counter(), cpu_seconds(server.pid)
    for second in range(int(SECONDS)):
        for number, member in enumerate(members if news else ()):
            member.say(running_tasks={f"agent-{number}:0": second})
        await asyncio.sleep(1)
    return (cpu_seconds(server.pid) - cpu) / (time.perf_counter() - began) * 100


def _heartbeat(number: int) -> bytes:
    task_managers = {f"app-{number}:{own}": f"worker-{(number + own) % 1000:05d}" for own in range(TASK_MANAGERS)}
    running = dict.fromkeys(task_managers, int(time.monotonic()) % 4)
    body = json.dumps(
        {"sessionId": "s1", "ackedRevision": 10, "taskManagers": task_managers, "runningTasks": running}
    ).encode()
    head = f"POST /listeners/app-{number}/heartbeat HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def _connect(server: Server) -> HttpWriter:
    _, writer = await asyncio.get_running_loop().create_connection(HttpWriter, HOST, server.port)
    return writer
