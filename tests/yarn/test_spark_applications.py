"""Spark applications on YARN obey, and none ends because of a block, whatever is on the list."""

from __future__ import annotations

import re
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from demo.cluster import spark_home
from tests.applications.application import JAR, TASKS, Installation, Kind
from tests.applications.compiling import compile_applications
from tests.applications.conftest import EVACUATE, Service
from tests.integration.bodies import now_ms
from tests.integration.process import wait_until
from tests.spark_versions import spark_with_jar
from tests.yarn.cluster import YarnCluster
from tests.yarn.jars import SPARK_JARS
from tests.yarn.scene import Scene
from tests.yarn.spark_on_yarn import CLIENT, CLUSTER, CLUSTER_WITHOUT_JAR, SparkOnYarn, YarnApplication

pytestmark = pytest.mark.timeout(1800)

W1, W2, W3 = HOSTS = ("w1.yarn.test", "w2.yarn.test", "w3.yarn.test")
NO_NODES: Final = [f"x{number}.other.test" for number in range(1_000)]
LONGER_THAN_REJECTED_ONES_LIVE: Final = 15.0
"""Seconds: when a driver rejects the executors on a host, YARN starts another one there every 7 s."""
EXECUTOR_MEGABYTES: Final = 2048
"""Of a container that takes so much of a node that no other such container fits there."""

EXCLUDING: Final = {
    "spark.excludeOnFailure.enabled": "true",
    "spark.excludeOnFailure.timeout": "1h",
    "spark.excludeOnFailure.application.maxFailedTasksPerExecutor": "1",
    "spark.excludeOnFailure.application.maxFailedExecutorsPerNode": "1",
}
DYNAMIC: Final = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "3",
    "spark.dynamicAllocation.executorIdleTimeout": "5s",
    # The first job need not wait for all executors.
    "spark.scheduler.minRegisteredResourcesRatio": "0",
}


@pytest.fixture(scope="module")
def compiled() -> Path:
    return compile_applications(spark_home())


Start = Callable[..., YarnApplication]


@pytest.fixture
def start(yarn: YarnCluster, compiled: Path, service: Service, tmp_path: Path) -> Iterator[Start]:
    cluster = SparkOnYarn(yarn)
    spark = Installation(home=spark_home(), applications=compiled, variables=cluster.variables)
    with ExitStack() as stack:

        def started(kind: Kind, *, home: Path | None = None, **settings: str | None) -> YarnApplication:
            own = replace(spark, home=home or spark.home)
            application = YarnApplication(kind, own, cluster, tmp_path / kind.name, service.url, settings)
            return stack.enter_context(application)

        yield started


def test_in_client_mode_with_a_fixed_number_of_executors(service: Service, start: Start, tmp_path: Path) -> None:
    """The jar is in the launcher's Spark alone, not in `spark.yarn.jars`, from which executors start."""
    block_no_nodes(service)
    service.put("W2")
    with_jar = spark_with_jar(spark_home(), JAR, tmp_path / "spark")
    application = start(CLIENT, home=with_jar, **{"spark.driver.extraClassPath": None})
    assert application.round().hosts == {W1, W3}, "blocked before the start, by its short name"
    service.await_listener()
    service.unblock("W2")
    application.await_use(*HOSTS)

    evacuate(service, application, W2)
    block_until_its_end(service, application, W3)
    lose_executors_of_a_blocked_host(service, application)
    block_all(service, application)
    ends_well(service, application)


@pytest.mark.long
def test_the_manager_reports_an_application_without_an_agent_until_it_ends(
    service: Service, start: Start, yarn: YarnCluster, tmp_path: Path
) -> None:
    """An application counts as running once its ApplicationMaster has registered; it needs no executor for that."""
    application = start(CLIENT, **DYNAMIC, **{"spark.plugins.defaultList": None})
    with Scene(tmp_path, service.process, yarn).manager():
        wait_until(lambda: service.agents() == {"scala (root)": "none"}, seconds=240)
        application.end()
        wait_until(lambda: not service.agents(), seconds=120)


@pytest.mark.long
@pytest.mark.parametrize("form", ["spark.yarn.jars", "spark.yarn.archive", "uploaded"])
def test_in_cluster_mode_the_jar_may_be_among_those_of_spark(
    service: Service, start: Start, tmp_path: Path, form: str
) -> None:
    """As docs/spark.md has it: no line of the job names the jar."""
    archive = tmp_path / "spark.zip"
    settings: dict[str, str | None] = {"spark.yarn.jars": None, "spark.executor.instances": "1"}
    if form == "spark.yarn.jars":
        settings["spark.yarn.jars"] = f"local:{SPARK_JARS}/*,file:{JAR}"
    elif form == "spark.yarn.archive":
        with zipfile.ZipFile(archive, "w") as jars:
            for jar in (*SPARK_JARS.glob("*.jar"), JAR):
                jars.write(jar, jar.name)
        settings["spark.yarn.archive"] = archive.as_uri()
    home = spark_with_jar(spark_home(), JAR, tmp_path / "spark") if form == "uploaded" else None
    application = start(CLUSTER_WITHOUT_JAR, home=home, **settings)
    assert application.round().number == TASKS
    service.await_listener()
    ends_well(service, application)


def test_in_cluster_mode_with_dynamic_allocation_and_findings_of_its_own(service: Service, start: Start) -> None:
    block_no_nodes(service)
    service.put(W2)
    settings = {**DYNAMIC, **EXCLUDING, "spark.blocklist.reportEvidence": "true"}
    application = start(CLUSTER, **settings)
    for _ in range(2):
        await_executors(service, application, up=True)
        assert not application.starts_on(W2)
        await_executors(service, application, up=False)
    service.unblock(W2)
    application.await_use(W2)

    fail_on(application, W3)
    wait_until(lambda: set(service.evidence()) == {W3})
    # While W1 has no executor, no other host is open, and the agent leaves the blocked one open: it refuses the block.
    service.put(W2)
    await_executors(service, application, up=False)
    wait_until(lambda: service.is_applied(W2))
    await_executors(service, application, up=True)
    application.await_use(W1)
    assert application.round().hosts == {W1}
    assert allocator_avoids(application) == {W3}, "Spark's own finding, and nothing of the list"
    ends_well(service, application)


@pytest.fixture
def preempting_yarn(yarn: YarnCluster) -> Iterator[YarnCluster]:
    yarn.set_preemption(on=True)
    yield yarn
    yarn.set_preemption(on=False)


def test_executors_that_are_preempted_blame_nobody(
    service: Service, preempting_yarn: YarnCluster, start: Start
) -> None:
    """An application has more than the share of its queue, and another queue takes its own back: twice on one host."""
    # Executors fill their nodes, so that there is no other place for the other queue.
    conf = {"spark.executor.memoryOverhead": f"{EXECUTOR_MEGABYTES - 512}m", "spark.task.maxFailures": "1000"}
    application = start(CLIENT, **conf, **{"spark.blocklist.reportEvidence": "true"})
    application.await_use(*HOSTS)
    [listener] = service.listeners()
    with other_queue(application, preempting_yarn) as host:
        assert application.round().hosts == set(HOSTS) - {host}
    application.await_use(host)
    started = len(application.starts_on(host))
    application.begin_round(waiting_on=host)
    wait_until(lambda: len(application.starts_on(host)) > started, seconds=240)
    with other_queue(application, preempting_yarn) as again:
        assert again == host, "YARN ends the newest container"
        assert application.result().hosts == set(HOSTS) - {host}
        assert "its executor exited for a reason unrelated to the task" in application.log()
    assert len(re.findall(r"Completed container .*exit status: -102", application.log())) == 2
    assert preempting_yarn.rest().application(listener)["numNonAMContainerPreempted"] == 2
    assert service.evidence() == {}
    bad = next(it for it in HOSTS if it != host)

    def reported() -> bool:
        """The same application reports a host that is at fault, so it has reported all the time."""
        fail_on(application, bad)
        return bool(service.evidence())

    wait_until(reported, seconds=240)
    assert set(service.evidence()) == {bad}
    ends_well(service, application)


def block_no_nodes(service: Service) -> None:
    """Names that are no nodes of the cluster, more than it has nodes."""
    service.put(*NO_NODES)


def evacuate(service: Service, application: YarnApplication, host: str) -> None:
    started = len(application.starts_on(host))
    application.begin_round(waiting_on=host)
    wait_until(lambda: len(application.starts_on(host)) > started, seconds=240)
    service.block(host, EVACUATE)
    assert application.result().hosts == set(HOSTS) - {host}
    wait_until(lambda: [manager["runningTasks"] for manager in task_managers(service, host)] == [0])
    service.unblock(host)
    application.await_use(host)


def block_until_its_end(service: Service, application: YarnApplication, host: str) -> None:
    end = now_ms() + 5_000
    body = {"action": "MARK_BLOCKED", "cause": "test", "endTimestamp": str(end)}
    answer = service.client.put(f"/blocklist/nodes/{host}", json=body, headers={"Prefer": "wait=30"})
    assert answer.headers["blocklist-applied"] == "1/1"
    applied = now_ms()
    application.await_use(host)
    assert not [at for at in application.starts_on(host) if applied < at < end]


def lose_executors_of_a_blocked_host(service: Service, application: YarnApplication) -> None:
    """YARN starts another executor there, which the driver must not reject: it is idle until the host is free."""
    service.block(W2)
    [before] = task_managers(service, W2)
    starts = len(application.starts_on(W2))
    application.lose_executor(W2)
    wait_until(lambda: {manager["id"] for manager in task_managers(service, W2)} - {before["id"]} != set(), seconds=240)
    [executor], began = application.executors(W2), time.monotonic()
    while time.monotonic() - began < LONGER_THAN_REJECTED_ONES_LIVE:
        assert application.round().hosts == {W1, W3}
    assert application.executors(W2) == [executor], "it was not rejected"
    assert len(application.starts_on(W2)) == starts
    service.unblock(W2)
    application.await_use(W2)


def block_all(service: Service, application: YarnApplication) -> None:
    """The weakest block gives way."""
    service.block(W1, EVACUATE)
    service.block(W2, EVACUATE)
    service.put(W3)
    wait_until(lambda: "stays open" in service.refused(W3))
    assert application.round().hosts == {W3}
    assert not service.is_applied(W3)
    for host in HOSTS:
        service.unblock(host)
    application.await_use(*HOSTS)


@contextmanager
def other_queue(application: YarnApplication, yarn: YarnCluster) -> Iterator[str]:
    """Another queue takes the place of an executor; the host of that."""

    def preempted() -> list[str]:
        return re.findall(r"Lost executor \S+ on (\S+): Container .* was preempted", application.log())

    before = len(preempted())
    other = yarn.rest().submit(megabytes=EXECUTOR_MEGABYTES, queue="other")
    try:
        wait_until(lambda: len(preempted()) > before, seconds=240)
        wait_until(lambda: yarn.rest().application(other)["runningContainers"] == 1, seconds=240)
        assert len(preempted()) == before + 1
        yield preempted()[-1]
    finally:
        yarn.rest().kill_application(other)


def fail_on(application: YarnApplication, host: str) -> None:
    """Let tasks fail on the host; dynamic allocation may have no executor there in the first rounds."""

    def tasks_failed() -> bool:
        before = len(application.starts_on(host))
        application.send(f"fail {host}")
        assert application.result().number == TASKS
        return len(application.starts_on(host)) > before

    wait_until(tasks_failed, seconds=240)


def await_executors(service: Service, application: YarnApplication, *, up: bool) -> None:
    """Dynamic allocation has added some, or has removed all."""
    if up:
        assert application.round().number == TASKS
    wait_until(lambda: any(map(application.executors, HOSTS)) == up, seconds=240)


def ends_well(service: Service, application: YarnApplication) -> None:
    application.end()
    wait_until(lambda: not service.listeners())
    assert "Executor is excluded" not in application.log()


def task_managers(service: Service, node: str) -> list[dict[str, object]]:
    [listener] = service.client.get(f"/blocklist/nodes/{node}/status").json()["listeners"]
    found: list[dict[str, object]] = listener["taskManagers"]
    return found


def allocator_avoids(application: YarnApplication) -> set[str]:
    """The nodes that YARN's allocator has been told to avoid, by the log of the ApplicationMaster."""
    found = re.findall(
        r"adding nodes to YARN application master's excluded node list: List\(([^)]*)\)", application.log()
    )
    return {name for names in found for name in names.split(", ") if name}
