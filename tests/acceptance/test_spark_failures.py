"""Agents judge by themselves which hosts fail what succeeds elsewhere: Spark excludes and speculates nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from blocklist import BlocklistClient
from demo.cluster import Cluster, wait_until
from tests.acceptance.conftest import Applications, B, Body, ListenerApi
from tests.acceptance.failing_application import Application, Job, executors
from tests.integration.process import ServiceProcess, migrated_service, run_app

SECONDS = 120
"""Until a test is taken to hang."""
SWALLOWED = Job(tasks=30, error="OSError", bad=B)
"""On the host B each task fails at once."""
ALL = {"127.0.0.2", "127.0.0.3", "127.0.0.4"}


@pytest.fixture(scope="module")
def idle_cluster(cluster: Cluster, applications: Applications) -> Cluster:
    """The cluster, without an application that takes its cores."""
    applications.stop()
    return cluster


@pytest.fixture(scope="module")
def service_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with migrated_service(tmp_path_factory.mktemp("service")) as process:
        yield process


@pytest.fixture
def trusting(tmp_path: Path) -> Iterator[BlocklistClient]:
    """A service for which the evidence of one application suffices."""
    process = ServiceProcess(tmp_path, evidence_applications="1")
    assert run_app("migrate", env=process.environment()).returncode == 0
    with process, BlocklistClient(process.url) as client:
        yield client


def conf(cluster: Cluster, **settings: object) -> dict[str, str]:
    """An executor with one core on each host."""
    own = {"spark__executor__cores": 1, "spark__cores__max": 3, **settings}
    return cluster.conf() | {key.replace("__", "."): str(value) for key, value in own.items()}


def await_hosts(application: Application, addresses: Collection[str] = ALL) -> None:
    """Run jobs until one has tasks on all of these hosts."""
    quick = Job(tasks=6, seconds=0.2)
    wait_until(lambda: application.run(quick).addresses >= set(addresses), SECONDS, f"tasks on {addresses}")


def changed(client: BlocklistClient) -> set[str]:
    """The nodes in the change log."""
    return {change.node.id for change in client.changes()}


def test_a_host_that_swallows_the_tasks_of_two_applications_is_blocked_for_all(
    idle_cluster: Cluster, service: BlocklistClient, evidence: Callable[[], list[Body]], listeners: ListenerApi
) -> None:
    # Failed tasks do not end a job soon.
    patient = conf(idle_cluster, spark__task__maxFailures=1000)
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        first, second = pool.map(stack.enter_context, [Application(patient, service.url) for _ in range(2)])
        await_hosts(first)
        await_hosts(second)
        assert evidence() == []
        wait_until(lambda: bool(first.run(SWALLOWED) and evidence()), SECONDS, "evidence")
        assert [(own["application"], own["node"], own["kind"]) for own in evidence()] == [(first.id, B, "failing")]
        assert service.snapshot().nodes == {}

        def blocked() -> bool:
            """The evidence of the first does not expire before that of the second, however slow the machine is."""
            for application in (first, second):
                application.begin(SWALLOWED)
            assert [it.result().addresses for it in (first, second)] == [ALL - {B}] * 2
            return B in service.snapshot().nodes

        wait_until(blocked, SECONDS, "the block")
        assert service.get(B).cause.startswith("2 applications say so: ")

        def applied() -> tuple[int, int]:
            status = listeners.get(f"/blocklist/nodes/{B}/status")
            return status["applied"], status["of"]

        wait_until(lambda: applied() == (2, 2), SECONDS, "both to apply it")
        for application in (first, second):
            assert application.run(Job()).addresses == ALL - {B}
        assert changed(service) == {B}


def test_what_is_no_fault_of_a_host_blames_nobody(
    idle_cluster: Cluster, trusting: BlocklistClient, tmp_path: Path
) -> None:
    """In the end the same application reports a host that is faulty, so that it has reported all the time."""
    # A worker has room for one executor: a host that leaves is not replaced by a second one of another.
    own = {"spark__decommission__enabled": "true", "spark__executor__memory": "1g", "spark__task__maxFailures": 10}
    # Reads from a host that has left fail soon.
    settings = conf(idle_cluster, **own, spark__shuffle__io__retryWait="1s")
    with Application(settings, trusting.url) as application:
        await_hosts(application)
        for job, ends in (
            (Job(error="OSError", tasks=6), set()),  # A bug.
            (Job(error="OSError", partitions=2, tasks=9), set()),  # Bad data.
            (Job(error="MemoryError", bad=B, tasks=12), None),
            (Job(seconds=60, cancel_after=1), set()),
        ):
            addresses = application.run(job).addresses
            assert ends is None or addresses == ends, job
        end_executors(application, signal.SIGKILL)
        end_executors(application, signal.SIGKILL)
        end_executors(application, signal.SIGPWR)  # It is decommissioned, as before a machine leaves.
        application.begin(Job(tasks=6, seconds=2, shuffles=True, folder=str(tmp_path)))
        wait_until((tmp_path / B).exists, SECONDS, "a task that has read shuffle data")
        idle_cluster.kill_worker(B)
        assert application.result().addresses == ALL - {B}
        idle_cluster.start_worker(B)
        await_hosts(application)
        assert changed(trusting) == set()
        application.begin(Job(tasks=30, error="OSError", bad=B, fails_after=0.5))
        wait_until(lambda: changed(trusting) == {B}, SECONDS, "the block")
        application.result()


def end_executors(application: Application, number: signal.Signals) -> None:
    """Send this signal to the executor on B while it runs tasks; wait for its successor."""
    (before,) = executors(application, B)
    application.begin(Job(tasks=12, seconds=0.5))
    os.kill(before, number)
    application.result()
    wait_until(lambda: executors(application, B) not in ([], [before]), SECONDS, "the next executor")
    await_hosts(application)
