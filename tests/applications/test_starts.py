"""The agent is started by configuration and by Python, again and again and at the same time: there is one."""

from __future__ import annotations

from typing import Final

import pytest

from tests.applications.application import Kind
from tests.applications.conftest import Service, StartApplication

pytestmark = pytest.mark.timeout(600)
STARTS: Final = Kind(name="starts", command="{submit} {sources}/starts.py {commands} {results}")


def test_starts_by_configuration_and_by_python_share_one_agent(service: Service, start: StartApplication) -> None:
    application = start(STARTS, spark__master="local[2]")
    for _ in range(3):
        application.send("8")
        assert application.result(300).number == 1
    service.await_listener()
    service.block("other-node")
    application.end()
    assert not service.listeners()


def test_a_start_during_the_stop_of_the_last_one_gets_an_agent(service: Service, start: StartApplication) -> None:
    application = start(STARTS, spark__master="local[2]", spark__extraListeners="")
    application.send("1")
    assert application.result(300).number == 1
    for _ in range(20):
        application.send("4")
        # The threads of one that ends may still be there.
        assert application.result(300).number > 0
    application.end()
