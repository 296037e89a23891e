"""A canary block leaves one executor of an application open on a node: it shows later whether the node is well."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from blocklist import PERMANENT
from demo.cluster import Cluster
from tests.applications.application import TASKS, Application
from tests.applications.conftest import HOSTS, StartApplication
from tests.applications.kinds import SCALA
from tests.http_server import Handler, serving
from tests.integration.process import wait_until

# A service that has nothing but a table.

_WAIT_SECONDS: Final = 5.0
_ACKNOWLEDGED_SECONDS: Final = 60.0


class TableService:
    """The server. `put` returns once the application has acknowledged the table."""

    def __init__(self) -> None:
        self.url = ""
        self.refused: dict[str, str] = {}
        self._changed = threading.Condition()
        self._revision, self._acknowledged, self._lines = 0, -1, ""

    def put(self, blocks: Mapping[str, str]) -> None:
        """Block these hosts, each with its action, and no others; the weakest come first."""
        with self._changed:
            self._lines = "".join(f"{host}\t{PERMANENT}\t{action}\t{host}\ttest\n" for host, action in blocks.items())
            self._revision += 1
            self._changed.notify_all()
            revision = self._revision
            assert self._changed.wait_for(lambda: self._acknowledged == revision, _ACKNOWLEDGED_SECONDS)

    def table(self, known: str | None) -> tuple[int, str, str]:
        with self._changed:
            self._changed.wait_for(lambda: known != f'"{self._revision}"', _WAIT_SECONDS)
            etag = f'"{self._revision}"'
            if known == etag:
                return 304, etag, ""
            head = f"blocklist-table 1 {self._revision} {self._lines.count(chr(10))}\n"
            return 200, etag, head + self._lines

    def report(self, body: dict[str, Any]) -> None:
        with self._changed:
            self._acknowledged = body.get("ackedRevision", self._acknowledged)
            self.refused = body.get("refused", self.refused)
            self._changed.notify_all()


@contextmanager
def table_service() -> Iterator[TableService]:
    service = TableService()

    class Requests(Handler):
        def do_GET(self) -> None:
            status, etag, body = service.table(self.headers["If-None-Match"])
            self.reply(status, body.encode(), {"ETag": etag, "Blocklist-History": "00000001"})

        def do_PUT(self) -> None:
            self.body()
            self.reply(200, b"{}")

        def do_POST(self) -> None:
            service.report(json.loads(self.body()))
            self.reply(200, b'{"reported":[]}')

        def do_DELETE(self) -> None:
            self.reply(204)

    with serving(Requests) as service.url:
        yield service


pytestmark = pytest.mark.timeout(600)
EXECUTORS: Final = 4
"""On three hosts: one has two of them."""
_START: Final = re.compile(r" INFO TaskSetManager: .*Starting task .* \(([^,]+), ?executor (\d+),")


@pytest.fixture
def tables() -> Iterator[TableService]:
    with table_service() as started:
        yield started


def starts(application: Application, host: str = "") -> list[str]:
    """The executors of the tasks that were started, on a host or on all."""
    return [executor for at, executor in _START.findall(application.log()) if host in {at, ""}]


def host_with_two_executors(application: Application) -> str:
    """Once all executors have run tasks."""

    def found() -> set[tuple[str, str]]:
        return set(_START.findall(application.log()))

    while len(found()) < EXECUTORS:
        application.round()
    [(host, count)] = Counter(host for host, _ in found()).most_common(1)
    assert count == 2
    return host


def used(application: Application, host: str, least: int = 1) -> set[str]:
    """The executors of the host that run tasks in three rounds, and in more until there are at least so many."""
    begun, rounds = len(starts(application, host)), 0

    def found() -> set[str]:
        return set(starts(application, host)[begun:])

    while rounds < 3 or len(found()) < least:
        assert application.round().number == TASKS
        rounds += 1
    return found()


def pid(cluster: Cluster, executor: str) -> int:
    """The process of an executor."""
    option = f"--executor-id\0{executor}\0"
    lines = {int(path.parent.name): path.read_text(errors="replace") for path in Path("/proc").glob("[0-9]*/cmdline")}
    [found] = [number for number, line in lines.items() if option in line and str(cluster.folder) in line]
    return found


def test_tasks_start_in_exactly_one_executor_of_the_host(
    tables: TableService, start: StartApplication, cluster: Cluster
) -> None:
    application = start(SCALA, url=tables.url, spark__executor__cores=1, spark__cores__max=EXECUTORS)
    tables.put({})
    host = host_with_two_executors(application)
    first, second = sorted(set(starts(application, host)), key=int)

    tables.put({host: "canary"})
    assert used(application, host) == {first}
    tables.put({host: "mark"})
    assert used(application, host, least=0) == set()
    tables.put({host: "canary"})
    assert used(application, host) == {first}
    tables.put({})
    assert used(application, host, least=2) == {first, second}

    # All hosts: none is refused, and each has a canary.
    tables.put(dict.fromkeys(HOSTS, "canary"))
    application.await_use(*HOSTS)
    assert used(application, host) == {first}
    assert tables.refused == {}

    # A barrier stage has the slot of the canary; one that needs all opens the host while it waits, which is refused.
    tables.put({host: "canary"})
    begun = len(starts(application, host))
    application.send(f"barrier {EXECUTORS - 1} 50")
    assert application.result().number == EXECUTORS - 1
    assert starts(application, host)[begun:] == [first]
    application.send(f"barrier {EXECUTORS} 3000")
    wait_until(lambda: host in tables.refused)
    assert application.result().number == EXECUTORS
    wait_until(lambda: tables.refused == {})
    assert used(application, host) == {first}

    # A stronger block stops the canary, in the middle of a task.
    begun = len(starts(application, host))
    application.begin_round(waiting_on=host)
    wait_until(lambda: len(starts(application, host)) > begun)
    tables.put({host: "evacuate"})
    assert host not in application.result().hosts
    assert set(starts(application, host)[begun:]) == {first}

    # The canary ends: another executor takes its place.
    tables.put({host: "canary"})
    begun = len(starts(application, host))
    os.kill(pid(cluster, first), signal.SIGKILL)
    while second not in starts(application, host)[begun:]:
        application.round()
    assert used(application, host) == {second}
    assert set(starts(application, host)[begun:]) <= {first, second}
    application.end()


def test_with_stage_level_scheduling_each_profile_has_its_canary(tables: TableService, start: StartApplication) -> None:
    """Also if all hosts have canaries of another profile: the stage would wait without end."""
    conf = {
        "spark__executor__cores": 1,
        "spark__dynamicAllocation__enabled": "true",
        "spark__dynamicAllocation__shuffleTracking__enabled": "true",
        "spark__dynamicAllocation__initialExecutors": len(HOSTS),
        "spark__dynamicAllocation__maxExecutors": len(HOSTS),
        "spark__dynamicAllocation__executorIdleTimeout": "1h",
    }
    application = start(SCALA, url=tables.url, **conf)
    tables.put(dict.fromkeys(HOSTS, "canary"))
    application.await_use(*HOSTS)
    application.send(f"profile {TASKS}")
    assert application.result().number == TASKS
    assert application.round().number == TASKS
    assert tables.refused == {}
    application.end()
