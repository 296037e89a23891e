"""The log: one line for each change, with the id of its request; and the validation of request ids."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blocklist.model.claims import Role
from tests.integration.bodies import block, later, revision_of
from tests.integration.conftest import Start
from tests.integration.databases import Databases
from tests.integration.process import ServiceProcess, wait_until
from tests.integration.raw_http import exchange, request, send_request
from tests.integration.secured import secured_service

BODY = json.dumps(block()).encode()


@pytest.fixture(params=["true", "false"], ids=["fast", "ordinary"])
def logging_service(request: pytest.FixtureRequest, start: Start) -> ServiceProcess:
    """A service that logs JSON, with the fast paths and without."""
    return start(log_format="json", fast_path=request.param)


@pytest.fixture(scope="module", params=["true", "false"], ids=["fast", "ordinary"])
def shared_service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, databases: Databases
) -> Iterator[ServiceProcess]:
    """The same, for tests that do not read the log."""
    folder = tmp_path_factory.mktemp("service")
    settings = databases.settings(folder)
    with ServiceProcess(folder, **settings, log_format="json", fast_path=request.param) as process:
        yield process


def log_entries(service: ServiceProcess, event: str = "change") -> list[dict[str, Any]]:
    """The lines of this event. Stops the service, so that all are written."""
    service.stop()
    return [line for line in map(json.loads, service.log().splitlines()) if line["event"] == event]


class TestChanges:
    def test_each_change_has_a_line_and_nothing_else_does(self, logging_service: ServiceProcess) -> None:
        with logging_service.client() as client:
            headers = {"x-request-id": "deploy-7"}
            client.put("/blocklist/nodes/a", json=block(cause='"disk" é\u2028'), headers=headers)
            client.put("/blocklist/nodes/a", json=block(cause="fan", allowMerge=True))
            client.put("/blocklist/nodes/a", json=block(cause="fan", allowMerge=True))
            client.put("/blocklist/nodes", json={"b": block(endTimestamp=later(1)), "c": block()}, headers=headers)
            client.delete("/blocklist/nodes/a", headers=headers)
            for _ in range(5):
                client.get("/blocklist", headers=headers)
            client.get("/blocklist/nodes/free")
            wait_until(lambda: "b" not in client.get("/blocklist").json())
            wait_until(lambda: revision_of(client.get("/blocklist")) == 6)
        found = log_entries(logging_service)
        assert [(line["revision"], line["kind"], line["node"], line["source"]) for line in found] == [
            (1, "blocked", "a", "request"),
            (2, "merged", "a", "request"),
            (3, "blocked", "b", "request"),
            (4, "blocked", "c", "request"),
            (5, "unblocked", "a", "request"),
            (6, "expired", "b", "time"),
        ]
        assert found[0]["cause"] == '"disk" é\u2028'
        assert [line.get("request_id") for line in found if line["revision"] != 2] == [
            "deploy-7", "deploy-7", "deploy-7", "deploy-7", None,
        ]  # fmt: skip
        assert len(found[1]["request_id"]) > 8, "generated for a request without one"
        assert {line["by"] for line in found} == {None}
        assert {line["level"] for line in found} == {"info"}
        rest = [line for line in map(json.loads, logging_service.log().splitlines()) if line not in found]
        assert {line["event"] for line in rest} <= {"listening", "stopping"}

    def test_response_and_line_have_the_same_id(self, logging_service: ServiceProcess) -> None:
        with logging_service.client() as client:
            made = [client.put(f"/blocklist/nodes/n{n}", json=block()) for n in range(3)]
        ids = [response.headers["x-request-id"] for response in made]
        assert [line["request_id"] for line in log_entries(logging_service)] == ids
        assert len(set(ids)) == 3

    def test_a_change_cannot_forge_a_line(self, start: Start) -> None:
        service = start(log_format="console")
        with service.client() as client:
            client.put("/blocklist/nodes/a", json=block(cause="x\u2028FORGED\u202e event=change node='b'"))
        service.stop()
        (line,) = [line for line in service.log().splitlines() if "change" in line and "node='a'" in line]
        assert "FORGED" in line
        assert r"\u2028" in line
        assert r"\u202e" in line

    def test_no_line_of_many_changes_is_lost(self, start: Start) -> None:
        service = start(log_format="json")
        with service.client() as client:
            for cause in "abcde":
                body = {f"n{n}": block(cause=cause, allowMerge=True) for n in range(1000)}
                client.put("/blocklist/nodes", json=body).raise_for_status()
        assert [line["revision"] for line in log_entries(service)] == list(range(1, 5001))


class TestRequestIds:
    @pytest.mark.parametrize("given", ["a", "A.b_c:d-9", "x" * 128])
    @pytest.mark.parametrize(
        ("method", "path"),
        [("GET", "/blocklist"), ("GET", "/healthz"), ("PUT", "/blocklist/nodes/a"), ("GET", "/blocklist/nodes/free")],
    )
    def test_a_valid_id_is_returned(self, shared_service: ServiceProcess, method: str, path: str, given: str) -> None:
        body = BODY if method == "PUT" else b""
        payload = request(path, f"X-Request-ID: {given}", method=method, body=body)
        for response in exchange(shared_service.port, payload, payload, methods=[method, method]):
            assert [value for name, value in response.headers if name == "x-request-id"] == [given]

    @pytest.mark.parametrize("given", ["", "x" * 129, "a b", "a\tb", "a;b", "<b>", "\xe9", "a,b"])
    def test_an_invalid_id_is_replaced(self, shared_service: ServiceProcess, given: str) -> None:
        response = send_request(shared_service.port, request("/blocklist/nodes/free", f"X-Request-ID: {given}"))
        assert response.header("x-request-id") not in (None, given)
        response = send_request(
            shared_service.port, request("/blocklist/nodes/b", f"X-Request-ID: {given}", method="PUT", body=BODY)
        )
        assert response.header("x-request-id") not in (None, given)

    def test_two_ids_are_replaced(self, shared_service: ServiceProcess) -> None:
        payload = request("/blocklist/nodes/free", "X-Request-ID: a", "X-Request-ID: b")
        assert send_request(shared_service.port, payload).header("x-request-id") not in ("a", "b", "a, b")

    def test_a_successful_read_without_an_id_gets_none(self, shared_service: ServiceProcess) -> None:
        assert send_request(shared_service.port, request("/blocklist")).header("x-request-id") is None
        assert send_request(shared_service.port, request("/blocklist/nodes/free")).header("x-request-id") is not None

    def test_polls_with_ids_get_the_same_list(self, shared_service: ServiceProcess) -> None:
        with shared_service.client() as client:
            client.put("/blocklist/nodes", json={f"n{n}": block() for n in range(50)})
        plain = send_request(shared_service.port, request("/blocklist"))
        named = send_request(shared_service.port, request("/blocklist", "X-Request-ID: a"))
        assert named.body == plain.body
        assert named.headers[-1] == ("x-request-id", "a")
        assert named.without_volatile_headers() == plain.without_volatile_headers()

    def test_a_watch_returns_the_id_too(self, shared_service: ServiceProcess) -> None:
        with (
            shared_service.client() as client,
            client.stream("GET", "/blocklist/watch", headers={"x-request-id": "w"}) as response,
        ):
            assert response.headers["x-request-id"] == "w"


def test_an_error_is_logged_with_the_id_of_its_request(start: Start) -> None:
    service = start(log_format="json")
    with service.client() as client, sqlite3.connect(service.database, isolation_level=None) as other:
        # An error that nothing in the service handles.
        other.execute("ALTER TABLE changes RENAME TO elsewhere")
        response = client.put("/blocklist/nodes/a", json=block(), headers={"x-request-id": "lost-1"})
        assert (response.status_code, response.headers["x-request-id"]) == (503, "lost-1")
        other.execute("ALTER TABLE elsewhere RENAME TO changes")
    other.close()
    service.stop()


class TestRequestsWithoutCredentials:
    def test_they_cannot_fill_the_log(self, start: Start) -> None:
        """The lines beyond a limit are counted instead."""
        service = start(log_format="json")
        for _ in range(120):
            exchange(service.port, b"rubbish\r\n\r\n")
        (suppressed,) = log_entries(service, "log lines suppressed")
        logged = [line for line in map(json.loads, service.log().splitlines()) if line["logger"] == "uvicorn.error"]
        assert len(logged) == 20
        assert suppressed["lines"] == 100
        assert (suppressed["of"], suppressed["of_level"]) == ("uvicorn.error", "warning")

    def test_nor_can_log_ins_while_the_issuer_is_down(self, start: Start, tmp_path: Path) -> None:
        settings = {
            "oidc_issuer": "http://127.0.0.1:1",
            "oidc_audience": "blocklist",
            "oidc_client_id": "page",
            "admin_token_file": str(tmp_path / "admin.token"),
        }
        service = start(log_format="json", auth="tokens", **settings)
        with service.client() as client:
            assert {client.get("/login/0").status_code for _ in range(40)} == {503}
        (suppressed,) = log_entries(service, "log lines suppressed")
        assert (suppressed["of"], suppressed["lines"]) == ("app.auth.signin", 20)


def test_each_token_that_is_created_has_a_line(tmp_path: Path, databases: Databases) -> None:
    """However many an admin creates: only lines that callers without credentials can cause are limited."""
    with secured_service(tmp_path, databases, log_format="json") as service:
        created = {service.make_token(Role.READER)["id"] for _ in range(30)}
        entries = log_entries(service.process, "token created")
    assert created <= {line["id"] for line in entries}
