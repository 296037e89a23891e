"""An application that tolerates neither a failed task nor a slow one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from blocklist import BlocklistClient
from demo.cluster import Cluster, wait_until
from tests.acceptance.conftest import (
    EVACUATE,
    A,
    Applications,
    B,
    C,
    ListenerApi,
    StartAgent,
    await_registration,
)
from tests.acceptance.jobs import SPECULATING, Job, slow_on, used_hosts
from tests.acceptance.test_service_failures import forwarding
from tests.integration.process import free_port

# One failed task fails the job.
INTOLERANT: Final = {**SPECULATING, "spark__task__maxFailures": 1}


def test_a_job_that_tolerates_no_failure_survives_all_actions(
    applications: Applications, cluster: Cluster, service: BlocklistClient, start_agent: StartAgent
) -> None:
    spark = applications.get(**INTOLERANT)
    agent = start_agent(spark)
    job = Job(spark, cluster, 24, hold_on=(A, B, C))
    wait_until(lambda: len(job.starts()) == 6, 60, "all slots to be taken")
    for host in (A, B, C):
        service.block(host, "test", action=EVACUATE)
    wait_until(lambda: len(agent.status().blocked) == 2 and len(agent.status().refused) == 1, 90, "all blocks")
    job.release()
    job.hosts()
    assert len(used_hosts(spark, cluster)) == 1


def test_a_host_whose_tasks_are_speculated_is_slow(
    applications: Applications,
    cluster: Cluster,
    start_agent: StartAgent,
    service: BlocklistClient,
    reason: Callable[[str], str],
) -> None:
    spark = applications.get(**INTOLERANT)
    start_agent(spark, report_evidence=True)

    def known() -> bool:
        # Two slots give at most two tasks, and one stage is not sufficient.
        slow_on(spark, cluster, B)
        return "Spark speculated" in reason(B)

    wait_until(known, 120, "the slow host")
    assert service.snapshot().nodes == {}


def test_an_agent_deregisters_although_the_application_has_ended_meanwhile(
    applications: Applications, service: BlocklistClient, start_agent: StartAgent, listeners: ListenerApi
) -> None:
    """A heartbeat is under way when the application ends; the agent deregisters when there is no scheduler any more.

    It is the last test: another one would have to start the application again.
    """
    spark = applications.get(**INTOLERANT)
    held, free = threading.Event(), threading.Event()

    def hold(data: bytes) -> None:
        if b"/heartbeat" in data and service.snapshot().nodes:
            held.set()
            free.wait(60)

    with forwarding(port := free_port(), service.url, on_data=hold):
        agent = start_agent(spark, url=f"http://127.0.0.1:{port}")
        await_registration(agent)
        service.block(B, "test")
        assert held.wait(30)
        applications.stop()
        free.set()
        wait_until(lambda: not listeners.by_id(), 90, "the end of the registration")
