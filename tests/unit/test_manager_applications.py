"""What managers report about the applications that run in their clusters, and about those of a standalone master."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import unquote_plus

import pytest

from blocklist.managers import applications
from blocklist.managers.applications import (
    Application,
    ApplicationThread,
    parse_driver_pod,
    parse_yarn,
    report_of,
)
from blocklist.managers.command import Stopping
from blocklist.managers.kubernetes.api_server import ApiServer
from blocklist.managers.kubernetes.cluster_access import ClusterAccess
from blocklist.managers.kubernetes.manager import KubernetesManager
from blocklist.managers.kubernetes.nodes import NodeCache
from blocklist.managers.kubernetes.plan import OwnTaint
from blocklist.managers.options import build_parser
from blocklist.managers.plan import DesiredState, ManagerError
from blocklist.managers.standalone import StandaloneManager
from blocklist.managers.yarn.resource_manager import Access, ResourceManager
from blocklist.model.listener import MAX_APPLICATION_LENGTH, MAX_APPLICATIONS, MAX_REASON_LENGTH, Report
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode
from tests.http_server import Handler, serving
from tests.integration.process import wait_until


def application(name: str = "etl", seconds: float | None = 60, job_id: str = "app-1") -> Application:
    return Application(id=job_id, name=name, user="ann", seconds=seconds)


class TestReport:
    def test_name_and_user_are_bounded_and_printable(self) -> None:
        found = report_of([application("a\nb\ud800", job_id="a"), application("x" * 1000, job_id="b")])
        assert found.applications == {"a": "a\\nb\\ud800 (ann)", "b": "x" * MAX_APPLICATION_LENGTH}
        assert found.applications_unknown == ""

    def test_one_that_has_just_begun_is_left_out(self) -> None:
        found = report_of([application(seconds=seconds, job_id=f"a{seconds}") for seconds in (1, 29, 30, None)])
        assert sorted(found.applications or ()) == ["a30", "aNone"]

    def test_of_too_many_the_first_are_reported_and_that_there_are_more(self) -> None:
        found = report_of([application(job_id=f"app-{number:05}") for number in range(MAX_APPLICATIONS + 1)])
        assert len(found.applications or ()) == MAX_APPLICATIONS
        assert "More than 2000 applications run" in (found.applications_unknown or "")

    def test_what_no_listener_can_be_called_is_left_out(self) -> None:
        assert report_of([application(job_id=""), application(job_id="a b")]).applications == {}


class TestThread:
    @staticmethod
    @contextmanager
    def running(monkeypatch: pytest.MonkeyPatch, read: Callable[[], Sequence[Application]]) -> Iterator[list[Report]]:
        monkeypatch.setattr(applications, "INTERVAL_SECONDS", 0.01)
        reports: list[Report] = []
        thread = ApplicationThread(read, reports.append)
        try:
            yield reports
        finally:
            thread.close()

    def test_it_reports_again_and_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with self.running(monkeypatch, lambda: [application()]) as reports:
            wait_until(lambda: len(reports) > 2)
        assert reports[0] == Report(applications={"app-1": "etl (ann)"}, applications_unknown="")

    @pytest.mark.parametrize("error", [ManagerError("No answer" + "." * 1000), ValueError("odd")])
    def test_what_cannot_be_read_is_not_known_and_read_again(
        self, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        failing = threading.Event()

        def read() -> Sequence[Application]:
            if failing.is_set():
                raise error
            return [application()]

        with self.running(monkeypatch, read) as reports:
            wait_until(lambda: bool(reports))
            failing.set()
            wait_until(lambda: reports[-1].applications == {})
            assert 0 < len(reports[-1].applications_unknown or "") <= MAX_REASON_LENGTH
            failing.clear()
            wait_until(lambda: reports[-1].applications_unknown == "")


class TestYarn:
    def test_applications(self) -> None:
        app = {"id": "application_1_0001", "name": "etl", "user": "ann", "elapsedTime": 60_000}
        assert parse_yarn({"apps": {"app": [app]}}) == [application(job_id="application_1_0001")]

    @pytest.mark.parametrize("apps", [None, {}, {"app": []}])
    def test_none(self, apps: object) -> None:
        assert parse_yarn({"apps": apps}) == []

    @pytest.mark.parametrize("body", [None, [], {}, {"apps": {"app": {}}}, {"apps": {"app": [1]}}])
    def test_an_answer_of_another_form_is_no_statement(self, body: object) -> None:
        with pytest.raises(ManagerError):
            parse_yarn(body)


def test_a_driver_pod_is_an_application() -> None:
    labels = {"spark-app-selector": "spark-1", "spark-app-name": "etl", "spark-role": "driver"}
    meta = {"namespace": "jobs", "name": "etl-driver", "labels": labels}
    pod = {"metadata": meta, "status": {"startTime": "1970-01-01T00:01:00Z"}}
    assert parse_driver_pod(pod, 90) == Application(id="spark-1", name="etl, pod jobs/etl-driver", user="", seconds=30)
    assert parse_driver_pod({"metadata": None}, 90).id == ""


class Recording(Handler):
    """Answers every request with `answer`, or with a redirection without one; `paths` are those that were asked."""

    answer: bytes = b""
    paths: list[str]

    def do_GET(self) -> None:
        self.paths.append(unquote_plus(self.path))
        self.reply(200 if self.answer else 307, self.answer, {} if self.answer else {"Location": "http://other:8088"})


def recording(body: object = None) -> type[Recording]:
    return type("Server", (Recording,), {"answer": b"" if body is None else json.dumps(body).encode(), "paths": []})


def test_the_active_resource_manager_is_asked_for_the_spark_applications_that_run() -> None:
    standby = recording()
    active = recording(
        {"apps": {"app": [{"id": "application_1_0001", "name": "etl", "user": "ann", "elapsedTime": 1}]}}
    )
    with serving(standby) as first, serving(active) as second:
        resource_manager = ResourceManager([first, second], Access(user="root"), Stopping(), 10)
        assert [it.id for it in resource_manager.read_applications()] == ["application_1_0001"]
        with pytest.raises(ManagerError, match="is a standby"):
            ResourceManager([first], Access(), Stopping(), 10).read_applications()
    [path] = active.paths
    assert path.startswith("/ws/v1/cluster/apps?")
    assert {"states=RUNNING", "applicationTypes=SPARK"} <= {*path.partition("?")[2].split("&")}


def test_kubernetes_is_asked_for_the_pods_of_drivers_that_run() -> None:
    pod = {"metadata": {"labels": {"spark-app-selector": "spark-1"}}, "status": {}}
    server = recording({"metadata": {}, "items": [pod]})
    no_nodes = SimpleNamespace(put=None)
    with serving(server) as url, ApiServer(ClusterAccess(url=url, tls=ssl.create_default_context())) as api:
        manager = KubernetesManager(api, cast("NodeCache", no_nodes), OwnTaint(key="k", value="v"))
        assert [it.id for it in manager.applications()] == ["spark-1"]
        manager.close()
    [path] = server.paths
    assert path.startswith("/api/v1/pods?")
    assert {"labelSelector=spark-role=driver", "fieldSelector=status.phase=Running"} <= {
        *path.partition("?")[2].split("&")
    }


ALIVE: dict[str, Any] = {
    "status": "ALIVE",
    "workers": [{"host": "w1", "state": "ALIVE"}, {"host": "w2", "state": "DEAD"}],
    "activeapps": [
        {"id": "app-1", "name": "etl", "user": "ann", "state": "RUNNING", "duration": 60_000},
        {"id": "app-2", "name": "next", "user": "ann", "state": "WAITING", "duration": 60_000},
    ],
}


def master(body: bytes) -> type[Handler]:
    class Master(Handler):
        def do_GET(self) -> None:
            self.reply(200 if self.path == "/json/" else 404, body)

    return Master


def desired(*node_ids: str) -> DesiredState:
    blocks = {
        it: BlockedNode(id=it, action=BlockAction.MARK_BLOCKED, start=1, end=PERMANENT, cause="disk") for it in node_ids
    }
    return DesiredState(revision=1, nodes=blocks)


class TestStandalone:
    @staticmethod
    @contextmanager
    def managing(*bodies: object) -> Iterator[StandaloneManager]:
        """With a master for each of these answers."""
        with ExitStack() as stack:
            urls = [stack.enter_context(serving(master(json.dumps(body).encode()))) for body in bodies]
            yield StandaloneManager(urls, Stopping(), 10)

    def test_the_active_master_names_applications_and_workers(self) -> None:
        with self.managing({"status": "STANDBY"}, ALIVE) as manager:
            assert manager.applications() == [application()]
            plan = manager.plan(desired("w1", "w9"))
        assert [node.id for node in plan.all_nodes or ()] == ["w1"]
        assert plan.not_in_force.not_here == {"w9"}
        assert (plan.steps, plan.would()) == ((), {})

    @pytest.mark.parametrize(
        ("body", "why"),
        [
            ({"status": "STANDBY"}, "is not active (STANDBY)"),
            ([], "is not active (no status)"),
            ({"status": "ALIVE"}, "not a list"),
        ],
    )
    def test_without_an_active_master_nothing_is_known(self, body: object, why: str) -> None:
        with self.managing(body) as manager, pytest.raises(ManagerError) as error:
            manager.applications()
        assert why in str(error.value)

    def test_a_master_that_wants_a_login_is_given_no_advice_about_yarn(self) -> None:
        class Locked(Handler):
            def do_GET(self) -> None:
                self.reply(401, b"no guests")

        with serving(Locked) as url, pytest.raises(ManagerError) as error:
            StandaloneManager([url], Stopping(), 10).applications()
        assert str(error.value) == f"The master {url} rejected GET /json/ with 401: no guests."

    def test_it_observes_whatever_is_set(self) -> None:
        arguments = ["standalone", "--master", "http://master:8080"]
        args = build_parser("manager", arguments).parse_args(arguments)
        assert (args.observe, args.master) == (True, ["http://master:8080"])

    def test_what_is_no_url_is_named(self, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ["standalone", "--master", "spark://master:7077"]
        with pytest.raises(SystemExit):
            build_parser("manager", arguments).parse_args(arguments)
        assert "is not a URL such as http://master:8080" in capsys.readouterr().err
