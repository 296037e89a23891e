"""Another machine under the name of a blocked one: automatic owners are asked again, people are not overruled."""

from __future__ import annotations

from typing import Final

import httpx

from app.listeners.drift import RELEASE_SECONDS
from tests.alertmanager.posts import alert, post
from tests.integration.bodies import all_changes
from tests.integration.conftest import StartInProcess
from tests.integration.in_process import InProcessService
from tests.integration.listeners import RM, heartbeat, register
from tests.integration.test_alertmanager import post_alerts
from tests.integration.test_evidence import report_evidence

ALERT: Final = {**alert("DiskFull"), "startsAt": "1970-01-01T00:16:39.5Z"}
REPLACED: Final = {"n1": "Another machine has this name."}


def owners(client: httpx.Client) -> list[str]:
    answer = client.get("/blocklist/nodes/n1/claims")
    claims = [] if answer.status_code == 404 else answer.json()["claims"]
    return sorted(it["owner"].partition("/")[0] for it in claims)


def pass_time(service: InProcessService, seconds: float) -> None:
    """What has become due meanwhile is done."""
    end = service.clock() + round(seconds * 1000)
    service.until(lambda: service.clock() >= end)


def test_automatic_claims_from_before_end_and_their_owners_may_block_again(start_in_process: StartInProcess) -> None:
    service = start_in_process()
    with service.client() as client:
        post_alerts(client, post(ALERT))
        client.put(
            "/blocklist/nodes/n1/claims/anna", json={"action": "MARK_BLOCKED", "cause": "DIMM"}
        ).raise_for_status()
        assert owners(client) == ["alertmanager", "anna"]
        register(client, "k8s", role=RM)
        since = service.clock() + 1
        heartbeat(client, "k8s", replaced=REPLACED, newMachines={"n1": str(since)})
        service.until(lambda: owners(client) == ["anna"])
        assert all_changes(client)[-1]["type"] == "narrowed"
        # The alert still fires, on the new machine, of which the manager goes on to report the same.
        service.clock.advance(2)
        post_alerts(client, post(ALERT))
        heartbeat(client, "k8s", replaced=REPLACED, newMachines={"n1": str(since)})
        pass_time(service, 10 * RELEASE_SECONDS)
        assert owners(client) == ["alertmanager", "anna"]


def test_a_manager_whose_clock_is_ahead_does_not_end_each_new_claim(start_in_process: StartInProcess) -> None:
    service = start_in_process()
    with service.client() as client:
        register(client, "k8s", role=RM, leaseSeconds=3600)
        heartbeat(client, "k8s", replaced=REPLACED, newMachines={"n1": str(service.clock() + 60_000)})
        post_alerts(client, post(ALERT))
        pass_time(service, 10 * RELEASE_SECONDS)
        assert owners(client) == ["alertmanager"]
        # One may have been made for the former machine: it ends once.
        pass_time(service, 60)
        service.until(lambda: owners(client) == [])
        post_alerts(client, post(ALERT))
        pass_time(service, 10 * RELEASE_SECONDS)
        assert owners(client) == ["alertmanager"]


def test_evidence_about_the_former_machine_does_not_block_the_new_one(start_in_process: StartInProcess) -> None:
    service = start_in_process()
    with service.client() as client:
        client.put("/blocklist/nodes/n1/claims/anna", json={"action": "MARK_BLOCKED", "cause": "DIMM"})
        for name in ("x", "y", "z"):
            register(client, name, leaseSeconds=3600)
            report_evidence(client, name, "n1")
        service.until(lambda: owners(client) == ["anna", "evidence"])
        register(client, "k8s", role=RM, leaseSeconds=3600)
        heartbeat(client, "k8s", replaced=REPLACED, newMachines={"n1": str(service.clock() + 1)})
        service.until(lambda: owners(client) == ["anna"])
        pass_time(service, 10 * RELEASE_SECONDS)
        assert owners(client) == ["anna"]


def test_what_is_not_certain_ends_nothing(start_in_process: StartInProcess) -> None:
    service = start_in_process()
    with service.client() as client:
        post_alerts(client, post(ALERT))
        register(client, "k8s", role=RM)
        heartbeat(client, "k8s", replaced={"n1": "Registered again: it may be another machine."})
        pass_time(service, 10 * RELEASE_SECONDS)
        assert owners(client) == ["alertmanager"]
