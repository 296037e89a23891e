"""A clock that is wrong: reported where the database has another, and no lapsed listener comes back."""

from __future__ import annotations

import re
import time

import pytest
from fastapi.testclient import TestClient

from app.main import unix_millis
from tests.integration.in_process import ManualClock, running_service
from tests.integration.listeners import registration_body
from tests.integration.process import wait_until


def metric(client: TestClient, name: str) -> str | None:
    """The value of a metric without labels, as text; None if it has none."""
    found = re.search(rf"(?m)^{name} (\S+)$", client.get("/metrics").text)
    return None if found is None else found[1]


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("seconds", [60, -60])
def test_a_clock_that_differs_from_the_databases_is_reported_and_stays_ready(database_url: str, seconds: int) -> None:
    clock = ManualClock(unix_millis() + seconds * 1000)
    with running_service(database_url, clock) as client:
        wait_until(lambda: "clock" in client.get("/readyz").text)
        assert client.get("/readyz").status_code == 200
        assert abs(float(metric(client, "blocklist_clock_offset_seconds") or 0) - seconds) < 30

        def is_right() -> bool:
            clock.now = unix_millis()
            return client.get("/readyz").text == "ready\n"

        wait_until(is_right)


@pytest.mark.databases("sqlite")
def test_the_offset_is_zero_if_the_database_uses_the_same_clock(database_url: str) -> None:
    with running_service(database_url, ManualClock()) as client:
        assert metric(client, "blocklist_clock_offset_seconds") == "0.0"


@pytest.mark.databases("sqlite")
def test_a_lapsed_listener_stays_lapsed_when_the_clock_is_set_back(database_url: str) -> None:
    clock = ManualClock()
    with running_service(database_url, clock) as client:
        client.put("/listeners/jm", json=registration_body(leaseSeconds=5)).raise_for_status()
        clock.now += 10_000
        wait_until(lambda: metric(client, "blocklist_leases_expired_total") == "1.0")
        clock.now -= 9_000
        assert client.get("/listeners/jm").json()["state"] == "lapsed"
        assert client.post("/listeners/jm/heartbeat", json={"sessionId": "s1"}).status_code == 404
        client.put("/listeners/jm", json=registration_body(leaseSeconds=5)).raise_for_status()
        assert client.get("/listeners/jm").json()["state"] == "live"


@pytest.mark.databases("sqlite", "postgresql")
def test_a_clock_set_back_does_not_prolong_a_lease(database_url: str) -> None:
    """Until the clock has passed the old time again, a listener that has ended would count as live."""
    clock = ManualClock(unix_millis() + 3_600_000)
    with running_service(database_url, clock) as client:
        client.put("/listeners/jm", json=registration_body(leaseSeconds=5)).raise_for_status()
        clock.now -= 3_600_000
        time.sleep(1.5)
        assert client.get("/listeners/jm").json()["state"] == "live"
        clock.now += 6_000
        wait_until(lambda: client.get("/listeners/jm").json()["state"] == "lapsed")
