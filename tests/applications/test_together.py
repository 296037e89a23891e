"""Rules that one running application shows, one after the other: they need no start of their own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Final

import pytest

from demo.cluster import Cluster
from tests.applications.application import LISTENER, TASKS, Application, Installation, Round, obeying
from tests.applications.conftest import EVACUATE, HOSTS, MARK, A, B, C, Service
from tests.applications.jobs import count_cached
from tests.applications.kinds import SCALA
from tests.applications.test_scheduling import executors
from tests.integration.process import ServiceProcess, wait_until

pytestmark = pytest.mark.timeout(600)
LOCALITY_WAIT: Final = 3.0
"""Seconds for which Spark waits for the executor with the data of a task, and once more for its host."""
_SETTINGS: Final = {
    # The other way to start the agent by configuration.
    "spark__plugins__defaultList": None,
    "spark__extraListeners": LISTENER,
    "spark__decommission__enabled": "true",
    "spark__storage__decommission__enabled": "true",
    # An executor looks at this interval whether all its blocks are elsewhere.
    "spark__storage__decommission__replicationReattemptInterval": "1s",
    "spark__speculation": "true",
    "spark__speculation__quantile": "0.3",
    "spark__speculation__interval": "50ms",
    "spark__speculation__minTaskRuntime": "500ms",
}


@pytest.fixture(scope="module")
def started(
    spark: Installation, cluster: Cluster, service_process: ServiceProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Application]:
    """The application of these tests."""
    conf = obeying(service_process.url, **_SETTINGS)
    with Application(SCALA, spark, cluster, tmp_path_factory.mktemp("application"), conf) as application:
        yield application
        application.end()


@pytest.fixture
def application(started: Application, service: Service) -> Application:
    """The application, registered, with an executor in use on each host."""
    service.await_listener()
    started.await_use(*HOSTS)
    return started


def test_when_the_last_open_host_is_decommissioned_a_blocked_one_is_opened(
    service: Service, application: Application, cluster: Cluster
) -> None:
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


def test_speculative_copies_avoid_a_blocked_host(service: Service, application: Application) -> None:
    service.block(A)
    started = len(application.starts_on(A))
    # The tasks on B never end: only their copies do.
    result = application.round(waiting_on=B)
    assert result == Round(number=TASKS, hosts=frozenset({C}))
    assert len(application.starts_on(A)) == started


def test_on_a_mark_tasks_do_not_wait_for_the_host_where_their_data_is(
    service: Service, application: Application
) -> None:
    count_cached(application)
    free = min(count_cached(application) for _ in range(3))
    service.block(B)
    started = len(application.starts_on(B))
    # What was cached on B is computed and cached elsewhere. From then on all is near again.
    assert count_cached(application) < 2 * free + LOCALITY_WAIT
    blocked = min(count_cached(application) for _ in range(3))
    assert blocked < max(2 * free, 1.0), (blocked, free)
    application.send("shuffle 7")
    assert application.result().number == 7 * sum(range(6_000))
    assert len(application.starts_on(B)) == started
    service.unblock(B)
    application.await_use(B)
    used = len(application.starts_on(B))
    count_cached(application)
    assert len(application.starts_on(B)) > used, "a new stage prefers the host of its data again"


@pytest.mark.long
def test_a_barrier_stage_that_runs_is_not_harmed_by_an_evacuation_which_is_reported(
    service: Service, application: Application
) -> None:
    started = len(application.starts_on(B))
    application.send("barrier 6 5000")
    wait_until(lambda: len(application.starts_on(B)) > started)
    service.put(B, action=EVACUATE)
    wait_until(lambda: bool(service.refused(B)))
    assert application.result().number == 6
    assert application.round().hosts <= {A, C}


@pytest.mark.long
def test_a_barrier_job_that_needs_more_slots_than_are_open_opens_the_weakest_host(
    service: Service, application: Application
) -> None:
    service.block(A, EVACUATE)
    service.block(B, MARK)
    application.send("barrier 4 50")
    result = application.result()
    assert result == Round(number=4, hosts=frozenset({B, C}))
    wait_until(lambda: application.round().hosts == {C})


def test_a_driver_short_of_memory_survives_a_long_list(service: Service, application: Application) -> None:
    """The last test on each change: to free all these nodes takes longer than the test."""
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


@pytest.mark.long
def test_an_evacuation_is_a_mark_for_continuous_streaming_and_is_reported(
    service: Service, application: Application
) -> None:
    application.send("stream")
    application.result()
    wait_until(lambda: streams(application))
    service.put(*HOSTS[:2], action=EVACUATE)
    wait_until(lambda: bool(service.refused(A) or service.refused(B)))
    assert streams(application)
    assert application.round().hosts == {C}


def streams(application: Application) -> bool:
    """Whether the streaming query makes progress."""
    application.send("streaming")
    return application.result().number == 1
