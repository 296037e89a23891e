"""BLOCKLIST_NODES_FILE: nodes that nobody reports; read again when the file changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx
import pytest
from structlog.testing import capture_logs

from tests.integration.bodies import block
from tests.integration.conftest import StartInProcess
from tests.integration.in_process import InProcessService, RunningClock

GOOD: Final = "id,addresses,labels\nworker-7,10.0.0.7,rack=r12\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "nodes.csv"
    path.write_text(GOOD)
    return path


@pytest.fixture
def service(start_in_process: StartInProcess, file: Path) -> InProcessService:
    """A service that has read the good file."""
    service = start_in_process(nodes_file=str(file))
    assert total(service.client()) == 1
    return service


def wait_faulty(client: httpx.Client, until: Callable[[Callable[[], bool]], None]) -> None:
    """Wait until the service has seen the fault. Only then do two requests have to agree."""
    until(lambda: "cannot be used" in client.get("/readyz").text)
    assert is_faulty(client)


def is_faulty(client: httpx.Client) -> bool:
    faulty = "cannot be used" in client.get("/readyz").text
    assert faulty == ("blocklist_nodes_file_faulty 1.0" in client.get("/metrics").text)
    return faulty


def total(client: httpx.Client) -> int:
    return int(client.get("/nodes").json()["total"])


def test_its_nodes_are_known_from_the_start_and_a_fault_leaves_them_in_force(
    service: InProcessService, file: Path
) -> None:
    client = service.client()
    node = client.get("/nodes/10.0.0.7").json()
    assert (node["id"], node["labels"], node["lastSeen"]) == ("worker-7", {"rack": "r12"}, None)
    assert node["reportedBy"] == [{"id": "file", "kind": "file", "lastSeen": None}]
    client.put("/blocklist/nodes/10.0.0.7", json=block())
    assert client.get("/blocklist/nodes/worker-7").json()["id"] == "10.0.0.7"
    with capture_logs() as logs:
        file.write_text("id,addresses,labels\nworker-7,10.0.0.7,rack=r12\nworker-8,worker-9,\n")
        wait_faulty(client, service.until)
        assert "line 3, column 2 (addresses)" in str(logs)
        assert (client.get("/readyz").status_code, total(client)) == (200, 1)
        file.unlink()
        service.until(lambda: "No such file" in str(logs))
        assert total(client) == 1
    file.write_text("id\nworker-8\nworker-9\n")
    service.until(lambda: total(client) == 2)
    assert client.get("/readyz").text == "ready\n"
    assert not is_faulty(client)


def test_a_service_starts_with_a_file_that_cannot_be_read_and_says_so(
    start_in_process: StartInProcess, tmp_path: Path
) -> None:
    file = tmp_path / "nodes.csv"
    os.mkfifo(file)
    with capture_logs() as logs:
        client = start_in_process(nodes_file=str(file)).client()
    assert (is_faulty(client), total(client)) == (True, 0)
    assert "is not a regular file" in str(logs)


@pytest.mark.databases("postgresql")
def test_each_replica_reads_its_own_copy(start_in_process: StartInProcess, tmp_path: Path, file: Path) -> None:
    clock = RunningClock()
    services = [start_in_process(tmp_path, clock=clock, nodes_file=str(file)) for _ in range(2)]
    file.unlink()
    for service in services:
        wait_faulty(service.client(), service.until)
        assert total(service.client()) == 1
    file.write_text("id\nworker-8\nworker-9\n")
    for service in services:
        service.until(lambda service=service: total(service.client()) == 2)  # type: ignore[misc]
