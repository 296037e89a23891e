"""Malformed input of every route is a problem, and changes nothing; `tests/unit/test_bad_bodies.py` has the parsers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from typing import Any, Final

import httpx
import pytest

from tests.integration.bodies import block, current_list
from tests.integration.databases import Databases
from tests.integration.listeners import heartbeat, post_heartbeat, put, register, registration_body
from tests.integration.problems import problem_of
from tests.integration.raw_http import exchange, request, send_request
from tests.integration.secured import SecuredInProcess, secured_in_process
from tests.integration.test_openapi_contract import DOCUMENT

KIB_64 = 64 * 1024
MIB_1 = 1024 * 1024
HERE: Final = {"node_id": "there", "owner": "anna", "id": "jm"}
"""A node that is blocked, and a listener."""
NOWHERE: Final = {"node_id": "a%20b", "owner": "a%0Ab", "id": "a%20b"}
QUERIES: Final = {("DELETE", "/blocklist/nodes"): "?selector=rack", ("DELETE", "/claims/{owner}"): "?node=there"}
"""What these routes need before they read their body."""
OPERATIONS: Final = [
    (method.upper(), path, "requestBody" in operation)
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
]
WITH_BODY: Final = [
    (method, path.format_map(HERE) + QUERIES.get((method, path), "")) for method, path, body in OPERATIONS if body
] + [("PUT", "/blocklist/node/there"), ("DELETE", "/blocklist/node/there")]
BAD_ID_PATHS: Final = [
    (method, path.format_map({**HERE, name: NOWHERE[name]}))
    for (method, path, _), name in product(OPERATIONS, HERE)
    if f"{{{name}}}" in path
] + [(method, "/blocklist/node/a%20b") for method in ("GET", "HEAD", "PUT", "DELETE")]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[SecuredInProcess]:
    """A service with a token for each role, a listener and a blocked node."""
    with secured_in_process(tmp_path_factory.mktemp("secured"), databases) as secured:
        with secured.client(secured.admin) as admin:
            register(admin, "jm", leaseSeconds=3600)
            running: dict[str, object] = {"taskManagers": {"tm-1": "there"}, "runningTasks": {"tm-1": 2}}
            heartbeat(admin, "jm", "s1", ackedRevision=put(admin, "there"), **running)
        yield secured


@pytest.fixture
def admin(secured: SecuredInProcess) -> Iterator[httpx.Client]:
    """A client with all rights; the test fails if the state of the service changes, even the end of the lease."""

    def state() -> object:
        paths = ("/listeners", "/blocklist/nodes/there/status", "/tokens")
        return current_list(client), [client.get(path).json() for path in paths]

    with secured.client(secured.admin) as client:
        before = state()
        yield client
        assert state() == before


@pytest.fixture
def port(admin: httpx.Client) -> int:
    """The port of that service; nothing may change."""
    return admin.base_url.port or 0


@pytest.fixture
def line(secured: SecuredInProcess) -> str:
    """The admin's credential as a line of a head."""
    return f"Authorization: Bearer {secured.admin}"


@pytest.mark.parametrize(("method", "path"), WITH_BODY)
@pytest.mark.parametrize("body", [b"{", b"[]", b'{"cause": 1, "cause": 2}', b'{"unknown": 1}'], ids=repr)
def test_a_malformed_body_is_400_on_every_route(admin: httpx.Client, method: str, path: str, body: bytes) -> None:
    problem_of(admin.request(method, path, content=body, headers={"content-type": "application/json"}), 400)


@pytest.mark.parametrize(("method", "path"), WITH_BODY)
def test_a_body_that_is_announced_as_too_long_is_413_on_every_route(
    port: int, line: str, method: str, path: str
) -> None:
    lines = [line, "Content-Type: application/json", "Content-Length: 99999999999"]
    head = request(path, *lines, method=method)
    problem_of(send_request(port, head, method), 413)


@pytest.mark.parametrize(("method", "path"), BAD_ID_PATHS)
def test_an_invalid_id_is_400_on_every_route(port: int, line: str, method: str, path: str) -> None:
    body = json.dumps(block()).encode() if method in {"PUT", "POST"} else b""
    response = send_request(port, request(path, line, method=method, body=body), method)
    assert response.status == 400
    if method != "HEAD":
        problem_of(response, 400)


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/blocklist/nodes/.", 400),
        ("/blocklist/nodes/..", 400),
        ("/blocklist/nodes/%2e", 400),
        ("/blocklist/nodes/%2E%2e", 400),
        ("/blocklist/nodes/a%20b", 400),
        ("/blocklist/nodes/a+b", 400),
        ("/blocklist/nodes/a;b", 400),
        ("/blocklist/nodes/a,b", 400),
        ("/blocklist/nodes/a~b", 400),
        ("/blocklist/nodes/a@b", 400),
        ("/blocklist/nodes/a*b", 400),
        ("/blocklist/nodes/[::g]", 400),
        ("/blocklist/nodes/%2541", 400),
        ("/blocklist/nodes/%25", 400),
        ("/blocklist/nodes/%", 400),
        ("/blocklist/nodes/%zz", 400),
        ("/blocklist/nodes/%4", 400),
        ("/blocklist/nodes/a%00", 400),
        ("/blocklist/nodes/a%0A", 400),
        ("/blocklist/nodes/a%0D%0Ab", 400),
        ("/blocklist/nodes/%C3%A9", 400),
        ("/blocklist/nodes/%FF", 400),
        ("/blocklist/nodes/%ED%A0%80", 400),
        ("/blocklist/nodes/a%3Fb", 400),
        ("/blocklist/nodes/a%23b", 400),
        ("/blocklist/nodes/a%5Cb", 400),
        ("/blocklist/nodes/%D9%A3", 400),
        ("/blocklist/nodes/" + "x" * 254, 400),
        ("/blocklist/nodes/" + "%41" * 254, 400),
        ("/blocklist/nodes/" + "x" * 8_000, 400),
        ("/blocklist/node/a%20b", 400),
        ("/blocklist/node/..", 400),
        ("/blocklist/nodes/", 404),
        ("/blocklist/nodes/%2F", 404),
        ("/blocklist/nodes/a%2Fb", 404),
        ("/blocklist/nodes/a%2fb", 404),
        ("/blocklist/nodes/a/b", 404),
        ("/blocklist/nodes/a/", 404),
        ("/blocklist/nodes//", 404),
        ("/blocklist/nodes/%2e%2e%2fb", 404),
        ("/blocklist/node/", 404),
    ],
)
def test_a_malformed_node_id_is_refused(port: int, line: str, target: str, status: int) -> None:
    put_it = request(target, line, method="PUT", body=json.dumps(block()).encode())
    problem_of(send_request(port, put_it, "PUT"), status)


@pytest.mark.parametrize("target", ["/listeners/", "/listeners/a%2Fb", "/listeners/jm/other", "/listeners//heartbeat"])
def test_an_unknown_path_of_a_listener_is_404(port: int, line: str, target: str) -> None:
    problem_of(send_request(port, request(target, line)), 404)


def test_an_id_is_percent_decoded_once(port: int, line: str) -> None:
    problem = problem_of(send_request(port, request("/blocklist/nodes/%66%72%65%65-%6e%6F%64%65", line)), 404)
    assert "free-node" in problem["detail"]
    problem_of(send_request(port, request("/listeners/%2541", line)), 400)


@pytest.mark.parametrize("path", ["/blocklist", "/blocklist/nodes/there", "/blocklist/changes"])
def test_a_malformed_min_revision_is_400(port: int, line: str, path: str) -> None:
    for text in ("", "%2B1", "%D9%A3", "9" * 5_000, "%00"):
        problem_of(send_request(port, request(f"{path}?minRevision={text}", line)), 400)


def test_a_callback_to_a_forbidden_host_is_400(admin: httpx.Client) -> None:
    problem_of(admin.put("/listeners/new", json=registration_body(callbackUrl="http://8.8.8.8/")), 400)


def test_one_bad_entry_rejects_the_whole_heartbeat(admin: httpx.Client) -> None:
    several = {**{f"tm-{number}": "a" for number in range(100)}, "tm bad": "a"}
    problem_of(post_heartbeat(admin, "jm", taskManagers=several, runningTasks={"tm-1": 9}, ackedRevision=0), 400)


def padded(length: int, body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode().ljust(length)


@pytest.mark.parametrize(
    ("path", "limit", "body"),
    [("/blocklist/nodes/large", KIB_64, block()), ("/blocklist/nodes", MIB_1, {"large": block()})],
)
class TestSize:
    def test_a_body_over_the_limit_gets_413(self, admin: httpx.Client, path: str, limit: int, body: Any) -> None:
        problem_of(admin.put(path, content=padded(limit + 1, body)), 413)

    def test_a_chunked_body_over_the_limit_gets_413(
        self, port: int, line: str, path: str, limit: int, body: Any
    ) -> None:
        data = padded(limit + 1, body)
        head = request(path, line, "Transfer-Encoding: chunked", method="PUT")
        chunks = [b"%x\r\n%b\r\n" % (len(part), part) for part in (data[:20_000], data[20_000:])]
        problem_of(exchange(port, head, *chunks, b"0\r\n\r\n")[0], 413)

    def test_413_is_sent_as_soon_as_the_limit_is_exceeded(
        self, port: int, line: str, path: str, limit: int, body: Any
    ) -> None:
        head = request(path, line, "Content-Length: 99999999999", method="PUT")
        problem_of(exchange(port, head, padded(limit + 1, body))[0], 413)

    def test_a_body_at_the_limit_is_read(self, admin: httpx.Client, path: str, limit: int, body: Any) -> None:
        problem_of(admin.put(path, content=padded(limit - 1, body) + b"x"), 400)


def test_the_bodies_of_deletes_registrations_and_heartbeats_have_limits_too(admin: httpx.Client) -> None:
    problem_of(admin.request("DELETE", "/blocklist/nodes/large", content=b" " * (KIB_64 + 1)), 413)
    long = registration_body(callbackUrl="http://127.0.0.1/" + "a" * 70_000)
    problem_of(admin.put("/listeners/new", json=long), 413)
    problem_of(post_heartbeat(admin, "jm", refused={"a": "x" * (2 * MIB_1)}), 413)


def test_a_client_that_disconnects_in_its_body_changes_nothing(port: int, line: str) -> None:
    body = json.dumps(block()).encode()
    whole = request("/blocklist/nodes/gone", line, method="PUT", body=body)
    exchange(port, whole[:-5], methods=())


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("/blocklist?selectr=rack%3Dr1", "Unknown query parameter 'selectr': did you mean selector?"),
        ("/blocklist?details=true&details=false", "Repeated query parameter 'details':"),
        ("/blocklist/table?x", "Unknown query parameter 'x':"),
        ("/blocklist/nodes/n1?x=1", "Unknown query parameter 'x':"),
        ("/blocklist/nodes/n1/status?x=1", "Unknown query parameter 'x':"),
        ("/blocklist/changes?sinse=3", "Unknown query parameter 'sinse': did you mean since?"),
        ("/nodes?label=rack", "Unknown query parameter 'label':"),
        ("/claims?Owner=anna", "Unknown query parameter 'Owner': did you mean owner?"),
        ("/listeners?role=JOB_MASTER", "Unknown query parameter 'role': This route has none."),
        ("/drift?x=1", "Unknown query parameter 'x':"),
        ("/whoami?x=1", "Unknown query parameter 'x':"),
    ],
)
def test_a_read_refuses_a_query_parameter_that_it_does_not_have(
    secured: SecuredInProcess, target: str, sentence: str
) -> None:
    """Otherwise a misspelt filter would be no filter."""
    with secured.client(secured.admin) as client:
        assert problem_of(client.get(target), 400)["detail"].startswith(sentence)
        assert client.get("/healthz?from=balancer").status_code == 200
    with secured.client() as nobody:
        assert nobody.get(target).status_code in (400, 401)
