"""The Kubernetes manager with 1,000 and 5,000 nodes: one block, many blocks, and its start. Then Spark jobs.

The control plane is real; the nodes are objects that no kubelet serves. Pods for the blocked node are made all the
time, so that the last one that is bound shows when the block was in force.
"""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field

import httpx

from benchmarks import kubernetes_spark
from benchmarks.harness import scratch, unless_quick
from benchmarks.rows import Row
from benchmarks.sampling import cpu_seconds, megabytes
from blocklist import BlockedNode, BlocklistClient
from blocklist.model.node import PERMANENT, BlockAction
from tests.integration.process import migrated_service, wait_until
from tests.kubernetes.cluster import Cluster, Json, running_cluster
from tests.kubernetes.control_plane import require_control_plane
from tests.kubernetes.manager import KEY, manager_process
from tests.kubernetes.node_objects import node_object
from tests.kubernetes.pods import pod_object
from tests.kubernetes.watching import watch

SIZES = unless_quick((1_000, 5_000), (50,))
SINGLE = unless_quick(10, 3)
MANY = unless_quick(1_000, 20)
POD_PAUSE = 0.02  # seconds between two pods for the node
SETTLE = 1.0  # seconds in which a late pod would still be bound
TIMEOUT = 1_200.0
ENOUGH = 5  # pods that have been bound before the block
PODS = "pods"
CREATORS = 16


@dataclass
class Figures:
    """Of one size: seconds, CPU seconds of the manager, megabytes."""

    start: list[float] = field(default_factory=list)
    start_cpu: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    taint: list[float] = field(default_factory=list)
    last_pod: list[float] = field(default_factory=list)
    many: list[float] = field(default_factory=list)
    many_cpu: list[float] = field(default_factory=list)


def run() -> list[Row]:
    """Return one row per figure; the contenders are the numbers of nodes. Then the rows of Spark jobs."""
    figures = {f"{size:,} nodes": _measure(size) for size in SIZES}
    ours = next(iter(figures))

    def row(name: str, unit: str, values: str) -> Row:
        samples = {size: [round(value, 3) for value in getattr(each, values)] for size, each in figures.items()}
        return Row(name=name, unit=unit, ours=ours, samples=samples)

    return [
        row("PUT answered until the taint is stored", "s", "taint"),
        row("PUT answered until the last pod is bound to the node", "s", "last_pod"),
        row(f"PUT of {MANY:,} nodes answered until all are tainted", "s", "many"),
        row(f"the manager's CPU time for {MANY:,} nodes", "s", "many_cpu"),
        row("start of the manager until it has acknowledged the list", "s", "start"),
        row("the manager's CPU time for its start", "s", "start_cpu"),
        row("the manager's memory", "MB", "memory"),
        *kubernetes_spark.rows(),
    ]


def _measure(size: int) -> Figures:
    found = Figures()
    with ExitStack() as stack:
        folder = stack.enter_context(scratch())
        for name in ("cluster", "service"):
            (folder / name).mkdir()
        program = require_control_plane()
        cluster = stack.enter_context(running_cluster(program, folder / "cluster", grace_seconds=7200))
        names = [f"bench-{number}" for number in range(size)]
        _make_nodes(cluster, names)
        cluster.make_namespace(PODS)
        service = stack.enter_context(migrated_service(folder / "service"))
        client = stack.enter_context(BlocklistClient(service.url, timeout=60))
        process = manager_process(folder, cluster, service)
        began = time.monotonic()
        manager = stack.enter_context(process)
        wait_until(lambda: _acked(client) == 0, seconds=TIMEOUT)
        found.start.append(time.monotonic() - began)
        found.start_cpu.append(cpu_seconds(manager.pid))
        for number in range(SINGLE):
            _block_one(cluster, client, names[number], found)
        cpu = cpu_seconds(manager.pid)
        client.block_nodes((_block(name) for name in names[-MANY:]), allow_merge=True)
        began = time.monotonic()
        revision = client.snapshot().revision
        wait_until(lambda: _acked(client) >= revision, seconds=TIMEOUT)
        found.many.append(time.monotonic() - began)
        found.many_cpu.append(cpu_seconds(manager.pid) - cpu)
        found.memory.append(megabytes(manager.pid))
    print(f"{size}: {found}", flush=True)
    return found


def _block_one(cluster: Cluster, client: BlocklistClient, name: str, found: Figures) -> None:
    """Block a node for which pods are made all the time."""
    bound: list[float] = []
    stop = threading.Event()
    threads = [
        threading.Thread(target=_make_pods, args=(cluster, name, stop)),
        threading.Thread(target=_note_bound, args=(cluster, name, stop, bound)),
    ]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(bound) > ENOUGH, seconds=TIMEOUT)
        client.block_nodes([_block(name)])
        answered = time.monotonic()
        with cluster.api() as api:
            wait_until(lambda: _is_tainted(api, name), seconds=TIMEOUT)
        found.taint.append(time.monotonic() - answered)
        time.sleep(SETTLE)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    found.last_pod.append(max(0.0, bound[-1] - answered))
    with cluster.api() as api:
        api.request("DELETE", f"/api/v1/namespaces/{PODS}/pods", json={"gracePeriodSeconds": 0})


def _make_pods(cluster: Cluster, node: str, stop: threading.Event) -> None:
    with cluster.api() as api:
        while not stop.wait(POD_PAUSE):
            body = pod_object(f"{node}-{time.monotonic_ns()}", "sleep", "1", node=node)
            body["spec"]["containers"][0]["resources"] = {}
            api.post(f"/api/v1/namespaces/{PODS}/pods", json=body).raise_for_status()


def _note_bound(cluster: Cluster, node: str, stop: threading.Event, bound: list[float]) -> None:
    """Note when each pod of the node is bound to it."""
    seen = set()
    with cluster.api() as api:
        for _, pod in watch(api, f"/api/v1/namespaces/{PODS}/pods", stop):
            uid = pod["metadata"]["uid"]
            if pod["spec"].get("nodeName") == node and uid not in seen:
                seen.add(uid)
                bound.append(time.monotonic())


def _make_nodes(cluster: Cluster, names: Sequence[str]) -> None:
    """Ready nodes in 50 zones, without the taint that new nodes have."""

    def make(numbered: tuple[int, str]) -> None:
        number, name = numbered
        body = node_object(name, number % 250, f"eu-{number % 50}-a", "64", {})
        body["status"]["addresses"] = [
            {"type": "InternalIP", "address": f"10.{number // 62500}.{number // 250 % 250}.{number % 250}"},
            {"type": "InternalDNS", "address": f"{name}.eu-1.compute.internal"},
        ]
        body["spec"]["providerID"] = f"aws:///eu-{number % 50}-a/i-{number:017x}"
        api.post("/api/v1/nodes", json=body).raise_for_status()

    def open_for_pods(name: str) -> None:
        headers = {"Content-Type": "application/merge-patch+json"}
        api.patch(f"/api/v1/nodes/{name}", json={"spec": {"taints": None}}, headers=headers).raise_for_status()

    with cluster.api(timeout=120) as api, ThreadPoolExecutor(CREATORS) as pool:
        list(pool.map(make, enumerate(names)))
        # The controller removes that taint when it sees the report of a kubelet, of which there are none.
        while new := [node["metadata"]["name"] for node in api.get("/api/v1/nodes").json()["items"] if _is_new(node)]:
            list(pool.map(open_for_pods, new))
            time.sleep(SETTLE)


def _is_new(node: Json) -> bool:
    return any(taint["key"].startswith("node.kubernetes.io/") for taint in node["spec"].get("taints") or [])


def _is_tainted(api: httpx.Client, name: str) -> bool:
    node = api.get(f"/api/v1/nodes/{name}").raise_for_status().json()
    return any(taint["key"] == KEY for taint in node["spec"].get("taints") or [])


def _acked(client: BlocklistClient) -> int:
    """The revision that the manager has acknowledged; -1 before it is known to have read the nodes."""
    listeners = [each for each in client.listeners() if each.usable_nodes is not None]
    return max((each.acked_revision or 0 for each in listeners), default=-1)


def _block(name: str) -> BlockedNode:
    return BlockedNode(id=name, action=BlockAction.MARK_BLOCKED, start=0, end=PERMANENT, cause="Hot machine")
