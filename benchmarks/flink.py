"""The bridge to Flink: time until a block is in force, time of an evacuation, cost of renewals, memory.

What Flink does is observed by RPC from a JVM of its own: the REST API shows it up to three seconds late.
"""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from benchmarks import systems
from benchmarks.harness import CORES, GENERATOR_CORE, scratch, unless_quick
from benchmarks.rows import Row, at_most
from blocklist import BlockAction, BlocklistClient
from blocklist.flink.connection import FlinkConnection
from blocklist.flink.jvm import ChildJvm
from blocklist.flink.marking import MAX_LEASE, NodeLease
from blocklist.flink.rpc import FlinkRpc
from blocklist.flink.state import ClusterState
from demo.java_home import java_home
from tests.flink.bridge_process import BridgeProcess
from tests.flink.cluster import NODES, FlinkCluster
from tests.flink.compiling import compile_job
from tests.flink.package import flink_lib

OURS = "blocklist"
ROUNDS = unless_quick(10, 2)
RENEWED = 1000
"""Number of blocked nodes that are renewed at once."""
PATIENCE = 120.0
_CHECKPOINTS = ("execution.checkpointing.interval=1 s", "restart-strategy.type=fixed-delay")
_RESTARTS = ("restart-strategy.fixed-delay.delay=1 s", "restart-strategy.fixed-delay.attempts=2147483647")


def run() -> list[Row]:
    """Return all rows, on one cluster; its processes may use all cores."""
    os.sched_setaffinity(0, CORES)
    try:
        with scratch() as folder, ExitStack() as stack:
            url = stack.enter_context(systems.service(folder / "service")).url
            java, lib = java_home() / "bin" / "java", flink_lib()
            cluster = stack.enter_context(FlinkCluster(java, lib, folder / "flink")).start()
            jar = compile_job(java, lib, folder / "job")
            arguments = ("STREAMING", 10**12, 500, 0, 4, f"file://{folder}/out", "bench", *_CHECKPOINTS, *_RESTARTS)
            job = cluster.submit(jar, *arguments)
            bridge = stack.enter_context(BridgeProcess(folder, url, cluster))
            observer = stack.enter_context(closing(_observer(cluster, folder)))
            client = stack.enter_context(BlocklistClient(url))
            return [*_blocks(client, observer, job), _renewals(cluster, folder), _memory(bridge)]
    finally:
        os.sched_setaffinity(0, {GENERATOR_CORE})


def _observer(cluster: FlinkCluster, folder: Path) -> FlinkConnection:
    """It notifies Flink of nothing."""
    own = folder / "observer"
    own.mkdir()
    return FlinkConnection(lambda: FlinkRpc(ChildJvm(cluster.lib, cluster.java, own), cluster.conf_dir, "127.0.0.1"))


def _blocks(client: BlocklistClient, observer: FlinkConnection, job: str) -> list[Row]:
    marked, left = [], []
    _until(observer, lambda state: _runs(state, job), "the job")
    for number in range(ROUNDS):
        node, task_manager = NODES[number % len(NODES)], f"tm-{number % len(NODES) + 1}"
        client.block(node, "bench", action=BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS)
        answered = time.monotonic()
        _until(observer, lambda state, it=task_manager: state.task_managers[it].blocked, "the block")  # type: ignore[misc]
        marked.append((time.monotonic() - answered) * 1000)
        _until(observer, lambda state, it=task_manager: _runs(state, job, it), "the evacuation")  # type: ignore[misc]
        left.append((time.monotonic() - answered) * 1000)
        client.unblock(node)
        _until(observer, lambda state: not any(it.blocked for it in state.task_managers.values()), "the end")
    target = at_most(2500)
    return [
        Row(name="Flink reports the node as blocked, after the response", unit="ms", ours=OURS, samples={OURS: marked}),
        Row(
            name="all tasks run elsewhere, after the response",
            unit="ms",
            ours=OURS,
            samples={OURS: left},
            targets=[target],
        ),
    ]


def _renewals(cluster: FlinkCluster, folder: Path) -> Row:
    own = folder / "renewals"
    own.mkdir()
    with closing(FlinkRpc(ChildJvm(cluster.lib, cluster.java, own), cluster.conf_dir, "127.0.0.1")) as rpc:
        begun = time.monotonic()
        while (leader := rpc.resource_manager_leader()) is None:
            assert time.monotonic() < begun + PATIENCE, "no leader"
            time.sleep(0.05)
        gateway, taken = rpc.resource_manager(leader), []
        for _ in range(ROUNDS):
            end = time.time_ns() // 1_000_000 + MAX_LEASE
            started = time.monotonic()
            leases = rpc.blocked_nodes(NodeLease(f"node-{number}", "bench", end) for number in range(RENEWED))
            rpc.get("The ResourceManager does not answer", rpc.notify(gateway, leases))
            taken.append((time.monotonic() - started) * 1000)
    return Row(name=f"renewal of {RENEWED:,} blocked nodes", unit="ms", ours=OURS, samples={OURS: taken})


def _memory(bridge: BridgeProcess) -> Row:
    samples = {"Python": [_resident(bridge.pid())], "JVM": [_resident(bridge.child())]}
    return Row(name="resident memory of the bridge", unit="MB", ours="JVM", samples=samples)


def _resident(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def _runs(state: ClusterState, job: str, without: str | None = None) -> bool:
    """Whether all tasks of the job run, none of them on this TaskManager."""
    tasks = state.jobs[job].tasks if job in state.jobs else []
    return bool(tasks) and all(it.state == "RUNNING" and it.task_manager != without for it in tasks)


def _until(observer: FlinkConnection, condition: Callable[[ClusterState], bool], what: str) -> None:
    begun = time.monotonic()
    while not condition(observer.exchange(list)):
        assert time.monotonic() < begun + PATIENCE, what
        time.sleep(0.02)
