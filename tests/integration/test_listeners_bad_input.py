"""Malformed requests about listeners are refused with a sentence, and change nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.integration.databases import ON_BOTH
from tests.integration.listeners import JM, heartbeat, post_heartbeat, put, register, registration_body
from tests.integration.problems import problem_of
from tests.integration.process import ServiceProcess
from tests.integration.raw_http import request, send_request
from tests.integration.test_bad_input import NOT_ONE_OBJECT

pytestmark = ON_BOTH

BAD_IDS = ["", "a b", "a/b", "ä", "a" * 254, ".", "..", "a\n", "\u0000", "a,b", "[::1]", "a@b", "%41"]
NO_IDS: list[object] = [*BAD_IDS, 5, True, [], {}]


@pytest.fixture(scope="module", autouse=True)
def _someone(listener_service: ServiceProcess) -> Iterator[None]:
    """A listener and a node that no test of this file may change."""
    with listener_service.client() as client:
        register(client, "jm", leaseSeconds=3600)
        heartbeat(client, "jm", ackedRevision=put(client, "a"), taskManagers={"tm-1": "a"}, runningTasks={"tm-1": 2})
        yield
        client.delete("/listeners/jm")
        client.delete("/blocklist/nodes/a")


@pytest.fixture
def unchanged(listener_service: ServiceProcess) -> Iterator[httpx.Client]:
    """A client; the test fails if the state of the service changes, even the end of the lease."""
    with listener_service.client() as client:
        before = state(client)
        yield client
        assert state(client) == before


def state(client: httpx.Client) -> object:
    return [client.get(path).json() for path in ("/listeners", "/blocklist", "/blocklist/nodes/a/status")]


def named(values: dict[str, list[object]]) -> list[Any]:
    return [
        pytest.param(field, value, id=ascii(f"{field}={value!r}"[:60])) for field in values for value in values[field]
    ]


BAD_REGISTRATION: dict[str, list[object]] = {
    "role": ["", "job_master", "JOB_MASTER ", "TASK_MANAGER", 1, None, True, ["JOB_MASTER"], {}],
    "sessionId": [*NO_IDS, None],
    "leaseSeconds": [0, -1, 3601, 2**63, 1.5, "x", "", "+5", "5.0", True, False, [], {}],
    "callbackUrl": [
        5, True, [], {}, "", " ", "x", "/hook", "//127.0.0.1/hook", "127.0.0.1:80", "localhost", "http:", "http://",
        "http:///hook", "http:127.0.0.1", "http://:80/", "http://127.0.0.1:x/", "http://127.0.0.1:65536/",
        "http://127.0.0.1:-1/", "http://[::1/", "http://[127.0.0.1]/", "http://127.0.0.1 /", "http://127.0.0.1/\n",
        "http://127.0.0.1/\r\nX: y", "http://127.0.0.1/\u0000", "http://127.0.0.1/" + "a" * 60_000,
        "ftp://127.0.0.1/", "file:///etc/passwd", "unix:///run/x", "gopher://127.0.0.1/", "javascript:alert(1)",
        "ws://127.0.0.1/", "HTTPX://127.0.0.1/", "http://\ud800/",
    ],
}  # fmt: skip

ELSEWHERE = [
    "http://10.0.0.1/", "https://10.0.0.1/", "http://192.168.0.1:8224/", "http://169.254.169.254/latest/meta-data/",
    "http://0.0.0.0/", "http://[::]/", "http://[::2]/", "http://[fe80::1]/", "http://[::ffff:10.0.0.1]/",
    "http://[64:ff9b::a00:1]/", "http://8.8.8.8/", "http://128.0.0.1/", "http://126.255.255.255/",
    "http://127.0.0.1@10.0.0.1/", "http://127.0.0.1:80@10.0.0.1/", "http://10.0.0.1#@127.0.0.1/",
    "http://10.0.0.1\\@127.0.0.1/", "http://10.0.0.1?@127.0.0.1/", "http://10.1/", "http://0x0a000001/",
    "http://167772161/", "http://012.0.0.1/", "http://127.0.0.1.example.invalid/", "http://nowhere.invalid/",
    "http://255.255.255.255/", "http://224.0.0.1/",
]  # fmt: skip

BAD_MAPS: dict[str, list[object]] = {
    "taskManagers": [
        [], "tm", 5, True, ["tm"], [["tm", "a"]],
        *({name: "a"} for name in BAD_IDS), *({"tm": name} for name in NO_IDS),
        {"tm": None}, {f"tm-{number}": "a" for number in range(10_001)},
    ],
    "runningTasks": [
        [], "tm", 5, {"": 1}, {"a b": 1}, {"tm-1": -1}, {"tm-1": 1.5}, {"tm-1": "x"}, {"tm-1": True}, {"tm-1": None},
        {"tm-1": []}, {"tm-1": 2**64}, {f"tm-{number}": 1 for number in range(10_001)},
    ],
    "refused": [
        [], "a", 5, {"": "why"}, {"a b": "why"}, {"a": 5}, {"a": None}, {"a": True}, {"a": []}, {"a": "\u0000"},
        {"a": "x\ud800"}, {"a": "two\nlines"}, {f"n-{number}": "why" for number in range(10_001)},
    ],
    "ackedRevision": [-1, 1.5, "x", "", "+1", True, [], {}, 2**53 + 1, 2**63, -(2**63), 10**400],
    "sessionId": [*NO_IDS, None],
    "unknown": [1],
}  # fmt: skip


def sent(body: dict[str, Any]) -> bytes:
    """JSON with escapes, so that a lone surrogate goes through."""
    return json.dumps(body).encode()


@pytest.mark.parametrize(("field", "value"), named(BAD_REGISTRATION))
@pytest.mark.parametrize("listener", ["new", "jm"])
def test_a_registration_with_a_bad_field_is_400(
    unchanged: httpx.Client, listener: str, field: str, value: object
) -> None:
    problem_of(unchanged.put(f"/listeners/{listener}", content=sent({**registration_body(), field: value})), 400)


@pytest.mark.parametrize("url", ELSEWHERE)
def test_a_callback_to_a_forbidden_host_is_400(unchanged: httpx.Client, url: str) -> None:
    problem_of(unchanged.put("/listeners/new", json=registration_body(callbackUrl=url)), 400)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"role": JM}, id="no session"),
        pytest.param({"sessionId": "s1"}, id="no role"),
        pytest.param(registration_body(id="new"), id="the id"),
        pytest.param(registration_body(secret="whsec_AAAA"), id="the secret"),
        pytest.param(registration_body(ackedRevision=0), id="a cursor"),
        pytest.param(registration_body(lease_seconds=5), id="snake case"),
        pytest.param(registration_body(taskManagers={}), id="taskManagers"),
    ],
)
def test_a_registration_with_missing_or_unknown_fields_is_400(unchanged: httpx.Client, body: dict[str, Any]) -> None:
    problem_of(unchanged.put("/listeners/new", json=body), 400)


@pytest.mark.parametrize("body", [pytest.param(body, id=ascii(name)) for name, body in NOT_ONE_OBJECT.items()])
def test_a_body_that_is_not_one_object_is_400(unchanged: httpx.Client, body: bytes) -> None:
    kind = {"content-type": "application/json"}
    problem_of(unchanged.put("/listeners/new", content=body, headers=kind), 400)
    problem_of(unchanged.post("/listeners/jm/heartbeat", content=body, headers=kind), 400)
    problem_of(unchanged.post("/listeners/jm/secret", content=body, headers=kind), 400)


def test_a_repeated_field_is_400(unchanged: httpx.Client) -> None:
    twice = b'{"sessionId": "s1", "sessionId": "s1"'
    kind = {"content-type": "application/json"}
    problem_of(unchanged.put("/listeners/jm", content=twice + b', "role": "JOB_MASTER"}', headers=kind), 400)
    problem_of(unchanged.post("/listeners/jm/heartbeat", content=twice + b"}", headers=kind), 400)
    maps = b'{"sessionId": "s1", "taskManagers": {"tm": "a", "tm": "b"}}'
    problem_of(unchanged.post("/listeners/jm/heartbeat", content=maps, headers=kind), 400)


@pytest.mark.parametrize(("field", "value"), named(BAD_MAPS))
def test_a_heartbeat_with_a_bad_field_is_400(unchanged: httpx.Client, field: str, value: object) -> None:
    body = {"sessionId": "s1", field: value}
    kind = {"content-type": "application/json"}
    problem_of(unchanged.post("/listeners/jm/heartbeat", content=sent(body), headers=kind), 400)


def test_one_bad_entry_rejects_the_whole_heartbeat(unchanged: httpx.Client) -> None:
    several = {**{f"tm-{number}": "a" for number in range(100)}, "tm bad": "a"}
    problem_of(post_heartbeat(unchanged, "jm", taskManagers=several, runningTasks={"tm-1": 9}, ackedRevision=0), 400)


def test_a_body_of_more_than_2_mib_is_413(unchanged: httpx.Client) -> None:
    problem_of(post_heartbeat(unchanged, "jm", refused={"a": "x" * (2 * 2**20)}), 413)


def test_a_registration_of_more_than_64_kib_is_413(unchanged: httpx.Client) -> None:
    problem_of(
        unchanged.put("/listeners/new", json=registration_body(callbackUrl="http://127.0.0.1/" + "a" * 70_000)), 413
    )


@pytest.mark.parametrize("path", ["/listeners/jm", "/listeners/jm/heartbeat", "/listeners/jm/secret"])
def test_other_methods_are_405(unchanged: httpx.Client, path: str) -> None:
    problem_of(unchanged.request("PATCH", path), 405)


@pytest.mark.parametrize("listener", ["a%20b", "a%2Cb", "%C3%A4", "a" * 254, "a%00", "%2541", "%5B%3A%3A1%5D"])
@pytest.mark.parametrize(("method", "end"), [("PUT", ""), ("GET", ""), ("DELETE", ""), ("POST", "/heartbeat")])
def test_an_invalid_id_is_400(
    unchanged: httpx.Client, listener_service: ServiceProcess, listener: str, method: str, end: str
) -> None:
    body = json.dumps(registration_body() if method == "PUT" else {"sessionId": "s1"}).encode()
    raw = request(
        f"/listeners/{listener}{end}",
        "Content-Type: application/json",
        method=method,
        body=body if method in {"PUT", "POST"} else b"",
    )
    problem_of(send_request(listener_service.port, raw, method=method), 400)


@pytest.mark.parametrize("path", ["/listeners/", "/listeners/a%2Fb", "/listeners/jm/other", "/listeners//heartbeat"])
def test_an_unknown_path_is_404(unchanged: httpx.Client, listener_service: ServiceProcess, path: str) -> None:
    problem_of(send_request(listener_service.port, request(path)), 404)
