"""Whatever the ResourceManager sends, a request ends."""

from __future__ import annotations

import ssl
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from blocklist import BlockAction, BlocklistClient
from blocklist.managers.command import StoppedError, Stopping
from blocklist.managers.yarn import resource_manager
from blocklist.managers.yarn.resource_manager import Access, Connection, NoAnswerError, RejectedError, ResourceManager
from tests.integration.fake_servers import Responder, fake_server, http_response, respond_endlessly
from tests.integration.manager_process import ManagerProcess
from tests.integration.process import ServiceProcess
from tests.integration.test_tls import certificate
from tests.yarn.simulated import MEGABYTES, SimulatedYarn, serving

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CAPACITY_SCHEDULER = http_response(b'{"scheduler": {"schedulerInfo": {"type": "capacityScheduler"}}}')


def info(state: str) -> bytes:
    return http_response(b'{"clusterInfo": {"haState": "%s"}}' % state.encode())


@pytest.mark.parametrize(
    "trickle",
    [
        pytest.param(respond_endlessly(b"HTTP/1.1 200 OK\r\nX-Header: ", b"x", pause=0.05), id="header"),
        pytest.param(respond_endlessly(HEAD, b"1\r\n \r\n", pause=0.05), id="body"),
    ],
)
def test_a_response_that_trickles_without_end_is_given_up_after_the_timeout(trickle: Responder) -> None:
    given_up = pytest.raises(NoAnswerError, match=r"no complete response within 0\.5 s")
    with fake_server(trickle) as server, given_up:
        Connection(server.url, Access(), Stopping(), 0.5).get("/nodes")


def test_a_response_that_is_too_large_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_manager, "_MAX_BYTES", 1 << 20)
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    too_large = pytest.raises(NoAnswerError, match="the response is larger than 1 MiB")
    with fake_server(respond_endlessly(HEAD, chunk)) as server, too_large:
        Connection(server.url, Access(), Stopping(), 60).get("/nodes")


def test_a_stop_ends_a_request_at_once() -> None:
    stop = Stopping()
    with fake_server(respond_endlessly(HEAD, b"1\r\n \r\n", pause=0.05)) as server:
        threading.Timer(0.5, stop.set).start()
        begun = time.monotonic()
        with pytest.raises(StoppedError):
            Connection(server.url, Access(), stop, 100).get("/nodes")
        assert time.monotonic() - begun < 60


@pytest.mark.parametrize(
    ("response", "error", "text"),
    [
        (http_response(b"", "307 Temporary Redirect", "Location: http://rm2:8088/"), NoAnswerError, "is a standby"),
        (http_response(b"", "503 Service Unavailable"), NoAnswerError, "with 503: no reason"),
        (http_response(b"<html>This is standby RM"), NoAnswerError, "without JSON: <html>This is standby RM"),
        (http_response(b"<html><title>About\n it</title><p>"), NoAnswerError, "without JSON: About it$"),
        (http_response(b"", "404 Not Found"), RejectedError, "with 404: no reason. Give the address of its web interf"),
        (http_response(b"[" * 100_000), NoAnswerError, "without JSON"),
        (http_response(b'{"RemoteException": {"message": "no."}}', "403 Forbidden"), RejectedError, "yarn.admin.acl"),
        (http_response(b"", "401 Unauthorized"), RejectedError, "--kerberos"),
    ],
)
def test_an_error_says_what_is_wrong(response: bytes, error: type[Exception], text: str) -> None:
    with fake_server(response) as server, pytest.raises(error, match=text):
        Connection(server.url, Access(user="ann"), Stopping(), 60).get("/info")


def test_the_active_one_of_several_is_found_and_all_are_named_if_there_is_none() -> None:
    active_one = fake_server(info("ACTIVE"), CAPACITY_SCHEDULER, http_response(b""))
    with fake_server(info("STANDBY")) as standby, active_one as active:
        found = ResourceManager([standby.url, active.url], Access(), Stopping(), 60)
        found.find_active()
        assert found.url == active.url
    with fake_server(info("STANDBY")) as standby:
        alone = pytest.raises(NoAnswerError, match=r"\(STANDBY\)\. Is there another one\? Give --resource-manager for")
        with alone:
            ResourceManager([standby.url], Access(), Stopping(), 60).find_active()
    with fake_server(info("STANDBY")) as standby:
        found = ResourceManager([standby.url, "http://127.0.0.1:9"], Access(), Stopping(), 60)
        with pytest.raises(NoAnswerError, match=r"is not active \(STANDBY\).* does not answer GET /info"):
            found.find_active()


def test_a_scheduler_that_ignores_labels_is_an_error() -> None:
    scheduler = http_response(b'{"scheduler": {"schedulerInfo": {"type": "fairScheduler"}}}')
    ignored = pytest.raises(RejectedError, match=r"\(fairScheduler\) is not the CapacityScheduler")
    with fake_server(info("ACTIVE"), scheduler) as server, ignored:
        ResourceManager([server.url], Access(), Stopping(), 60).find_active()


@pytest.mark.parametrize(
    ("status", "message", "text"),
    [
        ("400 Bad Request", "Node-label-based scheduling is disabled.", "Set yarn.node-labels.enabled"),
        ("401 Unauthorized", "User ann not authorized", "must be an administrator"),
        ("500 Server Error", "no labels", None),
    ],
)
def test_what_would_reject_a_change_is_an_error_before_anything_is_blocked(
    status: str, message: str, text: str | None
) -> None:
    rejection = http_response(f'{{"RemoteException": {{"message": "{message}"}}}}'.encode(), status)
    error = nullcontext() if text is None else pytest.raises(RejectedError, match=text)
    with fake_server(info("ACTIVE"), CAPACITY_SCHEDULER, rejection) as server, error:
        ResourceManager([server.url], Access(), Stopping(), 60).find_active()


def test_sigterm_gives_a_node_its_resources_back_also_with_once(tmp_path: Path, fresh: ServiceProcess) -> None:
    emptied, released = threading.Event(), threading.Event()

    class HangingYarn(SimulatedYarn):
        def answer(self, method: str, path: str, body: Any) -> Any:
            if path == "/nodes" and not self.memory["w1"]:
                emptied.set()
                released.wait(120)
            return super().answer(method, path, body)

    yarn = HangingYarn(["w1"], containers=1)
    with BlocklistClient(fresh.url) as client:
        client.block("w1", "hot", action=BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS)
    with serving(yarn) as url:
        with ManagerProcess(tmp_path, fresh.url, "yarn", "--resource-manager", url, "--once") as manager:
            assert emptied.wait(120)
            manager.terminate()
            assert manager.exit_code() == 1
        released.set()
    assert yarn.memory == {"w1": MEGABYTES}


def test_a_certificate_is_verified_with_the_given_authority(tmp_path: Path) -> None:
    certificate_file, key_file = certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate_file, key_file)
    with serving(SimulatedYarn(["w1"]), tls) as url:
        trusting = ResourceManager([url], Access(ca=certificate_file), Stopping(), 60)
        trusting.find_active()
        assert [node.host for node in trusting.read_nodes()] == ["w1"]
        trusting.close()
        with pytest.raises(NoAnswerError, match="CERTIFICATE_VERIFY_FAILED"):
            ResourceManager([url], Access(), Stopping(), 60).find_active()
