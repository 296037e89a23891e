"""Settings with a slip are reported, once, and the agent starts all the same."""

from __future__ import annotations

import pytest

from tests.applications.application import TASKS
from tests.applications.conftest import Service, StartApplication
from tests.applications.kinds import JAVA

pytestmark = pytest.mark.timeout(600)


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
