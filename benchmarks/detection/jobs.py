"""The applications: Python on RDDs, so that a task's time is mostly its own work."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark import cloudpickle

from benchmarks.detection.scenarios import HOSTS, Application

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.core.rdd import RDD

Pair = tuple[int, int]
_ROUNDS: Final = 3  # of the iterative kind
_KEYS: Final = 4000
_BUSY_SECONDS: Final = 2.0  # seconds for which half of the hosts are busy while the others fill their cache


def write_input(folder: Path, application: Application, seed: int) -> None:
    """Write a file for each task of the first stages: a key and a number per line."""
    draw = random.Random(seed)
    folder.mkdir(parents=True)
    for number, count in enumerate(application.files):
        lines = (f"{_key(draw, application.hot)} {draw.getrandbits(30)}\n" for _ in range(count))
        (folder / f"part-{number:03d}").write_text("".join(lines), encoding="ascii")


def _key(draw: random.Random, hot: float) -> int:
    return 0 if draw.random() < hot else draw.randrange(_KEYS)


def warm_up(sc: SparkContext, folder: Path) -> None:
    """Run a small job with input and a shuffle, which starts Python and loads classes on all hosts."""
    register: Any = cloudpickle.register_pickle_by_value
    register(sys.modules[__name__])  # executors do not have this package
    pairs = sc.textFile(folder.as_uri(), 1).map(_parser(20)).reduceByKey(add, 2 * len(HOSTS))
    pairs.mapPartitions(_sleep_first).count()


def _sleep_first(pairs: Iterable[Pair]) -> Iterator[Pair]:
    time.sleep(0.1)  # so that one host does not run all of them
    yield from pairs


def perform(sc: SparkContext, folder: Path, application: Application) -> None:
    """Run the application's jobs. Raises Spark's error if one fails."""
    lines = sc.textFile(folder.as_uri(), 1).mapPartitions(_with_device)
    if application.trouble in ("flaky", "broken"):
        lines = lines.mapPartitionsWithIndex(_thrower(application.trouble))
    KINDS[application.kind](sc, lines.map(_parser(application.work)), application)


def _with_device(lines: Iterable[str]) -> Iterable[str]:
    """Read the device of the host, as a task that uses a GPU does. Raises OSError if it is missing."""
    # Spark gives a worker the folder of its executor's blocks: three levels below the local directory of the host.
    (Path(os.environ["SPARK_LOCAL_DIRS"]).parents[2] / "device").read_bytes()
    return lines


def _parser(work: int) -> Callable[[str], Pair]:
    """Return a function that parses a line and does `work` steps of arithmetic."""

    def parse(line: str) -> Pair:
        key, text = line.split()
        value = int(text)
        for _ in range(work):
            value = (value * 1103515245 + 12345) & 0x3FFFFFFF
        return int(key), value

    return parse


def _worker(work: int) -> Callable[[Pair], Pair]:
    def spend(pair: Pair) -> Pair:
        key, value = pair
        for _ in range(work):
            value = (value * 1103515245 + 12345) & 0x3FFFFFFF
        return key, value

    return spend


def _modulo(keys: int) -> Callable[[Pair], Pair]:
    return lambda pair: (pair[0] % keys, pair[1])


def _thrower(trouble: str) -> Callable[[int, Iterable[str]], Iterable[str]]:
    """Return a function that fails: in every seventh task on its first attempt, or in one task always."""

    def read(number: int, lines: Iterable[str]) -> Iterator[str]:
        from pyspark import TaskContext  # noqa: PLC0415 - runs in a task

        context = TaskContext.get()
        if trouble == "broken":
            bad = number == 3
        else:
            bad = number % 7 == 3 and context is not None and context.attemptNumber() == 0
        for place, line in enumerate(lines):
            if bad and place == 100:
                raise ValueError(f"not a number: {line!r}")
            yield line

    return read


def _sort(_sc: SparkContext, pairs: RDD[Pair], application: Application) -> None:
    turned = pairs.map(lambda pair: (pair[1], pair[0]))
    ordered: RDD[Pair] = turned.sortByKey(numPartitions=application.reducers)
    ordered.map(_worker(application.work)).count()


def _join(sc: SparkContext, pairs: RDD[Pair], application: Application) -> None:
    names = sc.parallelize(range(_KEYS), application.reducers).map(lambda key: (key, key % 97))
    joined = pairs.join(names, application.reducers).map(lambda row: (row[1][1], row[1][0]))
    joined.map(_worker(application.work)).reduceByKey(add, application.reducers).map(_worker(20)).count()


def _aggregate(_sc: SparkContext, pairs: RDD[Pair], application: Application) -> None:
    sums = pairs.reduceByKey(add, application.reducers).map(_worker(application.work))
    groups = sums.map(lambda pair: (pair[0] % 600, pair[1])).groupByKey(application.reducers)
    groups.flatMap(lambda row: [(row[0] % 50, value) for value in sorted(row[1])]).map(
        _worker(application.work)
    ).reduceByKey(add, application.reducers).count()


def _iterate(sc: SparkContext, pairs: RDD[Pair], application: Application) -> None:
    points = pairs.cache()
    if application.trouble == "half-cached":
        _fill_half(sc, points)
    for number in range(_ROUNDS):
        moved = points.map(_worker(application.work)).map(_modulo(20 + number))
        moved.reduceByKey(add, application.reducers).count()


def _fill_half(sc: SparkContext, points: RDD[Pair]) -> None:
    """Cache half of the partitions on half of the hosts: the other hosts are kept busy meanwhile."""
    half = len(HOSTS) // 2
    busy = sc.parallelize(range(half), half)
    other = threading.Thread(target=lambda: busy.foreach(lambda _: time.sleep(_BUSY_SECONDS)))
    other.start()
    time.sleep(0.3)  # the sleeping tasks must be placed first
    sc.runJob(points, lambda rows: [sum(1 for _ in rows)], range(points.getNumPartitions() // 2))
    other.join()


KINDS: Final[dict[str, Callable[[SparkContext, RDD[Pair], Application], None]]] = {
    "sort": _sort,
    "join": _join,
    "aggregate": _aggregate,
    "iterate": _iterate,
}
