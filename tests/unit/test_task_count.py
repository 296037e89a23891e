"""The number of running tasks: what is not reported is unknown, not 0."""

from __future__ import annotations

import pytest

from blocklist.cli.output import APPLIED
from blocklist.model.node import TaskCount
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


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([0], "0 running tasks"), ([1], "1 running task"), ([2000], "2,000 running tasks"),
     ([None], "an unknown number of running tasks"), ([0, None], "an unknown number of running tasks"),
     ([1, 2, None], "3 running tasks, others unknown")],
)  # fmt: skip
def test_a_sentence_says_how_many_tasks_are_unknown(numbers: list[int | None], text: str) -> None:
    assert TaskCount.of(numbers).text() == text


@pytest.mark.parametrize(
    ("numbers", "may_run"), [([], False), ([0, 0], False), ([0, None], True), ([None], True), ([1], True)]
)
def test_tasks_may_run_where_none_are_reported(numbers: list[int | None], may_run: bool) -> None:
    assert TaskCount.of(numbers).may_run is may_run
