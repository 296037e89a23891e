"""The number of running tasks: what is not reported is unknown, not 0."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blocklist.cli.output import APPLIED
from blocklist.model.node import BlockState, TaskCount, any_silent, block_state
from blocklist.wire.listeners import AppliedBody


def applied_body(numbers: list[int | None]) -> AppliedBody:
    task_managers = [{"id": f"tm:{at}", "runningTasks": number} for at, number in enumerate(numbers)]
    listener = {"id": "app-1", "role": "JOB_MASTER", "applied": True, "appliedAt": None, "lateMs": None}
    return AppliedBody.parse({**listener, "refused": None, "taskManagers": task_managers})


@pytest.mark.parametrize(
    ("numbers", "cell"),
    [([], "0"), ([0], "0"), ([1, 2], "3"), ([None], "unknown"), ([None, None], "unknown"), ([3, None], "3+?"),
     ([0, None], "0+?"), ([2000], "2000")],
)  # fmt: skip
def test_the_column_tasks_shows_what_is_not_reported_as_unknown(numbers: list[int | None], cell: str) -> None:
    assert APPLIED.columns["TASKS"](applied_body(numbers)) == cell


def test_the_column_tasks_of_a_job_that_reports_no_task_managers_is_unknown() -> None:
    assert APPLIED.columns["TASKS"](replace(applied_body([]), reports_task_managers=False)) == "unknown"


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([0], "0 running tasks"), ([1], "1 running task"), ([2000], "2,000 running tasks"),
     ([None], "an unknown number of running tasks"), ([0, None], "an unknown number of running tasks"),
     ([1, 2, None], "3 running tasks, others unknown")],
)  # fmt: skip
def test_a_sentence_says_how_many_tasks_are_unknown(numbers: list[int | None], text: str) -> None:
    assert TaskCount.of(numbers).text() == text


@pytest.mark.parametrize(
    ("numbers", "silent", "state"),
    [
        ([], False, BlockState.EMPTY),
        ([0, 0], False, BlockState.EMPTY),
        ([0, None], False, BlockState.UNKNOWN),
        ([None], False, BlockState.UNKNOWN),
        ([], True, BlockState.UNKNOWN),
        ([0], True, BlockState.UNKNOWN),
        ([1], False, BlockState.RUNNING),
        ([1, None], True, BlockState.RUNNING),
    ],
)
def test_nothing_runs_where_every_job_reports_that(numbers: list[int | None], silent: bool, state: BlockState) -> None:
    tasks = TaskCount.of(numbers, silent=silent)
    assert block_state(tasks, refused=False, applied=True) is state
    assert tasks.may_run is (state is not BlockState.EMPTY)
    assert block_state(tasks, refused=False, applied=False) is BlockState.PENDING
    assert block_state(tasks, refused=True, applied=True) is BlockState.REFUSED


@pytest.mark.parametrize(
    ("jobs", "silent"), [([], True), ([True], False), ([True, True], False), ([True, False], True)]
)
def test_without_a_job_or_with_a_silent_one_it_is_unknown_what_runs(jobs: list[bool], silent: bool) -> None:
    assert any_silent(jobs) is silent
    assert any_silent(jobs, managers_report=True) is (silent and bool(jobs)), (
        "a manager speaks for no job that is silent"
    )
