"""Time until a block is in force in Spark, and the overhead of the agent in a job of tiny tasks."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import systems
from benchmarks.harness import CORES, GENERATOR_CORE, in_background, scratch, unless_quick
from benchmarks.rows import Row, Target
from blocklist import BlockAction, BlockedNode, BlocklistClient
from blocklist.model.node import PERMANENT
from blocklist.spark import BlocklistAgent
from demo import event_log
from demo.cluster import Cluster, session, wait_until
from demo.job import LIVE_STATUS, running_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OURS, WITH_AGENT, WITH_EVIDENCE, WITHOUT_AGENT = "blocklist", "with the agent", "with evidence", "without"
HOST = "127.0.0.3"
BLOCKS = unless_quick(20, 3)
RESOLUTION = 1.0  # milliseconds: Spark's times are integers
OBSERVE_SECONDS = 0.3  # seconds before each next step
TASKS = 10_000
ROUNDS = unless_quick(15, 2)
WARM_UP = 3
OTHER_NODES = 100  # blocked nodes that are not hosts of the job
# A task of 5 ms in the JVM: the start of the last one shows when the block was in force.
SHORT_TASK = "reflect('java.lang.Thread', 'sleep', 5L) = 'null'"


def run() -> list[Row]:
    """Return all rows, on one cluster; its processes may use all cores."""
    os.sched_setaffinity(0, CORES)
    try:
        with scratch() as folder, ExitStack() as stack:
            url = stack.enter_context(systems.service(folder / "service")).url
            cluster = stack.enter_context(Cluster())
            client = stack.enter_context(BlocklistClient(url))
            return [*_latency(cluster, client, folder / "events"), _throughput(cluster, client)]
    finally:
        os.sched_setaffinity(0, {GENERATOR_CORE})


def _latency(cluster: Cluster, client: BlocklistClient, record: Path) -> list[Row]:
    spark = session(cluster, **LIVE_STATUS, **event_log.conf(record))
    with BlocklistAgent.start(spark, client.url), in_background(partial(_short_tasks, spark)):
        blocks = [_block(client, spark) for _ in range(BLOCKS + 1)][1:]
    spark.stop()
    starts = [attempt.start for attempt in event_log.attempts(record) if attempt.host == HOST]
    last = [max(RESOLUTION, _last_start(starts, block) - block.answered) for block in blocks]
    held = event_log.exclusions(record, HOST)[1:]
    delays = [excluded_at - block.sent for excluded_at, block in zip(held, blocks, strict=True)]
    name = "last task start on the host, after the response"
    target = Target(peer=None, factor=100, at_least=False)
    return [
        Row(name=name, unit="ms", ours=OURS, samples={OURS: last}, targets=[target]),
        Row(name="exclusion in Spark, after the request", unit="ms", ours=OURS, samples={OURS: delays}),
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockTimes:
    """Unix ms at which the host runs tasks, the PUT is sent, its response arrives, and the host is freed."""

    busy: float
    sent: float
    answered: float
    freed: float


def _block(client: BlocklistClient, spark: "SparkSession") -> BlockTimes:
    """Block the busy host for a while."""
    wait_until(lambda: running_tasks(spark)[HOST] > 0, 60, "tasks on the host")
    busy = _now()
    time.sleep(OBSERVE_SECONDS)
    sent = _now()
    client.block(HOST, "benchmark")
    answered = _now()
    wait_until(lambda: running_tasks(spark)[HOST] == 0, 60, "no tasks on the host")
    time.sleep(OBSERVE_SECONDS)
    freed = _now()
    client.unblock(HOST)
    return BlockTimes(busy=busy, sent=sent, answered=answered, freed=freed)


def _last_start(starts: list[int], block: BlockTimes) -> int:
    """Return when the last task started before the host was freed."""
    starts_while_blocked = [start for start in starts if block.busy <= start < block.freed]
    if not starts_while_blocked:
        raise RuntimeError(f"no task started on {HOST} before its block, so nothing was measured")
    return max(starts_while_blocked)


def _now() -> float:
    return time.time() * 1000


def _short_tasks(spark: "SparkSession", done: threading.Event) -> None:
    """Keep all hosts busy until the event is set."""
    while not done.is_set():
        spark.range(0, TASKS, 1, TASKS).where(SHORT_TASK).collect()


def _throughput(cluster: Cluster, client: BlocklistClient) -> Row:
    """Sample in one application, in both orders in turn; starting and stopping the agent does not count."""
    others = [
        f"203.0.113.{number}" for number in range(OTHER_NODES)
    ]  # documentation addresses, which need no name server
    client.block_many(_blocked(node_id) for node_id in others)
    spark = session(cluster)
    rate = partial(_rate, spark)
    contenders: dict[str, Callable[[], float]] = {
        WITH_AGENT: partial(_with_agent, spark, client.url),
        WITH_EVIDENCE: partial(_with_agent, spark, client.url, evidence=True),
        WITHOUT_AGENT: rate,
    }
    for _ in range(WARM_UP):
        rate()
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(ROUNDS):
        for name in sorted(contenders, reverse=bool(number % 2)):
            samples[name].append(contenders[name]())
    spark.stop()
    target = Target(peer=WITHOUT_AGENT, factor=0.97)
    return Row(
        name=f"a job of {TASKS:,} tiny tasks", unit="tasks/s", ours=WITH_AGENT, samples=samples, targets=[target]
    )


def _blocked(node_id: str) -> BlockedNode:
    return BlockedNode(id=node_id, action=BlockAction.MARK_BLOCKED, start=0, end=PERMANENT, cause="benchmark")


def _with_agent(spark: "SparkSession", url: str, *, evidence: bool = False) -> float:
    with BlocklistAgent.start(spark, url, report_evidence=evidence) as agent:
        if agent.status().revision is None:
            raise RuntimeError(f"the agent has no list: {agent.status()}")
        return _rate(spark)


def _rate(spark: "SparkSession") -> float:
    """Tasks per second of a job whose tasks do almost nothing, without Python."""
    numbers = spark.sparkContext._jsc.sc().range(0, TASKS, 1, TASKS)  # noqa: SLF001
    began = time.perf_counter()
    if numbers.count() != TASKS:
        raise RuntimeError("the job's result is wrong")
    return TASKS / (time.perf_counter() - began)
