"""One change to 1,000 listeners with a callback: from the PUT's response to the last push."""

import asyncio
import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import uvloop

from benchmarks import systems
from benchmarks.broadcast import Broadcast
from benchmarks.connections import put
from benchmarks.fanout import Fanout
from benchmarks.harness import Server, fetch, scratch
from benchmarks.receivers import start_receivers
from benchmarks.rows import Row, at_most
from benchmarks.sampling import rotate
from benchmarks.watch import BODY

OURS, AIOHTTP = "blocklist", "bare aiohttp, gather"
LISTENERS = 1000
CHANGES = 15
PUSH = (
    b'{"listenerId":"listener-0000","sessionId":"s1","fromRevision":999,"toRevision":1000,"history":"93a4a3ea",'
    b'"snapshot":false,"blocked":[{"id":"@","action":"MARK_BLOCKED","startTimestamp":"1700000000000",'
    b'"endTimestamp":"4102444800000","cause":"lost 3 partitions"}],"unblocked":[]}'
)


def run() -> list[Row]:
    """Each listener has its own port and keeps its connection."""
    with scratch() as folder, ExitStack() as stack, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        contenders = runner.run(_connect(folder, stack))

        def change(name: str) -> Callable[[], float]:
            return lambda: runner.run(contenders[name].change()).from_response

        samples, noise = rotate({name: change(name) for name in contenders}, rounds=CHANGES)
    targets = [at_most(1.5, AIOHTTP)]
    name = f"one change pushed to {LISTENERS:,} listeners, after the response"
    return [Row(name=name, unit="ms", ours=OURS, samples=samples, noise=noise, targets=targets)]


async def _connect(folder: Path, stack: ExitStack) -> dict[str, Broadcast]:
    ours, bare = Fanout(), Fanout()
    servers, ports = await start_receivers(ours, LISTENERS)
    others, bare_ports = await start_receivers(bare, LISTENERS)
    for server in (*servers, *others):
        stack.callback(server.close)
    service = stack.enter_context(systems.service(folder / "service", {"BLOCKLIST_HEARTBEAT": "1h"}))
    await asyncio.to_thread(_register, service, ports)
    (folder / "ports").write_text("\n".join(map(str, bare_ports)))
    posts = stack.enter_context(systems.bare_posts(folder))
    making = {OURS: (service, put("/blocklist/nodes/@", BODY), ours), AIOHTTP: (posts, put("/event", PUSH), bare)}
    return {
        name: Broadcast(server=server, watchers=LISTENERS, request=request, fanout=fanout, connections=[])
        for name, (server, request, fanout) in making.items()
    }


def _register(service: Server, ports: list[int]) -> None:
    """Leases are long, so that no heartbeat is pushed during a sample."""
    for number, port in enumerate(ports):
        body = {
            "role": "JOB_MASTER",
            "sessionId": "s1",
            "callbackUrl": f"http://127.0.0.1:{port}/",
            "leaseSeconds": 3600,
        }
        status, _, response = fetch(
            service.port, f"/listeners/listener-{number:04d}", method="PUT", body=json.dumps(body)
        )
        if status != 201:
            raise RuntimeError(f"{status}: {response[:500]!r}")
