"""Settings and stages that schedule tasks in ways of their own: the agent does no harm, and reports the truth."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

import pytest

from demo.cluster import Cluster
from tests.applications.application import TASKS
from tests.applications.conftest import EVACUATE, A, B, C, Service, StartApplication
from tests.applications.kinds import JAVA, SCALA
from tests.integration.process import wait_until

pytestmark = pytest.mark.timeout(600)
_EXECUTOR: Final = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
DYNAMIC: Final = {
    "spark__dynamicAllocation__enabled": "true",
    "spark__dynamicAllocation__shuffleTracking__enabled": "true",
    "spark__dynamicAllocation__minExecutors": "0",
    "spark__dynamicAllocation__executorIdleTimeout": "1s",
}
_WRONG: Final = {
    "spark__blocklist__keepHosts": "many",
    "spark__blocklist__reportEvidence": "yes",
    "spark__blocklist__startWait": "soon",
    "spark__blocklist__urll": "http://127.0.0.1:1",
}


def test_with_dynamic_allocation_new_executors_on_a_blocked_host_get_no_task(
    service: Service, start: StartApplication, cluster: Cluster, tmp_path: Path
) -> None:
    """In the end no name can be looked up: the job runs, and what is not known is reported.

    Java reads the file of names for each lookup: then it is a pipe that nobody writes to.
    """
    names, pipe = tmp_path / "names", tmp_path / "pipe"
    names.write_text(f"127.0.0.1 localhost {socket.gethostname()}\n")
    os.mkfifo(pipe)
    service.put(B)
    application = start(SCALA, spark__driver__defaultJavaOptions=f"-Djdk.net.hosts.file={names}", **DYNAMIC)
    assert application.round().hosts <= {A, C}
    service.await_listener()
    # All executors are idle and are removed; later ones come anew.
    wait_until(lambda: not executors(cluster))
    assert application.round().hosts <= {A, C}
    assert not application.starts_on(B)
    service.unblock(B)

    def used_again() -> bool:
        # Spark asks for more executors once tasks have waited for a second.
        application.send("tiny 48 500")
        application.result()
        return bool(application.starts_on(B))

    wait_until(used_again, seconds=120)
    service.block(B)
    wait_until(lambda: not executors(cluster))
    pipe.rename(names)
    service.put("a-name")
    result = application.round()
    assert result.number == TASKS
    assert result.hosts <= {A, C}
    wait_until(lambda: "addresses are not known" in service.refused("a-name"))
    assert not service.is_applied("a-name")
    assert not service.refused(B)
    assert application.round().hosts <= {A, C}
    application.end()
    wait_until(lambda: not service.listeners())


@pytest.mark.parametrize("master", ["local[*]", pytest.param("local-cluster[2,2,1024]", marks=pytest.mark.long)])
def test_the_only_host_of_an_application_stays_open_and_is_reported_as_refused(
    master: str, service: Service, start: StartApplication
) -> None:
    """Its settings are wrong, too: they are named, and the defaults are used."""
    application = start(JAVA, spark__master=master, **_WRONG)
    assert application.round().number == TASKS
    [host] = application.used_hosts()
    service.await_listener()
    service.block("other-node")
    service.put(host, action=EVACUATE)
    wait_until(lambda: bool(service.refused(host)))
    assert not service.is_applied(host)
    assert application.round().number == TASKS
    for message in (
        "spark.blocklist.keepHosts is not an integer: many. The agent uses 1.",
        "spark.blocklist.reportEvidence is not true or false: yes. The agent uses false.",
        "spark.blocklist.startWait is not a number of seconds: soon. The agent uses 2.0.",
        "spark.blocklist.urll is not a setting; there are [url, tokenFile, ",
    ):
        assert application.log().count(message) == 1, message
    application.end()


def executors(cluster: Cluster, host: str = "") -> list[int]:
    """The ids of the cluster's executor processes, on a host or on all."""
    folder, option = str(cluster.folder), f"--hostname\0{host}\0" if host else ""
    lines = {int(process.name): _command_line(process) for process in Path("/proc").glob("[0-9]*")}
    return [pid for pid, line in lines.items() if _EXECUTOR in line and folder in line and option in line]


def _command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_text(errors="replace")
    except OSError:
        return ""
