"""How the agent is started: by configuration with slips, and by Python, again and again and at the same time."""

from __future__ import annotations

from typing import Final

import pytest

from tests.applications.application import TASKS, Kind
from tests.applications.conftest import HOSTS, A, B, C, Service, StartApplication
from tests.applications.kinds import CLUSTER_MODE, JAVA

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


@pytest.mark.parametrize("kind", [JAVA, pytest.param(CLUSTER_MODE, marks=pytest.mark.long)], ids=lambda it: it.name)
@pytest.mark.parametrize(
    "listeners",
    ["org.apache.spark.scheduler.StatsReportListener", "blocklist.spark.BlocklistListener"],
    ids=["other", "both"],
)
def test_the_plugin_starts_one_agent_whatever_listeners_the_job_has_and_executors_need_no_jar(
    service: Service, start: StartApplication, kind: Kind, listeners: str
) -> None:
    service.put(B)
    plugin = {"spark__plugins__defaultList": "blocklist.spark.BlocklistPlugin"}
    application = start(kind, spark__extraListeners=listeners, **plugin)
    assert application.round().hosts <= {A, C}, "blocked before the start"
    service.await_listener()
    service.unblock(B)
    application.await_use(*HOSTS)
    service.block(B)
    assert application.round().hosts <= {A, C}, "blocked while it runs"
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


def test_a_wrong_setting_is_named_and_the_default_is_used(service: Service, start: StartApplication) -> None:
    wrong = {
        "spark__blocklist__keepHosts": "many",
        "spark__blocklist__reportEvidence": "yes",
        "spark__blocklist__startWait": "soon",
        "spark__blocklist__urll": service.url,
    }
    application = start(JAVA, spark__master="local[2]", **wrong)
    service.await_listener()
    service.block("other-node")
    assert application.round().number == TASKS
    for message in (
        "spark.blocklist.keepHosts is not an integer: many. The agent uses 1.",
        "spark.blocklist.reportEvidence is not true or false: yes. The agent uses false.",
        "spark.blocklist.startWait is not a number of seconds: soon. The agent uses 2.0.",
        "spark.blocklist.urll is not a setting; there are [url, tokenFile, ",
    ):
        assert application.log().count(message) == 1, message
    application.end()
