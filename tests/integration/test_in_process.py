"""The service in the test's process behaves as the one in its own."""

from __future__ import annotations

import gc
import logging
import weakref
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import structlog

from tests.integration import command
from tests.integration.bodies import block
from tests.integration.conftest import StartInProcess
from tests.integration.databases import Databases
from tests.integration.in_process import in_process
from tests.integration.raw_http import connection_to, request


def test_time_passes_when_the_clock_is_advanced(start_in_process: StartInProcess) -> None:
    service = start_in_process()
    client = service.client()
    ends = {"endTimestamp": str(service.clock.now + 3_600_000)}
    assert client.put("/blocklist/nodes/n1", json=block(**ends)).status_code == 201
    service.clock.advance(3599)
    assert list(client.get("/blocklist").json()) == ["n1"]
    service.clock.advance(1)
    assert client.get("/blocklist").json() == {}
    service.until(lambda: client.get("/blocklist").headers["blocklist-revision"] == "2")


def test_it_listens_where_a_client_needs_a_port(start_in_process: StartInProcess) -> None:
    service = start_in_process()
    service.client().put("/blocklist/nodes/n1", json=block())
    with httpx.Client(base_url=service.url, trust_env=False) as client:
        assert list(client.get("/blocklist").json()) == ["n1"]
        assert client.put("/blocklist/nodes/n2", json=block()).status_code == 201
    assert list(service.client().get("/blocklist").json()) == ["n1", "n2"]


def test_a_compressed_answer_is_read(start_in_process: StartInProcess) -> None:
    client = start_in_process().client()
    client.put("/blocklist/nodes", json={f"n{number}": block() for number in range(500)}).raise_for_status()
    answer = client.get("/blocklist")
    assert (answer.headers["content-encoding"], len(answer.json())) == ("gzip", 500)


def test_streams_are_read_though_pytest_captures_logs(
    start_in_process: StartInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = start_in_process()
    monkeypatch.setattr(logging.getLogger("uvicorn.access"), "hasHandlers", lambda: True)
    with connection_to(service.port) as connection:
        connection.sendall(request("/blocklist/watch"))
        assert connection.recv(100).startswith(b"HTTP/1.1 200 OK")


def test_what_it_logs_is_not_the_output_of_a_command_that_runs_meanwhile(databases: Databases, tmp_path: Path) -> None:
    with ExitStack() as running:
        service = running.enter_context(in_process(**databases.settings(tmp_path)))

        def change_and_stop() -> int:
            service.client().put("/blocklist/nodes/n1", json=block())
            service.portal.call(structlog.get_logger().warning, "a warning")
            running.close()  # All lines have been written.
            return 0

        done = command.run(env={}, main=change_and_stop)
    assert (done.stdout, done.stderr) == ("", "")


def test_nothing_of_a_service_that_has_ended_is_kept(databases: Databases, tmp_path: Path) -> None:
    """Thousands of services would make each collection of garbage take seconds."""
    with in_process(**databases.settings(tmp_path)) as service:
        assert service.client().get("/openapi.json").status_code == 200
        app = weakref.ref(service.app)
    del service
    gc.collect()
    assert app() is None
