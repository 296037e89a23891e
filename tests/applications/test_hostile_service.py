"""Jobs under a hostile service and a hostile list: none fails, hangs or has another result."""

from __future__ import annotations

import secrets

import pytest

from tests.applications.application import TASKS
from tests.applications.conftest import StartApplication
from tests.applications.hostile_service import (
    endless_body,
    endless_chunk,
    endless_header_line,
    endless_headers,
    endless_informational,
    endless_lines,
    gzip_bomb,
    hanging_service,
    hostile_service,
)
from tests.applications.jobs import heap, run_jobs
from tests.applications.kinds import JAVA, SCALA
from tests.integration.process import wait_until

pytestmark = pytest.mark.timeout(600)
ENDLESS = (
    endless_body, endless_lines, endless_chunk, endless_headers, endless_header_line, endless_informational, gzip_bomb,
)  # fmt: skip
MAX_MEGABYTES = 50


def test_neither_jobs_nor_the_exit_code_are_harmed(start: StartApplication) -> None:
    """The short form of `make chaos-spark`."""
    seed = secrets.randbits(32)
    with hostile_service(seed) as service:
        application = start(SCALA, url=service.url)
        run_jobs(application, 10, label=f"seed {seed}")
        assert service.answered.total() > 0
        application.send("exit 3")
        application.end(3)


def test_an_end_is_not_held_up_by_a_response_that_hangs_in_its_middle(start: StartApplication) -> None:
    """Such a response is waited for up to 55 s."""
    with hanging_service() as service:
        application = start(JAVA, url=service.url, spark__master="local[2]")
        application.begin_round()
        assert application.result(300).number == TASKS
        wait_until(lambda: service.hanging > 0, seconds=120)
        application.end()
        assert service.deregistered_meanwhile


def test_responses_without_end_leave_little_in_the_driver_s_heap(start: StartApplication) -> None:
    with hostile_service(0, ENDLESS) as service:
        application = start(SCALA, url=service.url, spark__master="local[2]")
        assert application.round().number == TASKS
        before = heap(application)
        seen: list[int] = []

        def all_answered() -> bool:
            seen.append(heap(application))
            return service.answered.keys() >= {fault.__name__ for fault in ENDLESS}

        wait_until(all_answered, seconds=240)
        assert max(seen) - before < MAX_MEGABYTES
        application.end()
