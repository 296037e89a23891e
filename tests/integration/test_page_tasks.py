"""The page's numbers of running tasks: what a listener does not report is unknown, not 0."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

import pytest
from fastapi.testclient import TestClient

from tests.integration.bodies import EVACUATE, block
from tests.integration.in_process import ManualClock, running_service

UNKNOWN = "an unknown number of running tasks"


@pytest.fixture
def client(database_url: str) -> Iterator[TestClient]:
    with running_service(database_url, ManualClock(1_795_000_000_000)) as client:
        yield client


def report(client: TestClient, *numbers: int | None) -> None:
    """Register a listener for each number: its TaskManager on n1 runs this number of tasks (None: unknown)."""
    for at, number in enumerate(numbers):
        registration = {"role": "JOB_MASTER", "sessionId": "s"}
        client.put(f"/listeners/jm-{at}", json=registration).raise_for_status()
        tasks = {} if number is None else {"runningTasks": {f"tm-{at}": number}}
        heartbeat = {"sessionId": "s", "ackedRevision": 0, "taskManagers": {f"tm-{at}": "n1"}, **tasks}
        client.post(f"/listeners/jm-{at}/heartbeat", json=heartbeat).raise_for_status()


def text_of(html: str) -> str:
    """The text without tags and with single spaces."""
    return " ".join(unescape(re.sub(r"<[^>]*>", "", html)).split())


def cells(html: str, label: str) -> list[str]:
    """The cells of the column."""
    return [text_of(cell) for cell in re.findall(rf'<td data-label="{label}"[^>]*>(.*?)</td>', html, re.DOTALL)]


def get(client: TestClient, path: str) -> str:
    return client.get(path).raise_for_status().text


@pytest.mark.parametrize(
    ("numbers", "cell"),
    [
        ((3, None), "2, 3 tasks still running, others unknown"),
        ((0, None), "2, tasks unknown"),
        ((None, None), "2, tasks unknown"),
        ((1, 2), "2, 3 tasks still running"),
        ((0, 0), "2"),
    ],
)
def test_the_list_shows_that_tasks_are_unknown(client: TestClient, numbers: tuple[int | None, ...], cell: str) -> None:
    report(client, *numbers)
    client.put("/blocklist/nodes/n1", json=block(action=EVACUATE)).raise_for_status()
    assert cells(get(client, "/"), "TaskManagers") == [cell]


@pytest.mark.parametrize(
    ("numbers", "text", "cell"),
    [
        ((3, None), "3 running tasks, others unknown", "3, others unknown"),
        ((0, None), UNKNOWN, "unknown"),
        ((None, None), UNKNOWN, "unknown"),
        ((1, 2), "3 running tasks", "3"),
        ((0, 0), "0 running tasks", "0"),
    ],
)
def test_a_preview_shows_that_tasks_are_unknown(
    client: TestClient, numbers: tuple[int | None, ...], text: str, cell: str
) -> None:
    report(client, *numbers)
    form = {"nodes": "n1", "action": "mark", "cause": "disk", "ends": "for", "for": "2h", "until": ""}
    answer = client.post("/page/block", data=form, headers={"Sec-Fetch-Site": "same-origin"}).raise_for_status()
    assert f"2 TaskManagers of 2 listeners, with {text} What happens" in text_of(answer.text)
    assert cells(answer.text, "Running tasks") == [cell]
    client.put("/blocklist/nodes/n1", json=block()).raise_for_status()
    assert f"2 TaskManagers, with {text} What happens" in text_of(get(client, "/page/nodes/n1/unblock"))
