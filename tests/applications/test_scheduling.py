"""Settings and stages that schedule tasks in ways of their own: the agent does no harm, and reports the truth."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from demo.cluster import Cluster
from tests.applications.application import TASKS, Application, Round
from tests.applications.conftest import EVACUATE, A, B, C, Service, StartApplication
from tests.applications.kinds import JAVA, SCALA
from tests.integration.process import wait_until

pytestmark = pytest.mark.timeout(600)
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
    with only_b(cluster):
        application = start(SCALA, **conf)
        for _ in range(2):
            begun = len(application.starts_on(B))
            assert application.round() == Round(number=TASKS, hosts=frozenset({B}))
            registered = registrations(application)
            assert application.starts_on(B)[begun] - registered[-1] >= 4_500
            wait_until(lambda: not executors(cluster))
        application.end()


def test_a_block_of_the_only_host_just_after_it_joined_does_not_count_as_applied(
    service: Service, start: StartApplication, cluster: Cluster
) -> None:
    """It gets no task for five seconds, because other hosts may join; then it is opened, as the last one."""
    with only_b(cluster):
        application = start(JAVA)
        service.await_listener()
        wait_until(lambda: len(registrations(application)) == 1)
        [registered] = registrations(application)
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


@contextmanager
def only_b(cluster: Cluster) -> Iterator[None]:
    """The other workers are dead; afterwards they are back."""
    for host in (A, C):
        cluster.kill_worker(host)
    try:
        yield
    finally:
        cluster.start_workers(A, C)


def registrations(application: Application) -> list[int]:
    """When executors have registered, in Unix ms."""
    return [int(at) for at in re.findall(r"(\d{13}) INFO .*Registered executor", application.log())]


@pytest.mark.parametrize("master", ["local[*]", pytest.param("local-cluster[2,2,1024]", marks=pytest.mark.long)])
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
