"""What the agent costs a driver that obeys by configuration alone, and how soon it acts.

Two applications run on one cluster, with and without the agent; samples are taken of one after the other, in turn.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks import systems
from benchmarks.harness import CORES, GENERATOR_CORE, scratch, unless_quick
from benchmarks.rows import Row, Samples, at_least, at_most
from benchmarks.sampling import idle_cpu, megabytes
from blocklist import BlockAction, BlocklistClient
from demo.cluster import Cluster, spark_home
from tests.applications.application import Application, Installation, obeying
from tests.applications.compiling import compile_applications
from tests.applications.jobs import count_cached, heap, tiny_tasks
from tests.applications.kinds import SCALA

OURS, WITHOUT = "with the agent", "without"
EXCLUSION = "Spark's own exclusion"
A, HOST, C = HOSTS = ("127.0.0.31", "127.0.0.32", "127.0.0.33")
STARTS = unless_quick(6, 1)
IDLE_ROUNDS = unless_quick(5, 1)
IDLE_SECONDS = unless_quick(10.0, 2.0)
SETTLE_SECONDS = unless_quick(15.0, 2.0)
TASKS = unless_quick(10_000, 1_000)
TASK_ROUNDS = unless_quick(8, 2)
BLOCKS = unless_quick(20, 2)
EVACUATIONS = unless_quick(8, 2)
# The agent leaves a host alone that has been evacuated three times within a minute.
EVACUATION_PAUSE = unless_quick(20.0, 0.0)
COUNTS = unless_quick(5, 1)
OBSERVE_SECONDS = 0.5
OTHER_NODES = 100  # blocked nodes that are not hosts of the applications
# Two applications share the workers: one core of each worker for each of them.
SPARK_EXCLUDES: dict[str, str | None] = {
    "spark.excludeOnFailure.enabled": "true",
    "spark.excludeOnFailure.stage.maxFailedTasksPerExecutor": "1",
    "spark.excludeOnFailure.stage.maxFailedExecutorsPerNode": "1",
    "spark.excludeOnFailure.application.maxFailedTasksPerExecutor": "1",
    "spark.excludeOnFailure.application.maxFailedExecutorsPerNode": "1",
}
"""A host on which a task has failed gets no task of the application any more."""
SHARED = {"spark.executor.cores": "1", "spark.cores.max": str(len(HOSTS))}


def run() -> list[Row]:
    """Return all rows; the processes may use all cores."""
    os.sched_setaffinity(0, CORES)
    try:
        with scratch() as folder, ExitStack() as stack:
            url = stack.enter_context(systems.service(folder / "service")).url
            client = stack.enter_context(BlocklistClient(url, timeout=60))
            for number in range(OTHER_NODES):
                client.block(f"node-{number}.example.test", "No space left on device")
            spark = Installation(home=spark_home(), applications=compile_applications(spark_home()))
            cluster = stack.enter_context(Cluster(HOSTS, memory="2g"))
            bed = Bed(spark, cluster, folder, url)
            return [_starts(bed), *_cost(bed), *_speed(bed, client), _cached(bed, client)]
    finally:
        os.sched_setaffinity(0, {GENERATOR_CORE})


class Bed:
    """Starts applications, each in a folder of its own."""

    def __init__(self, spark: Installation, cluster: Cluster, folder: Path, url: str) -> None:
        self._spark, self._cluster, self._folder = spark, cluster, folder
        self._conf: dict[str, Mapping[str, str | None]] = {
            OURS: obeying(url),
            EXCLUSION: SPARK_EXCLUDES,
            WITHOUT: {},
        }
        self._count = 0

    @contextmanager
    def application(self, contender: str) -> Iterator[Application]:
        """An application that has run a round on all hosts; it ends by itself."""
        self._count += 1
        folder = self._folder / f"application-{self._count}"
        conf = {**self._conf[contender], **SHARED}
        with Application(SCALA, self._spark, self._cluster, folder, conf) as application:
            application.await_use(*HOSTS)
            yield application
            application.end()


def _starts(bed: Bed) -> Row:
    """From the command to tasks on all hosts."""
    samples: Samples = {OURS: [], WITHOUT: []}
    for number in range(STARTS):
        for contender in _in_turn(number):
            began = time.perf_counter()
            with bed.application(contender):
                samples[contender].append(time.perf_counter() - began)
    return Row(name="start of an application, until tasks have run on all hosts", unit="s", ours=OURS, samples=samples)


def _cost(bed: Bed) -> list[Row]:
    with ExitStack() as stack:
        applications = {name: stack.enter_context(bed.application(name)) for name in (OURS, WITHOUT)}
        tasks = _tiny_tasks(applications)
        time.sleep(SETTLE_SECONDS)
        heaps = {name: [float(heap(application))] for name, application in applications.items()}
        pids = {name: application.pid for name, application in applications.items()}
        resident = {name: [megabytes(pid)] for name, pid in pids.items()}
        idle = idle_cpu(pids, rounds=IDLE_ROUNDS, seconds=IDLE_SECONDS)
    more = [ours - without for ours, without in zip(idle[OURS], idle[WITHOUT], strict=True)]
    return [
        Row(name=f"idle CPU in {IDLE_SECONDS:g} s", unit="s", ours=OURS, samples=idle),
        Row(name="idle CPU, more than without", unit="s", ours=OURS, samples={OURS: more}, targets=[at_most(0.05)]),
        Row(name="heap in use", unit="MB", ours=OURS, samples=heaps),
        Row(name="resident memory of the driver", unit="MB", ours=OURS, samples=resident),
        Row(
            name=f"a job of {TASKS:,} tiny tasks",
            unit="tasks/s",
            ours=OURS,
            samples=tasks,
            targets=[at_least(0.97, WITHOUT)],
        ),
    ]


def _tiny_tasks(applications: Mapping[str, Application]) -> Samples:
    """The first job of each is a warm-up."""
    for application in applications.values():
        tiny_tasks(application, TASKS)
    samples: Samples = {OURS: [], WITHOUT: []}
    for number in range(TASK_ROUNDS):
        for contender in _in_turn(number):
            samples[contender].append(TASKS / tiny_tasks(applications[contender], TASKS))
    return samples


def _speed(bed: Bed, client: BlocklistClient) -> list[Row]:
    with bed.application(OURS) as application:
        tiny_tasks(application, TASKS)
        last = [_last_start(application, client) for _ in range(BLOCKS + 1)][1:]
        moved = [_evacuated(application, client) for _ in range(EVACUATIONS)]
    return [
        Row(
            name="last task start on the host, after the response",
            unit="ms",
            ours=OURS,
            samples={OURS: last},
            targets=[at_most(100)],
        ),
        Row(name="evacuation, until all its tasks run elsewhere", unit="ms", ours=OURS, samples={OURS: moved}),
    ]


def _last_start(application: Application, client: BlocklistClient) -> float:
    """Block the host while short tasks run on it; 1 if none has started after the response."""
    application.send(f"tiny {unless_quick(1_000, 300)} 5")
    time.sleep(OBSERVE_SECONDS)
    busy = application.starts_on(HOST)
    client.block(HOST, "benchmark")
    answered = time.time() * 1000
    application.result()
    later = application.starts_on(HOST)[len(busy) :]
    client.unblock(HOST)
    application.await_use(HOST)
    return max(1.0, max(later, default=0) - answered)


def _evacuated(application: Application, client: BlocklistClient) -> float:
    """Evacuate the host when only the tasks on it are left, which take ten minutes there."""
    time.sleep(EVACUATION_PAUSE)
    application.begin_round(waiting_on=HOST)
    time.sleep(2 * OBSERVE_SECONDS)
    before = len(application.starts_on(A, C))
    client.block(HOST, "benchmark", action=BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS)
    answered = time.time() * 1000
    application.result()
    moved = application.starts_on(A, C)[before:]
    client.unblock(HOST)
    application.await_use(HOST)
    if not moved:
        raise RuntimeError("no task was evacuated, so nothing was measured")
    return max(moved) - answered


def _cached(bed: Bed, client: BlocklistClient) -> Row:
    """Counts while a host with cached partitions gets no tasks, after some while it did.

    The first one computes the partitions of that host elsewhere, and is left out.
    """
    samples: Samples = {}
    for contender in (OURS, EXCLUSION):
        with bed.application(contender) as application:
            count_cached(application)
            samples[f"{contender}, not blocked"] = [count_cached(application) for _ in range(COUNTS)]
            if contender == OURS:
                client.block(HOST, "benchmark")
            else:
                application.send(f"fail {HOST}")
                application.result()
            count_cached(application)
            samples[contender] = [count_cached(application) for _ in range(COUNTS)]
    client.unblock(HOST)
    return Row(
        name="count of cached partitions, a third of them on a blocked host",
        unit="s",
        ours=OURS,
        samples=samples,
        targets=[at_most(2, f"{OURS}, not blocked")],
    )


def _in_turn(number: int) -> Sequence[str]:
    return (WITHOUT, OURS) if number % 2 else (OURS, WITHOUT)
