"""The metrics of the service."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from blocklist import __version__
from tests.integration.bodies import block, later
from tests.integration.conftest import StartInProcess
from tests.integration.in_process import InProcessService
from tests.integration.process import ServiceProcess, http_client, wait_until
from tests.integration.raw_http import exchange, request


def value(client: httpx.Client, name: str, **labels: str) -> float:
    """Sum of the samples with at least these labels."""
    families = text_string_to_metric_families(client.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def test_changes_are_counted_by_kind_and_source(timed: InProcessService) -> None:
    fresh_client = timed.client()
    fresh_client.put("/blocklist/nodes/a", json=block())
    fresh_client.put("/blocklist/nodes/a", json=block(cause="b", allowMerge=True))
    fresh_client.put("/blocklist/nodes", json={"b": block(endTimestamp=later(60)), "c": block()})
    fresh_client.delete("/blocklist/nodes/c")

    def changes(**labels: str) -> float:
        return value(fresh_client, "blocklist_changes_total", **labels)

    timed.clock.advance(60)
    wait_until(lambda: changes(type="expired", source="time") == 1)
    assert changes(type="blocked", source="request") == 3
    assert changes(type="merged", source="request") == 1
    assert changes(type="unblocked", source="request") == 1
    assert changes() == 6
    assert value(fresh_client, "blocklist_expiry_lateness_seconds_count") == 1
    assert value(fresh_client, "blocklist_commit_changes_sum") == 6
    assert value(fresh_client, "blocklist_commit_seconds_count") == value(
        fresh_client, "blocklist_commit_changes_count"
    )


@pytest.mark.parametrize("fast_path", ["true", "false"])
def test_requests_are_counted_by_route_on_both_paths(start_in_process: StartInProcess, fast_path: str) -> None:
    service = start_in_process(fast_path=fast_path)
    node = "/blocklist/nodes/{node_id}"
    with http_client(service.url) as client:
        for n in (1, 2, 2):
            client.put(f"/blocklist/nodes/n{n}", json=block())
        client.put("/blocklist/nodes/bad", content=b"x")
        for n in range(3):
            client.get(f"/blocklist/nodes/free-{n}")
        client.get("/no/such/path")

        def requests(route: str, method: str, status: str) -> float:
            labels = {"route": route, "method": method, "status": status}
            slow = value(client, "blocklist_request_seconds_count", **labels)
            return slow + value(client, "blocklist_fast_requests_total", **labels)

        assert requests(node, "PUT", "2xx") == 2
        assert requests(node, "PUT", "4xx") == 2
        assert requests(node, "GET", "4xx") == 3
        assert requests("none", "GET", "4xx") == 1
        assert (value(client, "blocklist_fast_requests_total", method="PUT") > 0) is (fast_path == "true")


def test_unknown_methods_are_not_labels(fresh: ServiceProcess) -> None:
    for n in range(3):
        exchange(fresh.port, request("/blocklist", method=f"BREW{'X' * n}" if n else "PATCH"))
    with fresh.client() as client:
        methods = client.get("/metrics").text
    assert "BREW" not in methods
    assert "PATCH" not in methods


def test_the_lag_of_a_listener_that_does_not_acknowledge_grows(timed: InProcessService) -> None:
    fresh_client = timed.client()
    fresh_client.put("/blocklist/nodes/before", json=block())
    wait = {"role": "JOB_MASTER", "sessionId": "s", "leaseSeconds": 3600, "product": "own", "version": "7"}
    fresh_client.put("/listeners/jm", json=wait).raise_for_status()
    timed.clock.advance(30)
    assert value(fresh_client, "blocklist_listener_lag_seconds") >= 30
    assert value(fresh_client, "blocklist_listeners_behind", role="JOB_MASTER") == 1
    assert value(fresh_client, "blocklist_listeners_behind", role="RESOURCE_MANAGER") == 0
    assert value(fresh_client, "blocklist_listeners", role="JOB_MASTER", state="live") == 1
    assert value(fresh_client, "blocklist_listener_versions", product="own", version="7") == 1
    assert value(fresh_client, "blocklist_listener_lag_revisions") == 1
    fresh_client.post("/listeners/jm/heartbeat", json={"sessionId": "s", "ackedRevision": 1}).raise_for_status()
    assert value(fresh_client, "blocklist_listener_lag_seconds") == 0
    assert value(fresh_client, "blocklist_listeners_behind", role="JOB_MASTER") == 0


def test_version_resources_and_database_are_shown(client: httpx.Client) -> None:
    assert value(client, "blocklist_build_info", version=__version__) == 1
    assert value(client, "process_resident_memory_bytes") > 1_000_000
    assert value(client, "process_open_fds") > 3
    assert value(client, "blocklist_database_up") == 1
    assert value(client, "blocklist_database_outage_seconds") == 0
    assert value(client, "blocklist_queued_changes") == 0
    assert value(client, "blocklist_log_lines_lost_total") == 0


def test_refused_credentials_are_counted_by_reason(start_in_process: StartInProcess, tmp_path: Path) -> None:
    service = start_in_process(auth="tokens", admin_token_file=str(tmp_path / "admin"))
    admin = {"authorization": f"Bearer {(tmp_path / 'admin').read_text().strip()}"}
    with service.client() as client:
        reader = client.post("/tokens", json={"name": "r", "role": "reader"}, headers=admin).json()["token"]
        client.get("/listeners")
        client.put("/blocklist/nodes/a", json=block())
        client.get("/listeners", headers={"authorization": "Bearer blocklist_00000000_" + "A" * 43})
        client.put("/blocklist/nodes/a", json=block(), headers={"authorization": f"Bearer {reader}"})
        client.headers.update(admin)
        denied = {
            reason: value(client, "blocklist_requests_denied_total", reason=reason)
            for reason in ("missing", "invalid", "forbidden")
        }
    assert denied == {"missing": 2, "invalid": 1, "forbidden": 1}


def test_a_list_that_has_just_changed_is_read_on_the_fast_path(start_in_process: StartInProcess) -> None:
    """Otherwise every change would send all clients that poll to the slow path."""
    with http_client(start_in_process().url) as client:
        for number in range(3):
            client.put(f"/blocklist/nodes/n{number}", json=block())
            assert len(client.get("/blocklist").json()) == number + 1
        assert value(client, "blocklist_list_reads_total", path="fast") == 3
        assert value(client, "blocklist_list_reads_total", path="route") == 0
