"""Reads of shuffle data that fail are charged to the host that served, whose external shuffle service is down."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.applications.application import Application, Installation
from tests.applications.conftest import HOSTS, A, B, C, Service, StartApplication
from tests.applications.kinds import SCALA
from tests.applications.shuffle_services import ShuffleServices
from tests.integration.process import wait_until

pytestmark = pytest.mark.timeout(600)
SETTLED: Final = 12.0
"""Seconds after which reads that failed count, and a report of them has arrived."""


@pytest.fixture
def services(spark: Installation, tmp_path: Path) -> Iterator[ShuffleServices]:
    with ShuffleServices(spark.home, HOSTS, tmp_path / "shuffle.log") as started:
        yield started


def test_a_shuffle_service_that_is_down_is_reported_by_its_host_not_by_those_that_read(
    service: Service, services: ShuffleServices, start: StartApplication
) -> None:
    application = begin(start, services, retry_wait="200ms")
    services.stop(B)
    application.send("shuffle 2")
    wait_until(lambda: bool(service.evidence()))
    assert service.evidence() == {B: "Tasks on 2 other hosts could not read shuffle data from the host."}
    assert failed_reads(application) == {B}
    services.start(B)
    assert application.result().number == 2 * sum(range(6_000))
    application.end()


@pytest.mark.long
def test_a_rolling_restart_of_shuffle_services_blames_nobody(
    service: Service, services: ShuffleServices, start: StartApplication
) -> None:
    """Each is down until the reads of one attempt of a stage have failed, and back before those of the next one do."""
    application = begin(start, services, retry_wait="2s")
    for number, host in enumerate((B, C, A), 2):
        restart(services, application, host, number)
        began = time.monotonic()
        while time.monotonic() - began < SETTLED:
            shuffle(application, number)
            assert service.evidence() == {}

    def reported() -> bool:
        """The same application reports a host that is at fault, so it has reported all the time."""
        application.send(f"fail {A}")
        application.result()
        return bool(service.evidence())

    wait_until(reported)
    assert service.evidence().keys() == {A}
    application.end()


def begin(start: StartApplication, services: ShuffleServices, *, retry_wait: str) -> Application:
    """An application that has read shuffle data of all hosts. A read that fails is tried three times more."""
    settings = {
        **services.conf,
        "spark.blocklist.reportEvidence": "true",
        "spark.shuffle.io.retryWait": retry_wait,
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "12",
        "spark.stage.maxConsecutiveAttempts": "1000",
        "spark.task.maxFailures": "1000",
    }
    application = start(SCALA, **settings)
    application.await_use(*HOSTS)
    shuffle(application, 1)
    return application


def shuffle(application: Application, number: int) -> None:
    """Run a job that shuffles and joins; its result must be right."""
    application.send(f"shuffle {number}")
    assert application.result().number == number * sum(range(6_000))


def restart(services: ShuffleServices, application: Application, host: str, number: int) -> None:
    """The service of the host is down until a read has failed; the job that this hits ends well."""
    known = failed_reads(application)
    services.stop(host)
    application.send(f"shuffle {number}")
    wait_until(lambda: failed_reads(application) == {*known, host})
    services.start(host)
    assert application.result().number == number * sum(range(6_000))


def failed_reads(application: Application) -> set[str]:
    """The hosts from which tasks on others could not read, by the driver's log."""
    return set(re.findall(r"FetchFailed\(BlockManagerId\(\w+, ([\d.]+),", application.log()))
