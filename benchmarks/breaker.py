"""A host that swallows tasks: how many each application loses, with the blocklist and with Spark's HealthTracker alone.

Two applications run the same job at the same time, and a third one afterwards; then one runs it alone, with a service
for which one application suffices. A task takes half a second, and on one host it fails after a second. With the
blocklist, `spark.blocklist.reportEvidence` is the only setting of an application.
"""

import os
from contextlib import ExitStack
from pathlib import Path

from benchmarks import systems
from benchmarks.harness import CORES, GENERATOR_CORE, scratch, unless_quick
from benchmarks.rows import Row, column
from demo import event_log
from demo.cluster import Cluster
from demo.event_log import TaskAttempt
from tests.acceptance.failing_application import Application, Job

OURS, PEER = "blocklist", "HealthTracker alone"
HOST = "127.0.0.3"
ROUNDS = unless_quick(3, 1)
JOB = Job(tasks=unless_quick(60, 24), seconds=0.5, error="OSError", bad=HOST, fails_after=1)
# One core on each host; failed tasks do not end the job.
CONF = {"spark.executor.cores": "1", "spark.cores.max": "3", "spark.task.maxFailures": "20"}
EXCLUDING = {"spark.excludeOnFailure.enabled": "true"}
RESOLUTION = 1.0  # milliseconds: Spark's times are integers


def run() -> list[Row]:
    """Return all rows, on one cluster; its processes may use all cores."""
    os.sched_setaffinity(0, CORES)
    try:
        with scratch() as folder, Cluster() as cluster:
            samples: dict[str, list[list[float]]] = {OURS: [], PEER: []}
            for number in range(ROUNDS):
                for name in sorted(samples, reverse=bool(number % 2)):
                    its = folder / f"{number}-{len(name)}"
                    samples[name].append(_sample(cluster, its, name) + _alone(cluster, its / "alone", name))
    finally:
        os.sched_setaffinity(0, {GENERATOR_CORE})
    rows = (
        ("first failure of the second application to its last start on the host", "ms"),
        ("tasks that two applications lost", "tasks"),
        ("tasks that a third one lost", "tasks"),
        ("first failure of one application alone to its last start on the host", "ms"),
        ("tasks that one application alone lost", "tasks"),
    )
    return [Row(name=name, unit=unit, ours=OURS, samples=column(samples, i)) for i, (name, unit) in enumerate(rows)]


def _sample(cluster: Cluster, folder: Path, contender: str) -> list[float]:
    """One figure for each of the first three rows."""
    with ExitStack() as stack:
        url = stack.enter_context(systems.service(folder / "service")).url if contender == OURS else ""
        logs = [folder / name for name in ("first", "second", "third")]
        confs = [_conf(cluster, log, contender) for log in logs]
        with Application(confs[0], url) as first, Application(confs[1], url) as second:
            for application in (first, second):
                application.run(Job())
            for application in (first, second):
                application.begin(JOB)
            for application in (first, second):
                application.result()
        with Application(confs[2], url) as third:
            third.run(JOB)
    first_two, last = [*map(event_log.attempts, logs[:2])], event_log.attempts(logs[2])
    return [_duration(first_two[1]), float(sum(map(_lost, first_two))), float(_lost(last))]


def _alone(cluster: Cluster, folder: Path, contender: str) -> list[float]:
    """One figure for each of the other rows."""
    suffices = {"BLOCKLIST_EVIDENCE_APPLICATIONS": "1"}
    with ExitStack() as stack:
        url = stack.enter_context(systems.service(folder / "service", suffices)).url if contender == OURS else ""
        with Application(_conf(cluster, folder / "log", contender), url) as application:
            application.run(Job())
            application.run(JOB)
    attempts = event_log.attempts(folder / "log")
    return [_duration(attempts), float(_lost(attempts))]


def _conf(cluster: Cluster, log: Path, contender: str) -> dict[str, str]:
    recorded = {name.replace("__", "."): str(value) for name, value in event_log.conf(log).items()}
    return cluster.conf() | CONF | recorded | (EXCLUDING if contender == PEER else {})


def _duration(attempts: list[TaskAttempt]) -> float:
    """From the first failure to the last start on the host."""
    failures = [attempt.end for attempt in attempts if attempt.failed]
    if not failures:
        raise RuntimeError(f"no task failed on {HOST}, so nothing was measured")
    return max(RESOLUTION, float(max(it.start for it in attempts if it.host == HOST) - min(failures)))


def _lost(attempts: list[TaskAttempt]) -> int:
    return sum(attempt.failed for attempt in attempts)
