"""The history page: its charts are computed at most once in 30 s, whatever is requested; its changes are current."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi.testclient import TestClient

from app.page import history
from app.page.history import MAX_AGE_MS, PERIODS
from tests.integration.bodies import block
from tests.integration.in_process import ManualClock, running_service

NOW = 1_795_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def client(database_url: str, clock: ManualClock) -> Iterator[TestClient]:
    with running_service(database_url, clock) as client:
        yield client


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The times of the computations."""
    times: list[int] = []
    draw = history._draw

    def counting(changes: object, current: object, period: tuple[int, int, int], rows: object) -> object:
        times.append(period[-1])
        return draw(changes, current, period, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(history, "_draw", counting)
    return times


def most_at_once(text: str) -> int:
    found = re.search(r"at most ([0-9]+) nodes? at once", text)
    assert found is not None
    return int(found[1])


def get(client: TestClient, days: str = "7", **params: int) -> str:
    return client.get("/page/history", params={"days": days, **params}).raise_for_status().text


def test_charts_are_computed_again_once_they_are_30_s_old(
    client: TestClient, clock: ManualClock, computed: list[int]
) -> None:
    client.put("/blocklist/nodes/a", json=block()).raise_for_status()
    clock.now += 1000
    assert most_at_once(get(client)) == 1
    client.put("/blocklist/nodes/b", json=block()).raise_for_status()
    clock.now += MAX_AGE_MS - 1
    text = get(client)
    assert (most_at_once(text), "/page/nodes/b" in text) == (1, True), "only the table of changes is current"
    clock.now += 1
    assert most_at_once(get(client)) == 2
    assert computed == [NOW + 1000, NOW + 1000 + MAX_AGE_MS]


def test_no_query_has_charts_computed_more_often(client: TestClient, computed: list[int]) -> None:
    client.put("/blocklist/nodes", json={f"n{n}": block() for n in range(60)}).raise_for_status()
    queries = [(days, before) for days in (*PERIODS, "8", "x", "07") for before in range(1, 61, 6)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda query: get(client, query[0], after=query[1]), queries))
    assert len(computed) == len(PERIODS)
