"""Repeated automatic blocks last longer: with alerts and evidence, restarts and replicas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import httpx2
import pytest

from blocklist.model.evidence import BLOCK_MS
from tests.alertmanager.posts import alert, post
from tests.integration.bodies import all_changes, block
from tests.integration.command import Command
from tests.integration.conftest import StartInProcess
from tests.integration.databases import ON_BOTH
from tests.integration.in_process import InProcessService, ManualClock, RunningClock, running_service
from tests.integration.listeners import heartbeat, register
from tests.integration.process import wait_until

HOUR: Final = 3_600_000
DAY: Final = 24 * HOUR
ALERTS: Final = "/integrations/alertmanager"
EXCLUDED: Final = {"kind": "excluded", "reason": "Spark excluded the host."}
Client = httpx.Client | httpx2.Client


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000 * DAY)


@pytest.fixture
def service(database_url: str, clock: ManualClock) -> Iterator[httpx2.Client]:
    """A client of a service with an empty list, in this process."""
    with running_service(database_url, clock) as client:
        yield client


def fire(client: Client, node: str = "n1", name: str = "DiskFull") -> dict[str, int]:
    answer = client.post(ALERTS, json=post(alert(name, node=node)))
    assert answer.status_code == 200, answer.text
    outcomes: dict[str, int] = answer.json()["alerts"]
    return outcomes


def resolve(client: Client, node: str = "n1") -> None:
    body = post(alert(node=node, resolved=True))
    assert client.post(ALERTS, json=body).json()["alerts"] == {"freed": 1}


def flap(client: Client, times: int, node: str = "n1") -> None:
    """The alert fires and resolves this number of times."""
    for _ in range(times):
        assert fire(client, node) == {"blocked": 1}
        resolve(client, node)


def claims(client: Client, node: str = "n1") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(f"/blocklist/nodes/{node}/claims").json()["claims"]
    return found


def repeat_of(client: Client, node: str = "n1") -> dict[str, int] | None:
    """The repeat of the only claim on the node."""
    (only,) = claims(client, node)
    assert "repeat" not in only or only["repeat"] is not None
    return only.get("repeat")


def status(client: Client, node: str = "n1") -> dict[str, Any]:
    answer = client.get(f"/blocklist/nodes/{node}/status")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return {name: body[name] for name in ("automaticBlocks", "repeat")}


def repeat(number: int, hours: int) -> dict[str, int]:
    return {"number": number, "windowMs": 30 * DAY, "usualMs": HOUR, "durationMs": hours * HOUR}


class TestAlerts:
    def test_the_history_and_the_status_say_so(self, service: httpx2.Client) -> None:
        flap(service, 2)
        fire(service)
        assert repeat_of(service) == repeat(3, 4)
        assert all_changes(service)[-1]["claims"][0]["repeat"] == repeat(3, 4)
        assert "repeat" not in all_changes(service)[0]["claims"][0]
        assert status(service) == {"automaticBlocks": 3, "repeat": repeat(3, 4)}
        page = service.get("/page/nodes/n1").text
        assert "Third automatic block in 30 days: 4h instead of 1h" in page

    def test_what_is_sent_again_is_no_further_block(self, service: httpx2.Client, clock: ManualClock) -> None:
        flap(service, 1)
        fire(service)
        clock.now += HOUR + 1
        assert fire(service) == {"renewed": 1}
        assert (repeat_of(service), claims(service)[0]["endTimestamp"]) == (repeat(2, 2), str(clock.now + 2 * HOUR))
        assert fire(service, name="Hot") == {"merged": 1}
        assert [it["repeat"]["number"] for it in claims(service)] == [2, 2]

    def test_alerts_of_one_transaction_count(self, service: httpx2.Client) -> None:
        flap(service, 1, "n1")
        flap(service, 2, "n2")
        service.post(ALERTS, json=post(alert(node="N1.example.com"), alert(node="n2")))
        assert (repeat_of(service, "n1"), repeat_of(service, "n2")) == (repeat(2, 2), repeat(3, 4))

    def test_what_an_operator_claims_is_never_changed(self, service: httpx2.Client, clock: ManualClock) -> None:
        flap(service, 3)
        assert service.put("/blocklist/nodes/n1", json=block(endTimestamp=clock.now + 5)).status_code == 201
        assert service.get("/blocklist/nodes/n1").json()["endTimestamp"] == str(clock.now + 5)
        path = "/blocklist/nodes/n1/claims/alertmanager/x"
        answer = service.put(path, json={"action": "MARK_BLOCKED", "cause": "x", "endTimestamp": clock.now + 9})
        assert answer.json()["claim"]["endTimestamp"] == str(clock.now + 9)


def test_a_limit_for_operators_shortens_it_instead_of_refusing_it(start_in_process: StartInProcess) -> None:
    with start_in_process(longest_block_operator="3h").client() as client:
        flap(client, 3)
        assert fire(client) == {"blocked": 1}
        assert repeat_of(client) == repeat(4, 3)


def test_a_window_of_0_disables_it(start_in_process: StartInProcess) -> None:
    with start_in_process(repeat_window="0").client() as client:
        flap(client, 3)
        fire(client)
        assert repeat_of(client) is None
        assert status(client) == {"automaticBlocks": 0, "repeat": None}


@ON_BOTH
def test_it_is_the_same_after_a_restart(database_url: str, clock: ManualClock) -> None:
    with running_service(database_url, clock) as client:
        flap(client, 2, "n1")
        flap(client, 1, "n2")
        fire(client, "n2")
        client.delete("/blocklist/nodes/n2")
        client.put("/blocklist/nodes/n3/claims/kernel", json={"action": "MARK_BLOCKED", "cause": '"owner":"detection"'})
        client.delete("/blocklist/nodes/n3")
        fire(client, "n4")
        before = [status(client, f"n{number}") for number in (1, 2, 3, 4)]
    with running_service(database_url, clock) as client:
        assert [status(client, f"n{number}") for number in (1, 2, 3, 4)] == before
        assert [it["automaticBlocks"] for it in before] == [2, 1, 0, 1]
        client.post(ALERTS, json=post(alert(node="n2", resolved=True)))
        fire(client, "n1")
        fire(client, "n2")
        assert (repeat_of(client, "n1"), repeat_of(client, "n2")) == (repeat(3, 4), repeat(2, 2))
    with running_service(database_url, clock) as client:
        assert repeat_of(client, "n1") == repeat(3, 4)


@ON_BOTH
@pytest.mark.parametrize("path", ["/blocklist/nodes/n1", "/blocklist/nodes/n1/claims/kernel"])
@pytest.mark.parametrize("ending", ["resolved", "expired"])
def test_an_alert_that_had_ended_was_not_wrong_when_the_node_is_unblocked(
    database_url: str, clock: ManualClock, path: str, ending: str
) -> None:
    with running_service(database_url, clock) as client:
        fire(client)
        client.put("/blocklist/nodes/n1/claims/kernel", json=block())
        if ending == "resolved":
            assert client.post(ALERTS, json=post(alert(resolved=True))).json()["alerts"] == {"kept": 1}
        clock.now += 2 * HOUR
    with running_service(database_url, clock) as client:
        assert client.put("/blocklist/nodes/n1/claims/kernel", json=block(cause="longer")).status_code == 200
        assert client.delete(path).status_code == 200
        assert status(client)["automaticBlocks"] == 1
    with running_service(database_url, clock) as client:
        assert status(client)["automaticBlocks"] == 1
        fire(client)
        assert repeat_of(client) == repeat(2, 2)


def test_an_alert_that_fired_again_on_a_blocked_node_was_wrong_when_the_node_is_unblocked(
    database_url: str, clock: ManualClock
) -> None:
    with running_service(database_url, clock) as client:
        fire(client)
        client.put("/blocklist/nodes/n1/claims/kernel", json=block())
        client.post(ALERTS, json=post(alert(resolved=True)))
        fire(client)
        client.delete("/blocklist/nodes/n1")
        assert status(client)["automaticBlocks"] == 0
    with running_service(database_url, clock) as client:
        assert status(client)["automaticBlocks"] == 0


class TestReplicas:
    pytestmark = pytest.mark.databases("postgresql")

    def test_each_knows_the_blocks_of_the_others(self, start_in_process: StartInProcess, tmp_path: Path) -> None:
        clock = RunningClock()
        a, b = (start_in_process(tmp_path, clock=clock).client() for _ in "ab")
        fire(a)
        resolve(b)
        fire(b)
        assert repeat_of(b) == repeat(2, 2)
        resolve(a)
        fire(a)
        wait_until(lambda: status(a) == status(b))
        assert repeat_of(a) == repeat(3, 4)


class TestEvidence:
    @pytest.fixture
    def service(self, start_in_process: StartInProcess) -> InProcessService:
        return start_in_process()

    @pytest.fixture
    def client(self, service: InProcessService) -> Iterator[httpx.Client]:
        with service.client() as client:
            yield client

    def test_its_blocks_count_with_those_of_alerts(self, service: InProcessService, client: httpx.Client) -> None:
        flap(client, 2)
        for name in ("x", "y"):
            register(client, name)
            heartbeat(client, name, taskManagers={f"{name}:1": "n1", f"{name}:2": "n2"})
        begun = service.clock()
        for name in ("x", "y"):
            heartbeat(client, name, evidence={"n1": EXCLUDED})
        service.until(lambda: client.get("/blocklist/nodes/n1").status_code == 200)
        (claim,) = claims(client)
        assert claim["cause"].startswith("2 applications say so: x (Spark excluded the host)")
        assert claim["repeat"] == {
            "number": 3, "windowMs": 30 * DAY, "usualMs": BLOCK_MS, "durationMs": 4 * BLOCK_MS
        }  # fmt: skip
        assert begun + 4 * BLOCK_MS <= int(claim["endTimestamp"]) <= service.clock() + 4 * BLOCK_MS


def test_the_command_says_so(start_in_process: StartInProcess, binaries: Path) -> None:
    service = start_in_process()
    with service.client() as client:
        flap(client, 2)
        fire(client)
    command = Command(binaries, service.url)
    assert "(third automatic block in 30 days: 4h instead of 1h)" in command.stdout_of("history", "n1")
    said = command.run("status", "n1").stderr
    assert "Its block is the third automatic block in 30 days: 4h instead of 1h." in said
