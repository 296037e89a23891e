"""Without authentication, requests with a Host other than loopback are refused: a web page may have sent them."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.integration.bodies import block
from tests.integration.conftest import StartInProcess
from tests.integration.in_process import refusal
from tests.integration.problems import problem_of
from tests.integration.process import ServiceProcess, http_client
from tests.integration.raw_http import request, send_request
from tests.integration.secured import SecuredService

ACCEPTED = (
    "localhost", "LOCALHOST", "localhost:8224", "a.b.localhost", "localhost.", "127.0.0.1", "127.9.8.7:1", "[::1]",
    "[::1]:80",
)  # fmt: skip
REFUSED = (
    "evil.example", "evil.example:8224", "localhost.evil.example", "127.0.0.1.evil.example", "evillocalhost",
    "10.0.0.7", "0.0.0.0", "[::2]", "[::]", "::1", "", "localhost:x", "localhost evil.example",
    "localhost@evil.example", "évil",
)  # fmt: skip
FORWARDED = {"Prefer": "wait=0"}
"""With this header the ordinary route serves the request."""


@pytest.fixture(params=["fast path", "ordinary route"])
def headers(request: pytest.FixtureRequest) -> dict[str, str]:
    return {} if request.param == "fast path" else FORWARDED


@pytest.mark.parametrize("host", ACCEPTED)
def test_loopback_names_and_addresses_are_accepted(
    client: httpx.Client, node: str, headers: dict[str, str], host: str
) -> None:
    headers = {**headers, "Host": host}
    assert client.put(node, json=block(), headers=headers).status_code == 201
    for _ in range(3):  # the second one is cached
        assert client.get("/blocklist", headers=headers).status_code == 200


@pytest.mark.parametrize("host", REFUSED)
def test_other_names_and_addresses_are_refused(
    client: httpx.Client, node: str, headers: dict[str, str], host: str
) -> None:
    headers = {**headers, "Host": host.encode()}  # type: ignore[dict-item]
    problem = problem_of(client.put(node, json=block(), headers=headers), 421)
    assert "BLOCKLIST_ALLOWED_HOSTS" in problem["detail"]
    for _ in range(3):
        problem_of(client.get("/blocklist", headers=headers), 421)
    assert client.get(node).status_code == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/page/block"),
        ("GET", "/blocklist/watch"),
        ("GET", "/blocklist/table"),
        ("GET", "/spark/blocklist-spark.jar"),
        ("DELETE", "/blocklist/nodes/n"),
        ("PUT", "/blocklist/nodes"),
        ("PUT", "/listeners/jm"),
        ("POST", "/tokens"),
        ("POST", "/integrations/alertmanager"),
        ("GET", "/metrics"),
        ("GET", "/nowhere"),
        ("OPTIONS", "/blocklist"),
    ],
)
def test_every_path_is_protected(client: httpx.Client, method: str, path: str) -> None:
    problem_of(client.request(method, path, headers={"Host": "evil.example"}), 421)


def test_two_hosts_are_refused_whichever_is_accepted(service: ServiceProcess) -> None:
    assert send_request(service.port, request("/blocklist", "Host: evil.example")).status == 400


class TestSetting:
    @pytest.fixture
    def client(self, start_in_process: StartInProcess) -> Iterator[httpx.Client]:
        service = start_in_process(allowed_hosts="blocklist.example, 10.0.0.7,fd00::7")
        with http_client(service.url) as client:
            yield client

    @pytest.mark.parametrize(
        "host", ["blocklist.example", "Blocklist.Example:1", "10.0.0.7", "[fd00::7]:1", "localhost"]
    )
    def test_it_adds_names_and_addresses(self, client: httpx.Client, host: str) -> None:
        assert client.get("/blocklist", headers={"Host": host}).status_code == 200

    @pytest.mark.parametrize("host", ["a.blocklist.example", "blocklistxexample", "10.0.0.70"])
    def test_it_adds_only_these(self, client: httpx.Client, host: str) -> None:
        problem_of(client.get("/blocklist", headers={"Host": host}), 421)

    @pytest.mark.parametrize("text", ["http://x", "a b", "x:80", "*", "[x]"])
    def test_anything_else_stops_the_start(self, text: str) -> None:
        assert "BLOCKLIST_ALLOWED_HOSTS" in refusal(allowed_hosts=text)


def test_with_authentication_any_host_is_accepted(secured: SecuredService) -> None:
    with secured.client() as client:
        assert client.get("/healthz", headers={"Host": "blocklist.example"}).status_code == 200
        assert client.get("/blocklist", headers={"Host": "blocklist.example"}).status_code == 401
