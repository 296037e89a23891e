"""Jobs that run but do not obey: applications that a manager reports and no live listener stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from blocklist.model.claims import Role
from blocklist.model.listener import MAX_APPLICATION_LENGTH, MAX_APPLICATIONS
from tests.integration.command import Command
from tests.integration.in_process import InProcessService
from tests.integration.listeners import RM, heartbeat, post_heartbeat, register
from tests.integration.process import wait_until
from tests.integration.secured import SecuredInProcess
from tests.integration.test_metrics import value

UNKNOWN = "The ResourceManager http://rm:8088 does not answer."


def jobs(client: httpx.Client) -> dict[str, Any]:
    body: dict[str, Any] = client.get("/jobs").raise_for_status().json()
    return body


def agents(client: httpx.Client) -> list[tuple[str, str]]:
    return [(job["id"], job["agent"]) for job in jobs(client)["jobs"]]


def register_source(client: httpx.Client, name: str, unknown: str = "", **applications: str) -> None:
    register(client, name, role=RM, cluster=f"c-{name}")
    report(client, name, unknown, **applications)


def report(client: httpx.Client, name: str, unknown: str = "", **applications: str) -> None:
    heartbeat(client, name, applications=applications, applicationsUnknown=unknown)


def test_an_application_without_a_listener_runs_but_has_no_agent(
    timed: InProcessService, binaries: Path, tmp_path: Path
) -> None:
    client = timed.client()
    register(client, "obeys")
    register(client, "watches", mode="observe")
    register_source(client, "yarn", obeys="etl (ann)", watches="", runs="nightly <report> (bob)")
    assert agents(client) == [("runs", "none"), ("watches", "live"), ("obeys", "live")], "those that do not obey first"
    assert jobs(client)["jobs"][0] == {
        "id": "runs",
        "agent": "none",
        "mode": None,
        "description": "nightly <report> (bob)",
        "cluster": "c-yarn",
        "reportedBy": ["yarn"],
    }
    assert jobs(client)["sources"] == [{"id": "yarn", "cluster": "c-yarn", "applications": 3, "unknown": None}]
    assert value(client, "blocklist_jobs_without_agent") == 1
    assert value(client, "blocklist_job_sources", state="known") == 1
    page = client.get("/page/listeners").text
    assert "runs, but has no agent" in page
    assert "nightly &lt;report&gt; (bob)" in page
    shown = Command(binaries, timed.url).run("jobs")
    assert [line.split()[:3] for line in shown.stdout.splitlines()] == [
        ["JOB", "CLUSTER", "AGENT"],
        ["runs", "c-yarn", "no"],
        ["watches", "c-yarn", "observing"],
        ["obeys", "c-yarn", "yes"],
    ]
    assert "nightly <report> (bob); runs, but has no agent" in shown.stdout
    assert shown.stderr == "1 of 3 jobs runs without a live agent: no block is in force there.\n"
    register(client, "runs")
    assert value(client, "blocklist_jobs_without_agent") == 0
    assert "runs, but has no agent" not in client.get("/page/listeners").text


def test_an_agent_that_has_stopped_reporting_is_told_from_none(timed: InProcessService) -> None:
    client = timed.client()
    register(client, "silent")
    timed.clock.advance(60)
    assert agents(client) == [], "whether it still runs is not known"
    register_source(client, "k8s", silent="")
    assert agents(client) == [("silent", "lapsed")]
    assert "runs, but its agent has stopped reporting" in client.get("/page/listeners").text
    assert value(client, "blocklist_jobs_without_agent") == 1


def test_an_application_that_has_ended_is_gone_with_the_next_report(timed: InProcessService) -> None:
    client = timed.client()
    register_source(client, "yarn", first="", second="")
    report(client, "yarn", second="")
    assert agents(client) == [("second", "none")]


class TestUnknown:
    """What no manager says now is not known: neither "none" nor what was before."""

    def test_without_a_source(self, timed: InProcessService, binaries: Path) -> None:
        client = timed.client()
        register(client, "obeys")
        register(client, "slurm", role=RM)
        assert jobs(client)["sources"] == []
        assert "\nblocklist_jobs_without_agent " not in client.get("/metrics").text
        sentence = "Jobs without an agent are not known: no manager reports which applications run."
        assert sentence in client.get("/page/listeners").text
        assert Command(binaries, timed.url).run("jobs").stderr == f"{sentence}\n"

    def test_after_a_source_has_lapsed(self, timed: InProcessService, binaries: Path) -> None:
        client = timed.client()
        register_source(client, "yarn", runs="")
        timed.clock.advance(60)
        self.check(client, timed.url, binaries, "It has stopped reporting.")

    def test_while_the_manager_cannot_read_the_applications(self, timed: InProcessService, binaries: Path) -> None:
        client = timed.client()
        register_source(client, "yarn", runs="")
        report(client, "yarn", UNKNOWN)
        self.check(client, timed.url, binaries, UNKNOWN)

    @staticmethod
    def check(client: httpx.Client, url: str, binaries: Path, why: str) -> None:
        assert agents(client) == []
        assert [source["unknown"] for source in jobs(client)["sources"]] == [why]
        assert "\nblocklist_jobs_without_agent " not in client.get("/metrics").text
        assert value(client, "blocklist_job_sources", state="unknown") == 1
        page = client.get("/page/listeners").text
        assert f"Which jobs run in c-yarn is not known: {why}" in page
        assert "No job without an agent" not in page
        assert f"Not known of c-yarn: {why}\n" in Command(binaries, url).run("jobs").stderr

    def test_more_than_are_reported(self, timed: InProcessService) -> None:
        client = timed.client()
        register_source(client, "yarn", "More than 2000 applications run.", runs="")
        assert agents(client) == [("runs", "none")], "what is known is shown"
        assert value(client, "blocklist_jobs_without_agent") == 1
        assert value(client, "blocklist_job_sources", state="unknown") == 1


class TestBounds:
    def test_so_many_applications_with_so_long_names_are_taken_and_no_more(self, timed: InProcessService) -> None:
        client = timed.client()
        register(client, "yarn", role=RM)
        most = {f"app-{number:04}": "x" * MAX_APPLICATION_LENGTH for number in range(MAX_APPLICATIONS)}
        heartbeat(client, "yarn", applications=most, applicationsUnknown="")
        assert len(jobs(client)["jobs"]) == MAX_APPLICATIONS
        page = client.get("/page/listeners").text
        assert "1,500 more are not shown" in page
        for refused in (
            {**most, "one-more": ""},
            {"app": "x" * (MAX_APPLICATION_LENGTH + 1)},
            {"app": "a\nb"},
            {"no/id": ""},
        ):
            answer = post_heartbeat(client, "yarn", applications=refused)
            assert answer.status_code == 400, answer.text
        assert len(jobs(client)["jobs"]) == MAX_APPLICATIONS

    def test_only_a_manager_may_report_them(self, timed: InProcessService) -> None:
        client = timed.client()
        register(client, "job")
        for field in ({"applications": {"a": ""}}, {"applicationsUnknown": "x"}):
            answer = post_heartbeat(client, "job", **field)
            assert answer.status_code == 400, answer.text
            assert "only a RESOURCE_MANAGER" in answer.text


def test_every_reader_sees_them_and_nobody_else(secured: SecuredInProcess) -> None:
    with secured.client(secured.tokens[Role.READER]) as reader, secured.client() as nobody:
        assert reader.get("/jobs").status_code == 200
        assert nobody.get("/jobs").status_code == 401


@pytest.mark.databases("postgresql")
@pytest.mark.xdist_group("replicas")
def test_another_replica_shows_what_a_manager_reports_here(client_a: httpx.Client, client_b: httpx.Client) -> None:
    register_source(client_a, "yarn-jobs", UNKNOWN, runs="")

    def unknown() -> dict[str, str | None]:
        return {source["id"]: source["unknown"] for source in jobs(client_b)["sources"]}

    wait_until(lambda: unknown().get("yarn-jobs") == UNKNOWN and ("runs", "none") in agents(client_b))
    client_a.delete("/listeners/yarn-jobs").raise_for_status()
