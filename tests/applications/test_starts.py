"""How the agent is started: by configuration with slips, and by Python, again and again and at the same time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from demo.cluster import Cluster
from tests.applications.application import JAR, LISTENER, PLUGIN, TASKS, EndedError, Installation, Kind
from tests.applications.conftest import HOSTS, A, B, C, Service, StartApplication
from tests.applications.kinds import CLUSTER_MODE, JAVA, SCALA
from tests.integration.manager_process import SoonReportingManager
from tests.integration.process import wait_until
from tests.spark_versions import spark_with_jar

pytestmark = pytest.mark.timeout(600)
STARTS: Final = Kind(name="starts", command="{submit} {sources}/starts.py {commands} {results}")


def test_starts_by_configuration_and_by_python_share_one_agent(service: Service, start: StartApplication) -> None:
    application = start(STARTS, spark__master="local[2]", spark__extraListeners=LISTENER)
    for _ in range(3):
        application.send("8")
        assert application.result(300).number == 1
    service.await_listener()
    service.block("other-node")
    application.end()
    assert not service.listeners()


@pytest.mark.parametrize("kind", [JAVA, pytest.param(CLUSTER_MODE, marks=pytest.mark.long)], ids=lambda it: it.name)
def test_the_plugin_of_a_jar_that_travels_with_the_job_starts_one_agent_beside_the_jobs_own_listeners_and_plugins(
    service: Service, start: StartApplication, kind: Kind
) -> None:
    """Spark fetches `spark.jars` before it loads plugins."""
    service.put(B)
    own = {
        "spark__extraListeners": f"org.apache.spark.scheduler.StatsReportListener,{LISTENER}",
        "spark__plugins": f"JobPlugin,{PLUGIN}",
    }
    application = start(kind, spark__driver__extraClassPath=None, spark__jars=JAR, **own)
    assert application.round().hosts <= {A, C}, "blocked before the start"
    service.await_listener()
    service.unblock(B)
    application.await_use(*HOSTS)
    service.block(B)
    assert application.round().hosts <= {A, C}, "blocked while it runs"
    application.end()
    assert not service.listeners()
    assert len(set(re.findall(r"JobPlugin: runs in executor (\d+)", application.log()))) == len(HOSTS)


def test_without_the_jar_it_does_not_start(start: StartApplication) -> None:
    application = start(JAVA, spark__master="local[2]", spark__driver__extraClassPath=None)
    with pytest.raises(EndedError, match=f"ClassNotFoundException: {PLUGIN}"):
        application.round()


def test_a_job_that_replaces_the_list_of_default_plugins_has_no_agent_and_is_shown(
    service: Service, start: StartApplication, cluster: Cluster, spark: Installation, tmp_path: Path
) -> None:
    """The other one has the jar in its launcher's Spark; the Spark of the workers has none."""
    small = {"spark__executor__cores": 1, "spark__cores__max": 1}
    replaces = start(SCALA, spark__plugins__defaultList="JobPlugin", **small)
    with_jar = spark_with_jar(spark.home, JAR, tmp_path / "spark")
    obeys = start(JAVA, home=with_jar, spark__driver__extraClassPath=None, **small)
    assert replaces.round().number == obeys.round().number == TASKS
    with SoonReportingManager(tmp_path, service.url, "standalone", "--master", cluster.web_url):
        wait_until(lambda: service.agents() == {"scala (root)": "none", "java (root)": "live"})
        for application in (replaces, obeys):
            application.end()
        wait_until(lambda: not service.agents())


def test_a_start_during_the_stop_of_the_last_one_gets_an_agent(service: Service, start: StartApplication) -> None:
    application = start(STARTS, spark__master="local[2]", spark__plugins__defaultList=None)
    application.send("1")
    assert application.result(300).number == 1
    for _ in range(20):
        application.send("4")
        # The threads of one that ends may still be there.
        assert application.result(300).number > 0
    application.end()
