"""Agents judge by themselves which hosts fail what succeeds elsewhere: Spark excludes and speculates nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import pytest

from blocklist import BlocklistClient
from demo.cluster import Cluster, wait_until
from tests.acceptance.conftest import Applications, B, Body, ListenerApi
from tests.acceptance.failing_application import Application, Job
from tests.integration.process import ServiceProcess, migrated_service

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


def conf(cluster: Cluster, **settings: object) -> dict[str, str]:
    """An executor with one core on each host."""
    own = {"spark__executor__cores": 1, "spark__cores__max": 3, **settings}
    return cluster.conf() | {key.replace("__", "."): str(value) for key, value in own.items()}


def await_hosts(application: Application, addresses: Collection[str] = ALL) -> None:
    """Run jobs until one has tasks on all of these hosts."""
    wait_until(lambda: application.run(Job()).addresses >= set(addresses), SECONDS, f"tasks on {addresses}")


def changed(client: BlocklistClient) -> set[str]:
    """The nodes in the change log."""
    return {change.node.id for change in client.changes()}


def test_a_host_that_swallows_the_tasks_of_two_applications_is_blocked_for_all(
    idle_cluster: Cluster, service: BlocklistClient, evidence: Callable[[], list[Body]], listeners: ListenerApi
) -> None:
    # Failed tasks do not end a job soon.
    patient = conf(idle_cluster, spark__task__maxFailures=1000)
    with Application(patient, service.url) as first, Application(patient, service.url) as second:
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
