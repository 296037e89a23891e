"""Drift in a running service: what listeners report, GET /drift and the metric; at replicas too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from app.listeners import drift
from blocklist import BlocklistClient
from tests.integration.bodies import block
from tests.integration.conftest import StartInProcess
from tests.integration.databases import ON_SQLITE
from tests.integration.in_process import InProcessService, ManualClock, RunningClock, running_service
from tests.integration.listeners import RM, heartbeat, put, register, registration_body, unblock

EVACUATE: Final = "MARK_BLOCKED_AND_EVACUATE_TASKS"
KINDS: Final = ("replaced", "schedulable", "tasks-running", "tasks-started", "unschedulable")


def drift_of(client: httpx.Client) -> list[dict[str, Any]]:
    answer = client.get("/drift")
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["drift"]
    return found


def is_drift(client: httpx.Client, *expected: tuple[str, str, str]) -> bool:
    """Whether the drift is exactly this: node, kind and listener."""
    return [(each["node"], each["kind"], each["listener"]) for each in drift_of(client)] == [*expected]


def wait_for_drift(
    service: InProcessService, *expected: tuple[str, str, str], before: Callable[[], object] = bool
) -> list[dict[str, Any]]:
    """Advance the clock until the drift is exactly this; `before` is called before each look."""
    client = service.client()
    service.until(lambda: (before(), is_drift(client, *expected))[1], step=0.5)
    return drift_of(client)


def drift_metric(client: httpx.Client) -> dict[str, float]:
    lines = [line for line in client.get("/metrics").text.splitlines() if line.startswith("blocklist_drift_nodes{")]
    return {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in lines}


@ON_SQLITE
def test_a_node_that_is_free_here_and_cordoned_there_is_drift_until_either_changes(
    start_in_process: StartInProcess,
) -> None:
    service = start_in_process()
    client = service.client()
    register(client, "slurm", role=RM)
    heartbeat(client, "slurm", unschedulable={"n1": "DRAIN (new disk)", "n2.example.com": "DOWN"})
    first, *_ = wait_for_drift(service, ("n1", "unschedulable", "slurm"), ("n2.example.com", "unschedulable", "slurm"))
    since = first.pop("since")
    assert first == {
        "node": "n1",
        "blocked": False,
        "kind": "unschedulable",
        "listener": "slurm",
        "beginObserved": False,
        "reason": "DRAIN (new disk)",
    }
    put(client, "N2")
    (kept,) = wait_for_drift(service, ("n1", "unschedulable", "slurm"))
    assert kept["since"] == since
    unblock(client, "n2")
    wait_for_drift(service, ("n1", "unschedulable", "slurm"), ("n2.example.com", "unschedulable", "slurm"))
    assert drift_metric(client) == dict.fromkeys(KINDS, 0) | {"unschedulable": 2}
    with BlocklistClient(service.url) as blocklist:
        assert [each.node for each in blocklist.drift().drift] == ["n1", "n2.example.com"]
    heartbeat(client, "slurm", unschedulable={})
    wait_for_drift(service)
    assert drift_metric(client) == dict.fromkeys(KINDS, 0)


@ON_SQLITE
def test_a_node_that_is_blocked_here_and_schedulable_there_is_drift_once_the_manager_applied_the_block(
    start_in_process: StartInProcess,
) -> None:
    service = start_in_process()
    client = service.client()
    register(client, "slurm", role=RM)
    revision = put(client, "n1")
    heartbeat(client, "slurm", schedulable={"n1": "IDLE"}, unschedulable={"n9": "DRAIN"})
    wait_for_drift(service, ("n9", "unschedulable", "slurm"))
    heartbeat(client, "slurm", ackedRevision=revision)
    found = wait_for_drift(service, ("n1", "schedulable", "slurm"), ("n9", "unschedulable", "slurm"))
    assert [each["blocked"] for each in found] == [True, False]


@ON_SQLITE
def test_tasks_that_keep_running_on_an_evacuated_node_are_drift_and_unreported_ones_unknown(
    start_in_process: StartInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drift, "EVACUATION_MS", 0)
    service = start_in_process()
    client = service.client()
    put(client, "n1", action=EVACUATE)
    put(client, "n2", action=EVACUATE)
    put(client, "n3")
    for name in ("app-1", "app-2"):
        register(client, name)
    heartbeat(
        client,
        "app-1",
        taskManagers={"a:1": "n1.example.com", "a:2": "n2", "a:3": "n3"},
        runningTasks={"a:1": 2, "a:2": 0, "a:3": 5},
        refused={"n1": "It is the last host."},
    )
    heartbeat(client, "app-2", taskManagers={"b:1": "n2"})
    (found,) = wait_for_drift(service, ("n1", "tasks-running", "app-1"))
    assert found["reason"] == "2 running tasks; the listener refuses the block: It is the last host."
    assert client.get("/drift").json()["unknown"] == [{"node": "n2", "listener": "app-2"}]
    client.delete("/listeners/app-1")
    wait_for_drift(service)


@ON_SQLITE
def test_tasks_that_start_after_the_listener_applied_the_block_are_drift(start_in_process: StartInProcess) -> None:
    """Not those of the executor that a canary leaves."""
    service = start_in_process()
    client = service.client()
    put(client, "n1")
    canary = {"action": "MARK_BLOCKED", "cause": "slow", "canary": True}
    answer = client.put("/blocklist/nodes/n2/claims/detection", json=canary).raise_for_status()
    revision = int(answer.headers["blocklist-revision"])
    register(client, "app-1", leaseSeconds=5)
    tasks = {"count": 1}

    def report() -> None:
        """More tasks with each look once the block has been in force for long enough."""
        tasks["count"] += 1
        running = {"a:1": tasks["count"], "a:2": tasks["count"]}
        on_nodes = {"a:1": "n1", "a:2": "n2"}
        heartbeat(client, "app-1", ackedRevision=revision, taskManagers=on_nodes, runningTasks=running)

    (found,) = wait_for_drift(service, ("n1", "tasks-started", "app-1"), before=report)
    assert found["reason"] == "tasks started on a:1 after the listener had applied the block"


@ON_SQLITE
@pytest.mark.parametrize("is_left_between", [False, True])
def test_what_a_canary_ran_between_two_blocks_for_all_is_no_drift(database_url: str, *, is_left_between: bool) -> None:
    clock = ManualClock()
    with running_service(database_url, clock) as client:
        node = "/blocklist/nodes/n1"
        client.put(f"{node}/claims/detection", json=block(canary=True))
        client.put("/listeners/app-1", json=registration_body(leaseSeconds=5))

        def block_for_all_and_observe(running: int) -> list[str]:
            answer = client.put(node, json=block(allowMerge=True))
            report = {"taskManagers": {"a:1": "n1"}, "runningTasks": {"a:1": running}}
            acked = {"sessionId": "s1", "ackedRevision": int(answer.headers["blocklist-revision"]), **report}
            assert client.post("/listeners/app-1/heartbeat", json=acked).status_code == 200
            assert client.portal is not None
            observe = client.app.state.service.drift.observe  # type: ignore[attr-defined]
            return [str(found.kind) for found in client.portal.call(observe).drift]

        assert block_for_all_and_observe(0) == []
        for seconds in (3, 3):
            clock.now += seconds * 1000
            assert block_for_all_and_observe(0) == []
        clock.now += 1000
        if is_left_between:
            client.delete(f"{node}/claims/anonymous")
        assert block_for_all_and_observe(1) == ([] if is_left_between else ["tasks-started"])


@pytest.mark.databases("postgresql")
def test_every_replica_knows_what_was_reported_to_one(start_in_process: StartInProcess, tmp_path: Path) -> None:
    clock = RunningClock()
    services = [start_in_process(tmp_path, clock=clock) for _ in range(2)]
    one = services[0].client()
    register(one, "slurm", role=RM, leaseSeconds=3600)
    heartbeat(one, "slurm", unschedulable={"n1": "DRAIN (new disk)"})
    for service in services:
        wait_for_drift(service, ("n1", "unschedulable", "slurm"))
