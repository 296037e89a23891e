"""Settings and stages that schedule tasks in ways of their own: the agent does no harm, and reports the truth."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from pathlib import Path
from typing import Final

import pytest

from demo.cluster import Cluster
from tests.applications.application import TASKS, Application, Round
from tests.applications.conftest import EVACUATE, HOSTS, MARK, A, B, C, Service, StartApplication
from tests.applications.kinds import JAVA, SCALA
from tests.integration.process import wait_until

pytestmark = [pytest.mark.xdist_group("applications"), pytest.mark.timeout(600)]
_EXECUTOR: Final = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


def test_with_dynamic_allocation_new_executors_on_a_blocked_host_get_no_task(
    service: Service, start: StartApplication, cluster: Cluster
) -> None:
    service.put(B)
    conf = {
        "spark__dynamicAllocation__enabled": "true",
        "spark__dynamicAllocation__shuffleTracking__enabled": "true",
        "spark__dynamicAllocation__minExecutors": "0",
        "spark__dynamicAllocation__executorIdleTimeout": "1s",
    }
    application = start(SCALA, **conf)
    assert application.round().hosts <= {A, C}
    service.await_listener()
    # All executors are idle and are removed; later ones come anew.
    wait_until(lambda: not executors(cluster))
    assert application.round().hosts <= {A, C}
    assert not application.starts_on(B)
    service.unblock(B)

    def used_again() -> bool:
        # Spark asks for more executors once tasks have waited for a second.
        application.send("tiny 48 500")
        application.result()
        return bool(application.starts_on(B))

    wait_until(used_again, seconds=120)
    application.end()
    wait_until(lambda: not service.listeners())


def test_a_blocked_host_that_returns_first_waits_for_others(
    service: Service, start: StartApplication, cluster: Cluster
) -> None:
    """Spark knows an executor that it has killed for a while: a host that has only such a one is not known for long."""
    service.put(B)
    conf = {
        "spark__dynamicAllocation__enabled": "true",
        "spark__dynamicAllocation__shuffleTracking__enabled": "true",
        "spark__dynamicAllocation__minExecutors": "0",
        "spark__dynamicAllocation__executorIdleTimeout": "1s",
        "spark__standalone__executorRemoveDelayOnDisconnection": "60s",
    }
    for host in (A, C):
        cluster.kill_worker(host)
    try:
        application = start(SCALA, **conf)
        for _ in range(2):
            begun = len(application.starts_on(B))
            assert application.round() == Round(number=TASKS, hosts=frozenset({B}))
            registered = [int(at) for at in re.findall(r"(\d{13}) INFO .*Registered executor", application.log())]
            assert application.starts_on(B)[begun] - registered[-1] >= 4_500
            wait_until(lambda: not executors(cluster))
        application.end()
    finally:
        for host in (A, C):
            cluster.start_worker(host)


def test_a_block_of_the_only_host_just_after_it_joined_does_not_count_as_applied(
    service: Service, start: StartApplication, cluster: Cluster
) -> None:
    """It gets no task for five seconds, because other hosts may join; then it is opened, as the last one."""
    for host in (A, C):
        cluster.kill_worker(host)
    try:
        application = start(JAVA)
        service.await_listener()
        [registered] = await_registrations(application, 1)
        wait_until(lambda: time.time() * 1000 >= registered + 2000)
        body = {"action": "MARK_BLOCKED", "cause": "test"}
        answer = service.client.put(f"/blocklist/nodes/{B}", json=body, headers={"Prefer": "wait=30"})
        assert (answer.headers["blocklist-applied"], answer.headers["blocklist-refused"]) == (
            "0/1",
            *service.listeners(),
        )
        assert service.refused(B).startswith(f"Host {B} ")
        assert application.round().hosts == {B}
        assert not service.is_applied(B)
        wait_until(lambda: "stays open" in service.refused(B))
        application.end()
    finally:
        for host in (A, C):
            cluster.start_worker(host)


def await_registrations(application: Application, count: int) -> list[int]:
    """When so many executors have registered, in Unix ms."""

    def found() -> list[int]:
        return [int(at) for at in re.findall(r"(\d{13}) INFO .*Registered executor", application.log())]

    wait_until(lambda: len(found()) >= count)
    return found()


def test_when_the_last_open_host_is_decommissioned_a_blocked_one_is_opened(
    service: Service, start: StartApplication, cluster: Cluster
) -> None:
    application = start(JAVA, spark__decommission__enabled="true", spark__storage__decommission__enabled="true")
    application.await_use(*HOSTS)
    service.await_listener()
    service.block(A, EVACUATE)
    service.block(B, MARK)
    assert application.round().hosts == {C}
    application.begin_round()
    [executor] = executors(cluster, C)
    os.kill(executor, signal.SIGPWR)
    assert application.result().number == TASKS
    wait_until(lambda: executor not in executors(cluster, C))
    assert application.round().number == TASKS
    assert not set(application.round().hosts) & {A}, "the weakest block gives way first"
    application.end()


def test_speculative_copies_avoid_a_blocked_host(service: Service, start: StartApplication) -> None:
    application = start(
        JAVA,
        spark__speculation="true",
        spark__speculation__quantile="0.3",
        spark__speculation__interval="50ms",
        spark__speculation__minTaskRuntime="500ms",
    )
    application.await_use(*HOSTS)
    service.await_listener()
    service.block(A)
    started = len(application.starts_on(A))
    # The tasks on B never end: only their copies do.
    result = application.round(waiting_on=B)
    assert result == Round(number=TASKS, hosts=frozenset({C}))
    assert len(application.starts_on(A)) == started
    application.end()


@pytest.mark.parametrize("master", ["local[*]", "local-cluster[2,2,1024]"])
def test_the_only_host_of_an_application_stays_open_and_is_reported_as_refused(
    master: str, service: Service, start: StartApplication
) -> None:
    application = start(JAVA, spark__master=master)
    assert application.round().number == TASKS
    [host] = application.used_hosts()
    service.await_listener()
    service.put(host, action=EVACUATE)
    wait_until(lambda: bool(service.refused(host)))
    assert not service.is_applied(host)
    assert application.round().number == TASKS
    application.end()


def test_a_barrier_stage_that_runs_is_not_harmed_by_an_evacuation_which_is_reported(
    service: Service, start: StartApplication
) -> None:
    application = start(SCALA)
    application.await_use(*HOSTS)
    service.await_listener()
    started = len(application.starts_on(B))
    application.send("barrier 6 5000")
    wait_until(lambda: len(application.starts_on(B)) > started)
    service.put(B, action=EVACUATE)
    wait_until(lambda: bool(service.refused(B)))
    assert application.result().number == 6
    assert application.round().hosts <= {A, C}
    application.end()


def test_a_barrier_job_that_needs_more_slots_than_are_open_opens_the_weakest_host(
    service: Service, start: StartApplication
) -> None:
    application = start(SCALA)
    application.await_use(*HOSTS)
    service.await_listener()
    service.block(A, EVACUATE)
    service.block(B, MARK)
    application.send("barrier 4 50")
    result = application.result()
    assert result == Round(number=4, hosts=frozenset({B, C}))
    wait_until(lambda: application.round().hosts == {C})
    application.end()


def test_an_evacuation_is_a_mark_for_continuous_streaming_and_is_reported(
    service: Service, start: StartApplication
) -> None:
    application = start(SCALA)
    application.await_use(*HOSTS)
    service.await_listener()
    application.send("stream")
    application.result()
    wait_until(lambda: streams(application))
    service.put(*HOSTS[:2], action=EVACUATE)
    wait_until(lambda: bool(service.refused(A) or service.refused(B)))
    assert streams(application)
    assert application.round().hosts == {C}
    application.end()


def test_a_driver_short_of_memory_survives_a_long_list(service: Service, start: StartApplication) -> None:
    application = start(SCALA)
    application.await_use(*HOSTS)
    service.await_listener()
    application.send("fill 40")
    assert application.result().number > 0
    nodes = [f"node-{number:05}.rack-{number % 50}.example.test" for number in range(5_000)]
    for first in range(0, len(nodes), 1_000):
        service.put(*nodes[first : first + 1_000])
    service.put(B)
    assert application.round().number == TASKS
    application.send("fill 100000")
    application.result()
    # Whatever failed for lack of memory is made up for.
    wait_until(lambda: application.round().hosts <= {A, C}, seconds=90)
    wait_until(lambda: service.is_applied(B))
    application.end()


def test_while_no_name_can_be_looked_up_the_job_runs_and_what_is_not_known_is_reported(
    service: Service, start: StartApplication, tmp_path: Path
) -> None:
    """Java reads the file of names for each lookup: here it is a pipe that nobody writes to."""
    names, pipe = tmp_path / "names", tmp_path / "pipe"
    names.write_text(f"127.0.0.1 localhost {socket.gethostname()}\n")
    os.mkfifo(pipe)
    conf = {
        "spark__driver__defaultJavaOptions": f"-Djdk.net.hosts.file={names}",
        "spark__dynamicAllocation__enabled": "true",
        "spark__dynamicAllocation__shuffleTracking__enabled": "true",
        "spark__dynamicAllocation__minExecutors": "0",
    }
    service.put(B, "a-name")
    application = start(SCALA, **conf)
    service.await_listener()
    pipe.rename(names)
    result = application.round()
    assert result.number == TASKS
    assert result.hosts <= {A, C}
    wait_until(lambda: "addresses are not known" in service.refused("a-name"))
    assert not service.is_applied("a-name")
    assert not service.refused(B)
    assert application.round().hosts <= {A, C}
    application.end()


def streams(application: Application) -> bool:
    """Whether the streaming query makes progress."""
    application.send("streaming")
    return application.result().number == 1


def executors(cluster: Cluster, host: str = "") -> list[int]:
    """The ids of the cluster's executor processes, on a host or on all."""
    folder, option = str(cluster.folder), f"--hostname\0{host}\0" if host else ""
    lines = {int(process.name): _command_line(process) for process in Path("/proc").glob("[0-9]*")}
    return [pid for pid, line in lines.items() if _EXECUTOR in line and folder in line and option in line]


def _command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_text(errors="replace")
    except OSError:
        return ""
