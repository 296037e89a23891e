"""Without authentication, requests with a Host other than loopback are refused: a web page may have sent them."""

from __future__ import annotations

import httpx
import pytest

from app.net.addresses import HostPolicy
from tests.integration.bodies import block
from tests.integration.conftest import StartInProcess
from tests.integration.in_process import refusal
from tests.integration.problems import problem_of
from tests.integration.process import ServiceProcess, http_client
from tests.integration.raw_http import request, send_request
from tests.integration.secured import SecuredInProcess
from tests.integration.test_auth import ROUTES

ACCEPTED = (
    "localhost", "LOCALHOST", "localhost:8224", "a.b.localhost", "localhost.", "127.0.0.1", "127.9.8.7:1", "[::1]",
    "[::1]:80",
)  # fmt: skip
REFUSED = (
    "evil.example", "evil.example:8224", "localhost.evil.example", "127.0.0.1.evil.example", "evillocalhost",
    "10.0.0.7", "0.0.0.0", "[::2]", "[::]", "::1", "", "localhost:x", "localhost evil.example",
    "localhost@evil.example", "évil",
)  # fmt: skip


@pytest.mark.parametrize("host", ACCEPTED)
def test_loopback_names_and_addresses_are_accepted(host: str) -> None:
    assert HostPolicy([]).accepts(host.encode())


@pytest.mark.parametrize("host", REFUSED)
def test_other_names_and_addresses_are_refused(host: str) -> None:
    assert not HostPolicy([]).accepts(host.encode())


@pytest.mark.parametrize("headers", [{}, {"Prefer": "wait=0"}], ids=["fast path", "ordinary route"])
def test_a_request_with_another_host_is_refused(client: httpx.Client, node: str, headers: dict[str, str]) -> None:
    other = {**headers, "Host": "evil.example"}
    problem = problem_of(client.put(node, json=block(), headers=other), 421)
    assert "BLOCKLIST_ALLOWED_HOSTS" in problem["detail"]
    for own in (headers, other) * 3:  # cached after the first
        assert client.get("/blocklist", headers=own).status_code == (421 if "Host" in own else 200)
    assert client.get(node).status_code == 404


def test_every_path_is_protected(client: httpx.Client) -> None:
    methods = [(method, route.path) for route in ROUTES for method in route.methods or ()]
    for method, path in [*methods, ("GET", "/nowhere"), ("OPTIONS", "/blocklist")]:
        assert client.request(method, path, headers={"Host": "evil.example"}).status_code == 421, (method, path)


def test_two_hosts_are_refused_whichever_is_accepted(service: ServiceProcess) -> None:
    assert send_request(service.port, request("/blocklist", "Host: evil.example")).status == 400


class TestSetting:
    @pytest.mark.parametrize(
        ("host", "accepted"),
        [
            ("blocklist.example", True),
            ("Blocklist.Example:1", True),
            ("10.0.0.7", True),
            ("[fd00::7]:1", True),
            ("localhost", True),
            ("a.blocklist.example", False),
            ("blocklistxexample", False),
            ("10.0.0.70", False),
        ],
    )
    def test_it_adds_these_names_and_addresses_only(self, host: str, accepted: bool) -> None:
        assert HostPolicy(["blocklist.example", " 10.0.0.7", "fd00::7"]).accepts(host.encode()) == accepted

    def test_it_is_that_of_the_service(self, start_in_process: StartInProcess) -> None:
        with http_client(start_in_process(allowed_hosts="blocklist.example").url) as client:
            assert client.get("/blocklist", headers={"Host": "blocklist.example"}).status_code == 200

    @pytest.mark.parametrize("text", ["http://x", "a b", "x:80", "*", "[x]"])
    def test_anything_else_stops_the_start(self, text: str) -> None:
        assert "BLOCKLIST_ALLOWED_HOSTS" in refusal(allowed_hosts=text)


def test_with_authentication_any_host_is_accepted(secured: SecuredInProcess) -> None:
    with secured.client() as client:
        assert client.get("/healthz", headers={"Host": "blocklist.example"}).status_code == 200
        assert client.get("/blocklist", headers={"Host": "blocklist.example"}).status_code == 401
