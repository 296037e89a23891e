"""Applications that end by a host, or by a bug of their own, on a real cluster: `make bench-detection-endings`.

Ten clusters have a host without the device that tasks need, so each task fails there at once, and two applications end
by it. Twenty jobs have a bug in every task, in some, or in one partition, and are run twice. Nothing but the fault
differs: six hosts, no exclusion, tasks of a second or two. Needs root, for a disk and a control group of each host.
"""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark import cloudpickle

from benchmarks.detection.hosts import Hosts
from benchmarks.detection.scenarios import HOSTS
from benchmarks.harness import CORES, GENERATOR_CORE, ROOT, scratch, unless_quick
from benchmarks.rows import Row, at_least
from demo import event_log
from demo.cluster import executor_hosts, session, wait_until
from demo.java_home import java_home

APPLICATIONS: Final = 2
TASKS: Final = 24
"""Of each of the two stages: four on each host."""
_BUGS: Final = ("every task", "some partitions", "one partition")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """A cluster with a faulty host, or a job with a bug."""

    name: str
    seed: int
    faulty: str | None = None
    bug: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """`ended`: applications that failed. `blamed`: the hosts named after both."""

    ending: Ending
    ended: int
    blamed: frozenset[str]


def endings() -> list[Ending]:
    """Ten clusters with a faulty host, and twenty jobs with a bug."""
    clusters = [
        Ending(name=f"cluster-{seed}", seed=seed, faulty=HOSTS[seed % len(HOSTS)])
        for seed in range(unless_quick(10, 1))
    ]
    jobs = [Ending(name=f"job-{seed}", seed=seed, bug=_BUGS[seed % 3]) for seed in range(unless_quick(20, 2))]
    return clusters + jobs


def run() -> list[Row]:
    """Make and judge all, and count."""
    os.sched_setaffinity(0, CORES)
    try:
        with scratch() as folder:
            judged = collect(folder)
    finally:
        os.sched_setaffinity(0, {GENERATOR_CORE})
    return rows(judged)


def rows(judged: list[Judged]) -> list[Row]:
    """The shares of clusters and of jobs that were judged right."""
    clusters = [it for it in judged if it.ending.faulty]
    jobs = [it for it in judged if it.ending.bug]
    found = sum(it.blamed == {it.ending.faulty} for it in clusters)
    clean = sum(not it.blamed for it in jobs)
    ended = sum(it.ended for it in clusters), APPLICATIONS * len(clusters)
    figures = (
        (
            f"clusters whose host, and no other, is named after two ({ended[0]} of {ended[1]} ended by it)",
            found,
            len(clusters),
        ),
        ("jobs that end by a bug of their own, twice, and blame nobody", clean, len(jobs)),
    )
    ours = "blocklist.detection"
    return [
        Row(name=name, unit=f"of {count}", ours=ours, samples={ours: [float(right)]}, targets=[at_least(count)])
        for name, right, count in figures
    ]


def collect(folder: Path) -> list[Judged]:
    """Run all applications on one cluster, and judge each pair of logs."""
    ended: dict[str, int] = {}
    with Hosts(HOSTS, total=None) as hosts:
        for ending in endings():
            began = time.monotonic()
            ended[ending.name] = sum(
                _run_application(hosts, ending, number, folder / ending.name) for number in range(APPLICATIONS)
            )
            print(f"{ending.name}: {time.monotonic() - began:.0f} s", flush=True)
    blamed = _blamed([folder / it.name for it in endings()])
    return [Judged(ending=it, ended=ended[it.name], blamed=own) for it, own in zip(endings(), blamed, strict=True)]


def _run_application(hosts: Hosts, ending: Ending, number: int, logs: Path) -> bool:
    """Run one application; return whether it failed."""
    register: Any = cloudpickle.register_pickle_by_value
    register(sys.modules[__name__])  # executors do not have this package
    spark = session(hosts, **event_log.conf(logs), spark__app__name=ending.name)
    try:
        wait_until(lambda: set(executor_hosts(spark)) == set(HOSTS), 90, "all executors")
        sc = spark.sparkContext
        numbers = sc.parallelize(range(TASKS), TASKS)
        numbers.mapPartitionsWithIndex(_task(ending.seed, None)).count()
        if ending.faulty:
            hosts.device(ending.faulty).unlink()
        work = numbers.mapPartitionsWithIndex(_task(ending.seed + 100 * number, ending.bug))
        return not _succeeds(lambda: work.map(lambda it: (it % 7, 1)).groupByKey(TASKS).count())
    finally:
        spark.stop()
        if ending.faulty:
            hosts.device(ending.faulty).touch()
        hosts.clear_disks()


def _succeeds(work: Callable[[], object]) -> bool:
    try:
        work()
    except Exception as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return False
    return True


def _task(seed: int, bug: str | None) -> Callable[[int, Iterable[int]], Iterable[int]]:
    def work(partition: int, numbers: Iterable[int]) -> Iterator[int]:
        # Spark gives a worker the folder of its executor's blocks: three levels below the local directory of the host.
        (Path(os.environ["SPARK_LOCAL_DIRS"]).parents[2] / "device").read_bytes()
        has_bug = {"every task": True, "some partitions": partition % 5 < 2, "one partition": partition == seed % TASKS}
        if bug and has_bug[bug]:
            raise ValueError("not a number: 'n/a'")
        time.sleep(random.Random(seed * TASKS + partition).uniform(0.8, 1.6))
        yield from numbers

    return work


def _blamed(folders: Sequence[Path]) -> list[frozenset[str]]:
    """The hosts that are named in each folder, by one process: in this one, Spark still has the cluster's settings."""
    command = [sys.executable, "-m", "benchmarks.detection_endings", *map(str, folders)]
    environment = os.environ | {"JAVA_HOME": str(java_home())}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [frozenset(hosts) for hosts in json.loads(done.stdout.splitlines()[-1])]


def _judge(folders: Sequence[str]) -> Iterator[list[str]]:
    from blocklist.detection.__main__ import main as detect  # noqa: PLC0415 - starts slowly

    for folder in folders:
        written = io.StringIO()
        with redirect_stdout(written):
            code = detect(["--event-logs", folder, "--json", "-"])
        if code:
            raise RuntimeError("the detection has failed: see its message above")
        yield [json.loads(line)["node"] for line in written.getvalue().splitlines()]


if __name__ == "__main__":
    print(json.dumps(list(_judge(sys.argv[1:]))))
