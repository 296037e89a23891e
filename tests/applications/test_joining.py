"""Hosts that join one after the other: the first one waits for others, and is opened as the last one."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from demo.cluster import Cluster
from tests.applications.application import TASKS, Application, Round
from tests.applications.conftest import A, B, C, Service, StartApplication
from tests.applications.kinds import JAVA, SCALA
from tests.applications.test_scheduling import DYNAMIC, executors
from tests.integration.process import wait_until

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module", autouse=True)
def only_b(cluster: Cluster) -> Iterator[None]:
    """The other workers are dead; afterwards they are back."""
    for host in (A, C):
        cluster.kill_worker(host)
    yield
    cluster.start_workers(A, C)


def test_a_blocked_host_that_returns_first_waits_for_others(
    service: Service, start: StartApplication, cluster: Cluster
) -> None:
    """Spark knows an executor that it has killed for a while: a host with only such a one is not known for long."""
    service.put(B)
    application = start(SCALA, spark__standalone__executorRemoveDelayOnDisconnection="60s", **DYNAMIC)
    for _ in range(2):
        begun = len(application.starts_on(B))
        assert application.round() == Round(number=TASKS, hosts=frozenset({B}))
        registered = registrations(application)
        assert application.starts_on(B)[begun] - registered[-1] >= 4_500
        wait_until(lambda: not executors(cluster))
    application.end()


def test_a_block_of_the_only_host_just_after_it_joined_does_not_count_as_applied(
    service: Service, start: StartApplication
) -> None:
    """It gets no task for five seconds, because other hosts may join; then it is opened, as the last one."""
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


def registrations(application: Application) -> list[int]:
    """When executors have registered, in Unix ms."""
    return [int(at) for at in re.findall(r"(\d{13}) INFO .*Registered executor", application.log())]
