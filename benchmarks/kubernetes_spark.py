"""Spark jobs on Kubernetes in client mode: how soon the agent acts, and what it costs the driver.

The rows are part of the benchmark of Kubernetes. The control plane is real; executors' pods are processes on this
machine. The starts of tasks are in the log of Spark's scheduler.
"""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import systems
from benchmarks.harness import CORES, GENERATOR_CORE, scratch, unless_quick
from benchmarks.rows import Row, Samples, at_most
from benchmarks.sampling import cpu_seconds, idle_cpu, megabytes
from blocklist import BlockAction, BlocklistClient
from demo.cluster import spark_home
from tests.integration.process import wait_until
from tests.kubernetes.cluster import running_cluster
from tests.kubernetes.control_plane import require_control_plane
from tests.kubernetes.kubelets import Kubelets, running_kubelets
from tests.kubernetes.spark.application import ROLE, Application, Spark, obeying

OURS, WITHOUT = "with the agent", "without"
A, NODE, C = NODES = ("worker-21", "worker-22", "worker-23")
POOL, NAMESPACE, ACCOUNT = "benchmark", "benchmark", "spark"
BLOCKS = unless_quick(10, 2)
EVACUATIONS = unless_quick(3, 1)  # The agent leaves a node alone that has been evacuated three times within a minute.
IDLE_ROUNDS = unless_quick(5, 1)
IDLE_SECONDS = unless_quick(10.0, 2.0)
SETTLE_SECONDS = unless_quick(15.0, 2.0)
REPLACEMENTS = unless_quick(5, 1)
OBSERVE_SECONDS = 0.5
TASKS = 100
OTHER_NODES = 100  # blocked nodes on which the applications have no pods
TIMEOUT = 300.0


def rows() -> list[Row]:
    """Measure on a cluster of three nodes, with 100 others blocked; the processes may use all cores."""
    os.sched_setaffinity(0, CORES)
    try:
        with _bed() as bed:
            return [*_speed(bed), *_cost(bed)]
    finally:
        os.sched_setaffinity(0, {GENERATOR_CORE})


@dataclass(frozen=True, kw_only=True, slots=True)
class Bed:
    """Starts applications, with and without the agent; `client` is one of their service."""

    spark: Spark
    kubelets: Kubelets
    token: str
    folder: Path
    client: BlocklistClient
    url: str

    def application(self, contender: str, folder: str) -> Application:
        """An application with an executor on each node, in a folder of its own."""
        return Application(
            self.spark,
            self.kubelets,
            # Java's options contain the path, and are separated by spaces.
            self.folder / folder.replace(" ", "-"),
            namespace=NAMESPACE,
            token=self.token,
            pool=POOL,
            cluster_mode=False,
            # Deleted pods are no fault of the application.
            conf={"spark.executor.maxNumFailures": 10_000, **(obeying(self.url) if contender == OURS else {})},
        )


@contextmanager
def _bed() -> Iterator[Bed]:
    with ExitStack() as stack:
        folder = stack.enter_context(scratch())
        (folder / "cluster").mkdir()
        cluster = stack.enter_context(running_cluster(require_control_plane(), folder / "cluster", grace_seconds=7200))
        kubelets = stack.enter_context(running_kubelets(cluster))
        for name in NODES:
            kubelets.add_node(name, network=int(name.removeprefix("worker-")), cpu="2", labels={"pool": POOL})
        cluster.make_namespace(NAMESPACE)
        token = cluster.make_service_account(NAMESPACE, ACCOUNT, ROLE)
        url = stack.enter_context(systems.service(folder / "service")).url
        client = stack.enter_context(BlocklistClient(url, timeout=60))
        for number in range(OTHER_NODES):
            client.block(f"node-{number}.example.test", "No space left on device")
        spark = Spark.prepare(spark_home())
        yield Bed(spark=spark, kubelets=kubelets, token=token, folder=folder, client=client, url=url)


def _speed(bed: Bed) -> list[Row]:
    with bed.application(OURS, "speed") as application:
        application.await_use(*NODES)
        last = [_last_start(application, bed.client) for _ in range(BLOCKS)]
        moved = [_evacuated(application, bed.client) for _ in range(EVACUATIONS)]
        application.end()
    name = "Spark on Kubernetes: last task start on the node, after the response"
    evacuated = "Spark on Kubernetes: evacuation, until all its tasks run elsewhere"
    return [
        Row(name=name, unit="ms", ours=OURS, samples={OURS: last}, targets=[at_most(100)]),
        Row(name=evacuated, unit="ms", ours=OURS, samples={OURS: moved}),
    ]


def _last_start(application: Application, client: BlocklistClient) -> float:
    """Block the node while short tasks run on it; 1 if none has started after the response."""
    before = len(_starts_on(application, NODE))
    application.begin_round(TASKS)
    wait_until(lambda: len(_starts_on(application, NODE)) > before, seconds=TIMEOUT)
    time.sleep(OBSERVE_SECONDS)
    client.block(NODE, "benchmark")
    answered = time.time() * 1000
    application.result()
    last = max(_starts_on(application, NODE))
    client.unblock(NODE)
    application.await_use(NODE)
    return max(1.0, last - answered)


def _evacuated(application: Application, client: BlocklistClient) -> float:
    """Evacuate the node when only the tasks on it are left, which take ten minutes there."""
    application.begin_round(waiting_on=NODE)
    time.sleep(4 * OBSERVE_SECONDS)
    before = len(_starts_on(application, A, C))
    client.block(NODE, "benchmark", action=BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS)
    answered = time.time() * 1000
    application.result()
    moved = _starts_on(application, A, C)[before:]
    client.unblock(NODE)
    application.await_use(NODE)
    if not moved:
        raise RuntimeError("no task was evacuated, so nothing was measured")
    return max(moved) - answered


def _starts_on(application: Application, *nodes: str) -> list[int]:
    networks = tuple(f"127.0.{node.removeprefix('worker-')}." for node in nodes)
    return [at for at, address in application.starts() if address.startswith(networks)]


def _cost(bed: Bed) -> list[Row]:
    """Two applications, one executor of each on each node."""
    with ExitStack() as stack:
        applications = {name: stack.enter_context(bed.application(name, name)) for name in (OURS, WITHOUT)}
        for application in applications.values():
            application.await_use(*NODES)
        changes = _pod_changes(bed, applications)
        time.sleep(SETTLE_SECONDS)
        pids = {name: application.pid for name, application in applications.items()}
        resident = {name: [megabytes(pid)] for name, pid in pids.items()}
        idle = idle_cpu(pids, rounds=IDLE_ROUNDS, seconds=IDLE_SECONDS)
        for application in applications.values():
            application.end()
    return [
        Row(name=f"driver on Kubernetes: idle CPU in {IDLE_SECONDS:g} s", unit="s", ours=OURS, samples=idle),
        Row(name="driver on Kubernetes: CPU while its executors are replaced", unit="s", ours=OURS, samples=changes),
        Row(name="driver on Kubernetes: resident memory", unit="MB", ours=OURS, samples=resident),
    ]


def _pod_changes(bed: Bed, applications: Mapping[str, Application]) -> Samples:
    """CPU seconds of the drivers, from the deletion of all executors' pods until tasks run on all nodes again.

    The first replacement of each is a warm-up.
    """
    samples: Samples = {name: [] for name in applications}
    for _ in range(REPLACEMENTS + 1):
        for name, application in applications.items():
            before = cpu_seconds(application.pid)
            _replace_executors(bed, application)
            samples[name].append(cpu_seconds(application.pid) - before)
    return {name: taken[1:] for name, taken in samples.items()}


def _replace_executors(bed: Bed, application: Application) -> None:
    former = {pod["metadata"]["name"] for pod in application.executors()}
    with bed.kubelets.cluster.api() as api:
        for name in former:
            api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}").raise_for_status()

    def are_replaced() -> bool:
        names = {pod["metadata"]["name"] for pod in application.executors() if pod["status"]["phase"] == "Running"}
        return len(names) == len(NODES) and not names & former

    wait_until(are_replaced, seconds=TIMEOUT)
    application.await_use(*NODES)
