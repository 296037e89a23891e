"""Facts about classes of the agent that need a scheduler of Spark: all of them in one JVM, without a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import pytest

from demo.java_home import java_home
from tests.http_server import Handler, serving
from tests.spark_agent.decisions import facts_of

pytestmark = pytest.mark.timeout(600)
_PACKAGES: Final = (
    "java.lang",
    "java.lang.invoke",
    "java.io",
    "java.net",
    "java.nio",
    "java.util",
    "java.util.concurrent",
)
_OPENS: Final = [
    f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in (*_PACKAGES, "sun.nio.ch", "sun.security.action")
]
"""As Spark's own commands start a JVM."""


@dataclass
class ApiServer:
    """An API server of Kubernetes that deletes whatever it is asked to; `deletions` are the paths and the bodies."""

    deletions: list[tuple[str, object]] = field(default_factory=list)
    url: str = ""


@pytest.fixture(scope="module")
def api_server() -> Iterator[ApiServer]:
    started = ApiServer()

    class Deletions(Handler):
        def do_DELETE(self) -> None:
            started.deletions.append((self.path, json.loads(self.body() or b"{}")))
            self.reply(200, b"{}", {"Content-Type": "application/json"})

    with serving(Deletions) as started.url:
        yield started


@pytest.fixture(scope="module")
def facts(program: str, api_server: ApiServer) -> dict[str, str]:
    java = [str(java_home() / "bin" / "java"), "-Xmx512m", "-XX:+UseSerialGC", *_OPENS, "-cp", program]
    return facts_of([*java, "blocklist.spark.SchedulerProgram", api_server.url])


@pytest.mark.parametrize(
    "fact",
    [
        "what an executor's host is called may be unknown",
        "executors lost beyond the limit",
        "a report of a thousand lost executors holds up no task",
        "a killed task that still runs is killed again",
        "a task that commits its output is not killed",
        "an evacuation that is limited is refused with its table",
        "a host that was closed gets no task before its refusal is reported",
        "of the executors of a host with a canary block one gets tasks",
        "closed executors are shown as excluded",
        "blocks end by the clock of the service",
        "an address that is used again",
        "a pod that is made while the template changes",
        "tasks do not wait for a closed host, and new stages use it again",
        "a task keeps its open places",
        "a canary keeps the tasks whose data it has",
        "a hundred thousand pending tasks hold up the scheduler for a moment",
        "without Spark's lists a host is closed all the same",
    ],
)
def test_it_holds(facts: dict[str, str], fact: str) -> None:
    assert facts.get(fact) == "true"


@pytest.mark.usefixtures("facts")
def test_a_pod_is_deleted_by_its_uid_as_another_one_may_have_its_name(api_server: ApiServer) -> None:
    [(path, options)] = api_server.deletions
    assert path.partition("?")[0] == "/api/v1/namespaces/jobs/pods/exec-7"
    assert options == {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "uid-7"}}
