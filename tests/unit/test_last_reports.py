"""What is kept of the last report of a lapsed listener is bounded."""

from __future__ import annotations

import pytest

from app.listeners.reports import MAX_HOSTS, MAX_LISTENERS, MAX_REFUSED, LastReports
from blocklist.model.listener import EMPTY_REPORT, Report
from blocklist.model.node import TaskCount
from tests.unit.test_listener_directory import job_master, new_directory

pytestmark = pytest.mark.anyio


def test_the_nodes_with_most_tasks_are_kept() -> None:
    reports = LastReports()
    number = MAX_HOSTS + 30
    task_managers = {f"tm-{place}": f"n{place}" for place in range(number)}
    refused = {f"n{place:03}": "no" for place in range(MAX_REFUSED + 9)}
    running = {f"tm-{place}": place for place in range(number)}
    reports.record("jm", Report(task_managers=task_managers, running_tasks=running, refused=refused))
    kept = reports.get("jm")
    assert kept is not None
    assert (len(kept.hosts), kept.reported_hosts) == (MAX_HOSTS, number)
    assert (kept.hosts[0].node, kept.hosts[0].tasks) == (f"n{number - 1}", TaskCount(number - 1, 1, 0))
    assert (list(kept.refused or ()), kept.reported_refusals) == (sorted(refused)[:MAX_REFUSED], MAX_REFUSED + 9)


def test_the_listener_that_lapsed_first_is_forgotten_first() -> None:
    reports = LastReports()
    report = Report(task_managers={"tm": "n1"})
    for number in range(MAX_LISTENERS + 2):
        reports.record(f"jm-{number}", report)
        reports.record("jm-0", report)
    assert len(reports) == MAX_LISTENERS
    assert reports.get("jm-0") is not None
    assert reports.get("jm-1") is None
    assert reports.get("jm-4") is not None


def test_a_listener_that_reported_nothing_leaves_nothing() -> None:
    reports = LastReports()
    reports.record("jm", Report(task_managers={"tm": "n1"}))
    reports.record("jm", EMPTY_REPORT)
    assert reports.get("jm") is None


async def test_it_is_kept_from_the_lapse_until_the_listener_leaves_or_registers_again() -> None:
    _, _, directory, _ = new_directory()
    report = Report(task_managers={"tm": "n1"}, running_tasks={"tm": 2})
    for registers_again in (False, True):
        directory.add(entry := job_master())
        directory.apply_report(entry, report, 0)
        assert directory.last_reports.get(entry.id) is None
        directory.expire(entry)
        kept = directory.last_reports.get(entry.id)
        assert kept is not None
        assert [(host.node, host.tasks.known) for host in kept.hosts] == [("n1", 2)]
        if registers_again:
            directory.add(job_master())
        else:
            directory.remove(entry.id)
        assert len(directory.last_reports) == 0
