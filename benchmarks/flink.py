"""The bridge to Flink: time until a block is in force, time of an evacuation, cost of renewals, memory.

Starts of tasks are those in the logs of the TaskManagers. What Flink does otherwise is observed by RPC from a JVM of
its own: the REST API shows it up to three seconds late.
"""

import os
import re
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import datetime
from pathlib import Path

from benchmarks import systems
from benchmarks.harness import CORES, GENERATOR_CORE, scratch, unless_quick
from benchmarks.rows import Row, at_most
from benchmarks.sampling import megabytes
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
ROUNDS = unless_quick(5, 2)
SHORT_TASKS = 400
"""Tasks of a batch job that take 50 ms each: on each node two of them start every 50 ms."""
STARTED = 20
"""Number of tasks that have started on a node before it is blocked."""
RENEWED = 1000
"""Number of blocked nodes that are renewed at once."""
PATIENCE = 120.0
_CHECKPOINTS = ("execution.checkpointing.interval=1 s", "restart-strategy.type=fixed-delay")
_START = re.compile(r"^(\d\d):(\d\d):(\d\d),(\d\d\d) .* switched from CREATED to DEPLOYING\.$", re.MULTILINE)
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
            bridge = stack.enter_context(BridgeProcess(folder, url, cluster))
            observer = stack.enter_context(closing(_observer(cluster, folder)))
            client = stack.enter_context(BlocklistClient(url))
            last = _last_starts(client, cluster, observer, jar, folder)
            arguments = ("STREAMING", 10**12, 500, 0, 4, f"file://{folder}/out", "bench", *_CHECKPOINTS, *_RESTARTS)
            job = cluster.submit(jar, *arguments)
            return [last, *_blocks(client, observer, job), _renewals(cluster, folder), *_memory(bridge)]
    finally:
        os.sched_setaffinity(0, {GENERATOR_CORE})


def _observer(cluster: FlinkCluster, folder: Path) -> FlinkConnection:
    """It notifies Flink of nothing."""
    own = folder / "observer"
    own.mkdir()
    return FlinkConnection(lambda: FlinkRpc(ChildJvm(cluster.lib, cluster.java, own), cluster.conf_dir, "127.0.0.1"))


def _last_starts(
    client: BlocklistClient, cluster: FlinkCluster, observer: FlinkConnection, jar: Path, folder: Path
) -> Row:
    samples = [_last_start(number, client, cluster, observer, jar, folder) for number in range(ROUNDS)]
    name = "last task started on the node, after the response"
    return Row(name=name, unit="ms", ours=OURS, samples={OURS: samples})


def _last_start(
    number: int, client: BlocklistClient, cluster: FlinkCluster, observer: FlinkConnection, jar: Path, folder: Path
) -> float:
    """Block a node while short tasks start on all nodes; 0 if none has started there after the response."""
    node, task_manager, other = NODES[number % 2], f"tm-{number % 2 + 1}", f"tm-{len(NODES)}"
    before = len(_starts(cluster, task_manager))
    out = f"file://{folder}/short"
    job = cluster.submit(jar, "BATCH", SHORT_TASKS * 50, 1000, 0, SHORT_TASKS, out, "short")
    _until_true(lambda: len(_starts(cluster, task_manager)) > before + STARTED, "short tasks")
    elsewhere = len(_starts(cluster, other))
    client.block(node, "bench")
    answered = time.time()
    _until(observer, lambda state: state.task_managers[task_manager].blocked, "the block")
    _until_true(lambda: len(_starts(cluster, other)) > elsewhere + STARTED, "short tasks elsewhere")
    last = max(_starts(cluster, task_manager))
    cluster.cancel(job)
    client.unblock(node)
    _until(observer, lambda state: not any(it.blocked for it in state.task_managers.values()), "the end")
    return max(0.0, last - answered) * 1000


def _starts(cluster: FlinkCluster, task_manager: str) -> list[float]:
    """When tasks started there, in Unix seconds, from its log: its lines have the time of the day."""
    midnight = datetime.now().astimezone().replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
    found = _START.findall(cluster.log(task_manager))
    return [midnight + int(h) * 3600 + int(m) * 60 + int(s) + int(ms) / 1000 for h, m, s, ms in found]


def _until_true(condition: Callable[[], bool], what: str) -> None:
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() < begun + PATIENCE, what
        time.sleep(0.05)


def _blocks(client: BlocklistClient, observer: FlinkConnection, job: str) -> list[Row]:
    marked, left = [], []
    _until(observer, lambda state: _runs(state, job), "the job")
    for _ in range(ROUNDS):
        # With four slots in use, one of the three nodes may have no task.
        task_manager = max(observer.exchange(list).jobs[job].task_managers())
        node = NODES[int(task_manager[-1]) - 1]
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
    with closing(ChildJvm(cluster.lib, cluster.java, own)) as child:
        rpc = FlinkRpc(child, cluster.conf_dir, "127.0.0.1")
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


def _memory(bridge: BridgeProcess) -> list[Row]:
    resident = {"the bridge": megabytes(bridge.pid), "its JVM": megabytes(bridge.child())}
    return [
        Row(name=f"resident memory of {name}", unit="MB", ours=OURS, samples={OURS: [size]})
        for name, size in resident.items()
    ]


def _runs(state: ClusterState, job: str, without: str | None = None) -> bool:
    """Whether all tasks of the job run, none of them on this TaskManager."""
    tasks = state.jobs[job].tasks if job in state.jobs else []
    return bool(tasks) and all(it.state == "RUNNING" and it.task_manager != without for it in tasks)


def _until(observer: FlinkConnection, condition: Callable[[ClusterState], bool], what: str) -> None:
    begun = time.monotonic()
    while not condition(observer.exchange(list)):
        assert time.monotonic() < begun + PATIENCE, what
        time.sleep(0.02)
