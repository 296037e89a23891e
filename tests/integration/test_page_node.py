"""The page of a node: the machine, jobs, evidence, drift, and a history that is bounded."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from app.page.node import MAX_CHANGES, PAGE_SIZE
from tests.integration.bodies import EVACUATE, block
from tests.integration.in_process import ManualClock, running_service
from tests.integration.listeners import RM
from tests.integration.process import wait_until
from tests.integration.test_page_listener import LEASE_MS, NOW, facts, heartbeat, put, register
from tests.integration.test_page_tasks import cells, get, text_of


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def client(database_url: str, clock: ManualClock) -> Iterator[TestClient]:
    with running_service(database_url, clock) as client:
        yield client


def jobs(html: str) -> dict[str, tuple[str, str, str]]:
    """For each job on the node its TaskManagers, running tasks, and what happens."""
    table = html[html.index('id="jobs"') :].partition('aria-labelledby="applied"')[0]
    names = re.findall(r'href="/page/listeners/([^"]+)"', table)
    columns = (cells(table, label) for label in ("TaskManagers", "Running tasks", "What happens"))
    return dict(zip(names, zip(*columns, strict=True), strict=True))


def report_machine(client: TestClient) -> None:
    register(client, "yarn", role=RM)
    machine = {
        "id": "n1.example.com",
        "names": ["blue"],
        "addresses": ["10.0.0.1"],
        "labels": {"rack": "r7", "zone": "a"},
    }
    heartbeat(client, "yarn", nodes=[machine, "n2"])
    wait_until(lambda: client.get("/nodes").json()["total"] == 2)


def test_it_says_what_the_machine_is_and_who_reports_it(client: TestClient, clock: ManualClock) -> None:
    report_machine(client)
    clock.now += 7_000
    for name in ("n1.example.com", "N1", "blue", "10.0.0.1"):
        page = get(client, f"/page/nodes/{name}")
        shown = facts(page)
        assert shown["Last seen"] == "7 s ago"
        assert shown["Reported by"] == "yarn"
        assert shown["Labels"] == "rack=r7 zone=a"
        assert shown["Addresses"] == "10.0.0.1"
        assert "blue" in shown["Other names"]
        assert "The node is not blocked." in page
    put(client, "blue", cause="disk")
    assert "10.0.0.1 is a name of this node." in text_of(get(client, "/page/nodes/10.0.0.1"))
    assert facts(get(client, "/page/nodes/n2"))["Labels"] == "none are reported"


def test_it_says_what_a_listener_that_has_not_applied_the_block_reports(client: TestClient) -> None:
    register(client, "yarn", role=RM)
    put(client, "n1", cause="disk")
    heartbeat(client, "yarn", refused={"n1": "<down>"})
    page = get(client, "/page/nodes/n1")
    assert "not yet last report: <down>" in text_of(page)
    assert "<down>" not in page


def test_nobody_knows_the_node(client: TestClient) -> None:
    answer = client.get("/page/nodes/n3")
    assert answer.status_code == 404
    assert "Nobody knows a node n3." in answer.text
    assert "No listener and no file reports any nodes, so it is not known whether it exists." in answer.text
    report_machine(client)
    answer = client.get("/page/nodes/n3")
    assert answer.status_code == 404
    assert 'Did you mean <a href="/page/nodes/n2">n2</a>?' in answer.text
    assert "Check its name" in answer.text
    assert client.get("/page/nodes/n3/state").status_code == 200, "an open page is updated"
    put(client, "n3")
    assert client.get("/page/nodes/n3").status_code == 200


def test_an_ambiguous_name_means_no_machine(client: TestClient) -> None:
    register(client, "yarn", role=RM)
    heartbeat(client, "yarn", nodes=[{"id": name, "addresses": ["10.0.0.9"]} for name in ("n1", "n2")])
    wait_until(lambda: client.get("/nodes").json()["total"] == 2)
    put(client, "10.0.0.9")
    page = get(client, "/page/nodes/10.0.0.9")
    assert "it is not known which one is meant: n1, n2." in text_of(page)
    assert "10.0.0.9 is also n2" in facts(get(client, "/page/nodes/n1"))["Ambiguous"]


def test_the_jobs_that_run_there_and_what_happens_to_them(client: TestClient, clock: ManualClock) -> None:
    revision = put(client, "n1", action=EVACUATE)
    running: dict[str, tuple[int, dict[str, object]]] = {
        "busy": (revision, {"runningTasks": {"busy-0": 3}}),
        "dark": (revision, {}),
        "done": (revision, {"runningTasks": {"done-0": 0, "done-1": 0}}),
        "late": (0, {"runningTasks": {"late-0": 1}}),
        "keep": (revision, {"refused": {"n1": "Its last host."}, "runningTasks": {"keep-0": 5}}),
    }
    for job, (acked, report) in running.items():
        register(client, job, leaseSeconds=600)
        there = {f"{job}-0": "n1"} | ({"done-1": "N1"} if job == "done" else {})
        heartbeat(client, job, ackedRevision=acked, taskManagers=there, **report)
    register(client, "lost")
    heartbeat(client, "lost", ackedRevision=revision, taskManagers={"lost-0": "n1"}, runningTasks={"lost-0": 2})
    clock.now += LEASE_MS
    wait_until(lambda: client.get("/taskmanagers/lost-0").status_code == 404)
    page = get(client, "/page/nodes/n1")
    assert jobs(page) == {
        "keep": ("1", "5", "refused Its last host."),
        "busy": ("1", "3", "evacuating"),
        "lost": ("1", "unknown", "unknown stopped reporting 0 s ago, with 2 running tasks"),
        "dark": ("1", "unknown", "unknown"),
        "late": ("1", "1", "not applied yet"),
        "done": ("2", "0", "empty"),
    }
    assert list(jobs(page)) == ["keep", "busy", "lost", "dark", "late", "done"]
    assert 'data-settled="false"' in page
    for job in ("busy", "dark", "late"):
        heartbeat(client, job, ackedRevision=revision, taskManagers={})
    assert 'data-settled="true"' in get(client, "/page/nodes/n1/state")


def test_evidence_says_who_reports_what_and_what_is_needed(client: TestClient) -> None:
    assert facts(get_blocked(client, "n1"))["Evidence"] == "no application reports a problem"
    register(client, "app-1")
    register(client, "app-2")
    slow = {"n1": {"kind": "slow", "reason": "14 of 60 tasks were speculated."}}
    heartbeat(client, "app-1", taskManagers={"a": "n1", "b": "n2", "c": "n3"}, evidence=slow)
    heartbeat(client, "app-2", taskManagers={"d": "n2"}, evidence={"n2": {"kind": "excluded", "reason": "Other."}})
    page = get(client, "/page/nodes/n1")
    assert "1 of 2 applications that are needed to block the node" in text_of(page)
    assert cells(page, "Reason") == ["14 of 60 tasks were speculated."]
    assert cells(page, "Counts") == ["yes"]
    assert '<a href="/page/listeners/app-1">app-1</a>' in page


def get_blocked(client: TestClient, node: str) -> str:
    put(client, node)
    return get(client, f"/page/nodes/{node}")


def test_drift_in_both_directions(client: TestClient, clock: ManualClock) -> None:
    revision = put(client, "n1")
    register(client, "slurm", role=RM, leaseSeconds=600)
    state = "DRAIN, not by this manager"
    heartbeat(client, "slurm", ackedRevision=revision, schedulable={"n1": "IDLE"}, unschedulable={"n2": state})
    wait_until(lambda: len(client.get("/drift").json()["drift"]) == 2)
    clock.now += 90_000
    page = get(client, "/page/nodes/n1")
    assert cells(page, "Difference") == ["blocked, but still gets work"]
    assert cells(page, "Reported") == ["IDLE"]
    assert cells(page, "Since") == ["1 min 30 s ago or longer"]
    # The node is known from this alone.
    assert cells(get(client, "/page/nodes/n2"), "Difference") == ["free, but gets no work"]
    other = get_blocked(client, "n3")
    assert facts(other)["Drift"].startswith("none that is reported, 1 min 30 s ago")
    listener = get(client, "/page/listeners/slurm")
    assert cells(listener, "Difference") == ["blocked, but still gets work", "free, but gets no work"]


def test_the_history_is_read_in_pages(client: TestClient, clock: ManualClock) -> None:
    for _ in range(PAGE_SIZE):
        put(client, "n1")
        clock.now += 1_000
        client.delete("/blocklist/nodes/n1").raise_for_status()
        clock.now += 1_000
    page = get(client, "/page/nodes/n1")
    assert page.count('<li class="') == PAGE_SIZE
    assert f"Blocked for 50 s of the last 30 days, in {PAGE_SIZE} blocks." in text_of(page)
    older = re.search(r'href="(/page/nodes/n1\?after=[0-9]+)"', page)
    assert older
    second = get(client, older[1])
    assert second.count('<li class="') == PAGE_SIZE
    assert (">Older changes<" in second, ">Newest changes<" in second, "<svg" in second) == (False, True, False)
    assert f"/state?after={older[1].partition('=')[2]}" in second, "updates stay on the page"


def test_only_the_latest_changes_are_in_the_strip(client: TestClient, clock: ManualClock) -> None:
    for number in range(MAX_CHANGES + 2):
        body = block(cause=f"c{number % 3}{number}", allowMerge=True)
        client.put("/blocklist/nodes/n1", json=body).raise_for_status()
        clock.now += 1_000
    text = text_of(get(client, "/page/nodes/n1"))
    assert "from which its changes are known here, in 1 block." in text
    assert "unknown" in text


def test_what_is_reported_is_escaped(client: TestClient) -> None:
    evil = "<img src=x onerror=window.hit=1>"
    register(client)
    put(client, "n1", cause=evil)
    report = {"n1": {"kind": "slow", "reason": evil}}
    heartbeat(client, ackedRevision=1, taskManagers={"tm": "n1"}, refused={"n1": evil}, evidence=report)
    page = get(client, "/page/nodes/n1")
    assert evil not in page
    assert text_of(page).count(evil) >= 4
