"""A Spark job on YARN in client mode: how long after the response to a PUT its last task starts on the node.

The rows are part of the benchmark of YARN, which starts the cluster. The starts are in the log of Spark's scheduler.
"""

import time
from pathlib import Path

from benchmarks.harness import unless_quick
from benchmarks.rows import Row, at_most
from blocklist import BlockAction, BlocklistClient
from demo.cluster import spark_home
from tests.applications.application import Installation
from tests.applications.compiling import compile_applications
from tests.yarn.cluster import YarnCluster
from tests.yarn.spark_on_yarn import CLIENT, SparkOnYarn, YarnApplication

OURS = "with the agent"
BLOCKS = unless_quick(10, 2)
EVACUATIONS = unless_quick(3, 1)  # The agent leaves a host alone that has been evacuated three times within a minute.
OBSERVE_SECONDS = 0.5
TASKS = 300
TASK_MILLIS = 20


def rows(yarn: YarnCluster, client: BlocklistClient, url: str, folder: Path) -> list[Row]:
    """Measure on the second node; `url` is the service's, to which `client` belongs. The job ends before it returns."""
    host, others = yarn.nodes[1], [node for node in yarn.nodes if node != yarn.nodes[1]]
    cluster = SparkOnYarn(yarn)
    compiled = compile_applications(spark_home())
    spark = Installation(home=spark_home(), applications=compiled, variables=cluster.variables)
    with YarnApplication(CLIENT, spark, cluster, folder / "application", url, {}) as application:
        application.await_use(*yarn.nodes)
        last = [_last_start(application, client, host) for _ in range(BLOCKS)]
        moved = [_evacuated(application, client, host, others) for _ in range(EVACUATIONS)]
        application.end()
    name = "Spark on YARN: last task start on the node, after the response"
    evacuated = "Spark on YARN: evacuation, until all its tasks run elsewhere"
    return [
        Row(name=name, unit="ms", ours=OURS, samples={OURS: last}, targets=[at_most(100)]),
        Row(name=evacuated, unit="ms", ours=OURS, samples={OURS: moved}),
    ]


def _last_start(application: YarnApplication, client: BlocklistClient, host: str) -> float:
    """Block the node while short tasks run on it; 1 if none has started after the response."""
    application.send(f"tiny {TASKS} {TASK_MILLIS}")
    time.sleep(OBSERVE_SECONDS)
    busy = len(application.starts_on(host))
    client.block(host, "benchmark")
    answered = time.time() * 1000
    application.result()
    later = application.starts_on(host)[busy:]
    client.unblock(host)
    application.await_use(host)
    return max(1.0, max(later, default=0) - answered)


def _evacuated(application: YarnApplication, client: BlocklistClient, host: str, others: list[str]) -> float:
    """Evacuate the node when only the tasks on it are left, which take ten minutes there."""
    application.begin_round(waiting_on=host)
    time.sleep(4 * OBSERVE_SECONDS)
    before = len(application.starts_on(*others))
    client.block(host, "benchmark", action=BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS)
    answered = time.time() * 1000
    application.result()
    moved = application.starts_on(*others)[before:]
    client.unblock(host)
    application.await_use(host)
    if not moved:
        raise RuntimeError("no task was evacuated, so nothing was measured")
    return max(moved) - answered
