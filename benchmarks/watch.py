"""One change to 1,000 watchers, until the last has it; compared with broadcasters and etcd's gRPC watch."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

import uvloop

from benchmarks import systems
from benchmarks.broadcast import Broadcast, Latency, broadcast, etcd_broadcast
from benchmarks.connections import put
from benchmarks.harness import scratch
from benchmarks.rows import Row, at_most, column
from benchmarks.sampling import rotate

OURS, SSE, SOCKETS = "blocklist", "bare ASGI SSE", "bare asyncio sockets"
ETCD_8, ETCD_1000 = "etcd, gRPC, 8 connections", "etcd, gRPC, 1,000 connections"
WATCHERS = 1000
CHANGES = 30
BODY = json.dumps({"action": "MARK_BLOCKED", "cause": "lost 3 partitions", "endTimestamp": "4102444800000"}).encode()
NODE = (
    b'{"id":"@","action":"MARK_BLOCKED","startTimestamp":"1700000000000","endTimestamp":"4102444800000",'
    b'"cause":"lost 3 partitions"}'
)
CHANGE = b'{"revision":1000,"type":"blocked","at":"1700000000000","createdBy":null,"node":%b}' % NODE
NAMELESS = CHANGE.replace(b'"id":"@",', b"")  # for etcd: the token must occur once, as the key
EVENT = b"id: 1000-0123abcd\nevent: blocked\ndata: %b\n\n" % CHANGE


def run() -> list[Row]:
    """Return the row from the response, which has the targets, and the row from the request."""
    systems.require("etcd")
    with scratch() as folder, ExitStack() as stack, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        contenders = runner.run(_connect(folder, stack))

        def change(name: str) -> Callable[[], Latency]:
            return lambda: runner.run(contenders[name].change())

        samples, noise = rotate({name: change(name) for name in contenders}, rounds=CHANGES)
        for contender in contenders.values():
            contender.close()
    name = f"one change to {WATCHERS:,} watchers"
    targets = [at_most(1.2, SSE), at_most(1, ETCD_8), at_most(1, ETCD_1000)]
    from_response, from_request = (column(samples, figure) for figure in range(2))
    return [
        Row(
            name=f"{name}, after the response",
            unit="ms",
            ours=OURS,
            samples=from_response,
            noise=noise,
            targets=targets,
        ),
        Row(name=f"{name}, after the request", unit="ms", ours=OURS, samples=from_request, noise=noise),
    ]


async def _connect(folder: Path, stack: ExitStack) -> dict[str, Broadcast]:
    """Start all servers and connect all watchers: idle ones cost nothing."""
    service = stack.enter_context(systems.service(folder / "service"))
    sse = stack.enter_context(systems.bare("watch", folder))
    sockets = stack.enter_context(systems.bare_sockets(folder))
    etcd = stack.enter_context(systems.etcd(folder))
    making: dict[str, Awaitable[Broadcast]] = {
        OURS: broadcast(service, path="/blocklist/watch", watchers=WATCHERS, request=put("/blocklist/nodes/@", BODY)),
        SSE: broadcast(sse, path="/watch", watchers=WATCHERS, request=put("/event", EVENT)),
        SOCKETS: broadcast(sockets, path="/watch", watchers=WATCHERS, request=put("/event", EVENT)),
        ETCD_8: etcd_broadcast(etcd, watchers=WATCHERS, connections=8, value=NAMELESS),
        ETCD_1000: etcd_broadcast(etcd, watchers=WATCHERS, connections=WATCHERS, value=NAMELESS),
    }
    return {name: await contender for name, contender in making.items()}
