"""BlocklistClient as a listener, against the service."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from blocklist import BlocklistClient, InvalidError, NotFoundError, UnavailableError
from blocklist.client.session import ListenerSession
from blocklist.model.listener import FencedError, ListenerRole, Registration, Report
from blocklist.model.reported_node import make_reported_node
from tests.integration.fake_servers import SERVICE_HEADERS, fake_server, http_response
from tests.integration.process import ServiceProcess, wait_until

numbers = count(1)


@pytest.fixture
def blocklist(service: ServiceProcess) -> Iterator[BlocklistClient]:
    with BlocklistClient(service.url, timeout=30) as client:
        yield client


@pytest.fixture
def listener_id(blocklist: BlocklistClient) -> Iterator[str]:
    """A listener id that no other test uses; removed after the test."""
    listener_id = f"app-{next(numbers)}"
    yield listener_id
    try:
        blocklist.deregister(listener_id)
    except NotFoundError:
        return


def watching(listener_id: str, session: str = "0-1") -> Registration:
    return Registration(id=listener_id, role=ListenerRole.JOB_MASTER, session=session)


def test_only_the_first_registration_returns_the_secret(blocklist: BlocklistClient, listener_id: str) -> None:
    secret = blocklist.register(watching(listener_id))
    assert secret is not None
    assert secret.startswith("whsec_")
    assert blocklist.register(watching(listener_id)) is None
    assert blocklist.register(watching(listener_id, "0-2")) is None


def test_every_field_of_a_registration_arrives(
    blocklist: BlocklistClient, listener_id: str, service: ServiceProcess
) -> None:
    url = "http://127.0.0.1:9/blocklist"
    blocklist.register(
        Registration(
            id=listener_id, role=ListenerRole.RESOURCE_MANAGER, session="rm:1", callback_url=url, lease=3_600_000
        )
    )
    with service.client() as http:
        listener = http.get(f"/listeners/{listener_id}").json()
    assert (listener["role"], listener["sessionId"], listener["callbackUrl"]) == ("RESOURCE_MANAGER", "rm:1", url)


def test_a_heartbeat_returns_the_revision_and_sends_the_report(
    blocklist: BlocklistClient, listener_id: str, service: ServiceProcess, node_id: str
) -> None:
    blocklist.block(node_id, "disk")
    blocklist.register(watching(listener_id))
    revision = blocklist.snapshot().revision
    assert blocklist.heartbeat(listener_id, "0-1") >= revision
    blocklist.heartbeat(
        listener_id,
        "0-1",
        acked=revision,
        report=Report(
            task_managers={f"{listener_id}:1": node_id}, running_tasks={f"{listener_id}:1": 2}, refused={node_id: "No."}
        ),
    )
    blocklist.heartbeat(listener_id, "0-1")
    with service.client() as http:
        status = http.get(f"/blocklist/nodes/{node_id}/status").json()
    proof = next(listener for listener in status["listeners"] if listener["id"] == listener_id)
    assert (proof["applied"], proof["refused"]) == (False, "No.")
    assert proof["taskManagers"] == [{"id": f"{listener_id}:1", "runningTasks": 2}]
    blocklist.unblock(node_id)


def test_a_session_that_was_taken_over_is_fenced(blocklist: BlocklistClient, listener_id: str) -> None:
    blocklist.register(watching(listener_id, "0-1"))
    blocklist.register(watching(listener_id, "0-2"))
    with pytest.raises(FencedError):
        blocklist.heartbeat(listener_id, "0-1")
    with pytest.raises(FencedError):
        blocklist.register(watching(listener_id, "0-1"))


def test_an_unknown_listener_must_register(blocklist: BlocklistClient, listener_id: str) -> None:
    with pytest.raises(NotFoundError):
        blocklist.heartbeat(listener_id, "0-1")
    with pytest.raises(NotFoundError):
        blocklist.deregister(listener_id)
    blocklist.register(watching(listener_id))
    blocklist.deregister(listener_id)
    with pytest.raises(NotFoundError):
        blocklist.heartbeat(listener_id, "0-1")


def test_a_rejected_value_raises_invalid_error(blocklist: BlocklistClient, listener_id: str) -> None:
    blocklist.register(watching(listener_id))
    with pytest.raises(InvalidError, match="above the current revision"):
        blocklist.heartbeat(listener_id, "0-1", acked=2**40)
    with pytest.raises(InvalidError):
        blocklist.heartbeat(listener_id, "0-1", report=Report(task_managers={"no id": "n1"}))
    with pytest.raises(InvalidError, match="is not a node id"):
        blocklist.deregister("a/b")


@pytest.mark.parametrize("status", ["404 Not Found", "409 Conflict", "204 No Content"])
def test_a_response_of_another_server_is_no_answer_of_the_service(status: str) -> None:
    with fake_server(http_response(b"", status)) as other, BlocklistClient(other.url) as client:
        with pytest.raises(UnavailableError):
            client.register(watching("app-1"))
        with pytest.raises(UnavailableError):
            client.heartbeat("app-1", "0-1")
        with pytest.raises(UnavailableError):
            client.deregister("app-1")


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"revision": "7"}', b'{"revision": true}'])
def test_a_heartbeat_response_without_a_revision_raises_unavailable_error(body: bytes) -> None:
    with (
        fake_server(http_response(body, "200 OK", *SERVICE_HEADERS)) as other,
        BlocklistClient(other.url) as client,
        pytest.raises(UnavailableError),
    ):
        client.heartbeat("app-1", "0-1")


def test_the_nodes_of_a_manager_are_known_again_after_a_restart_of_the_service(fresh: ServiceProcess) -> None:
    registration = Registration(id="yarn", role=ListenerRole.RESOURCE_MANAGER, session="1")
    session = ListenerSession(fresh.url, registration, interval=0.2)
    session.report(Report(nodes=[make_reported_node("n1", labels={"rack": "r1"})]))

    def racks() -> list[dict[str, str]]:
        with fresh.client() as http:
            return [node["labels"] for node in http.get("/nodes").json()["nodes"]]

    wait_until(lambda: racks() == [{"rack": "r1"}])
    fresh.kill()
    fresh.start()
    wait_until(lambda: racks() == [{"rack": "r1"}])
    session.close()
