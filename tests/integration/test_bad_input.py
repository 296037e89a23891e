"""Malformed input is refused with a problem, and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.integration.bodies import block, current_list, now_ms
from tests.integration.databases import ON_BOTH
from tests.integration.problems import problem_of
from tests.integration.process import ServiceProcess
from tests.integration.raw_http import exchange, request, send_request

pytestmark = ON_BOTH

KIB_64 = 64 * 1024
MIB_1 = 1024 * 1024


@pytest.fixture(autouse=True)
def _nothing_changes(client: httpx.Client) -> Iterator[None]:
    before = current_list(client)
    yield
    assert current_list(client) == before


def raw_body(**raw: str) -> bytes:
    """A body whose fields have this raw JSON text."""
    fields = {"action": '"MARK_BLOCKED"', "cause": '"disk"', **raw}
    return ("{" + ", ".join(f'"{name}": {text}' for name, text in fields.items()) + "}").encode()


NOT_ONE_OBJECT: dict[str, bytes] = {
    "empty": b"",
    "white space": b" \n\t ",
    "null": b"null",
    "true": b"true",
    "a number": b"5",
    "a string": b'"MARK_BLOCKED"',
    "a list": b"[]",
    "a list of one": b'[{"action": "MARK_BLOCKED", "cause": "disk"}]',
    "an empty object": b"{}",
    "cut off": b'{"action": "MARK_BLOCKED", "cause": "di',
    "two objects": raw_body() + raw_body(),
    "rubbish after it": raw_body() + b"x",
    "a comma too many": b'{"action": "MARK_BLOCKED", "cause": "disk",}',
    "single quotes": b"{'action': 'MARK_BLOCKED', 'cause': 'disk'}",
    "a comment": b'{"action": "MARK_BLOCKED", /* why */ "cause": "disk"}',
    "a form": b"action=MARK_BLOCKED&cause=disk",
    "deep lists": b"[" * 30_000 + b"]" * 30_000,
    "deep lists left open": b"[" * 60_000,
    "deep objects": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "not UTF-8": b'{"action": "MARK_BLOCKED", "cause": "\xff\xfe"}',
    "a surrogate in UTF-8": b'{"action": "MARK_BLOCKED", "cause": "\xed\xa0\x80"}',
    "UTF-8 cut short": b'{"action": "MARK_BLOCKED", "cause": "\xc3"}',
    "UTF-8 too long": b'{"action": "MARK_BLOCKED", "cause": "\xc1\xa1"}',
    "Latin-1": '{"action": "MARK_BLOCKED", "cause": "défaut"}'.encode("latin-1"),
    "UTF-16": raw_body().decode().encode("utf-16"),
    "UTF-16, little end first, unmarked": raw_body().decode().encode("utf-16-le"),
    "UTF-32": raw_body().decode().encode("utf-32"),
    "a byte order mark": b"\xef\xbb\xbf" + raw_body(),
    "a zero byte": b"\x00" + raw_body(),
    "a raw line break in a string": b'{"action": "MARK_BLOCKED", "cause": "a\nb"}',
    "an unknown escape": b'{"action": "MARK_BLOCKED", "cause": "\\x41"}',
}

BAD_FIELDS: dict[str, bytes] = {
    "no cause": b'{"action": "MARK_BLOCKED"}',
    "no action": b'{"cause": "disk"}',
    "an unknown field": raw_body(comment='"x"'),
    "the id": raw_body(id='"n"'),
    "the start": raw_body(startTimestamp='"5"'),
    "taskManagers": raw_body(taskManagers="[]"),
    "a field in another case": raw_body(endtimestamp='"4102444800000"'),
    "a field in snake case": raw_body(allow_merge="true"),
    "an empty field name": raw_body(**{"": "1"}),
    "a lone surrogate in a field name": raw_body(**{"\\ud800": "1"}),
    "a field name that is long": raw_body(**{"x" * 60_000: "1"}),
    "action twice": b'{"action": "MARK_BLOCKED", "cause": "disk", "action": "MARK_BLOCKED"}',
    "cause twice": b'{"action": "MARK_BLOCKED", "cause": "disk", "cause": "disk"}',
    "cause twice, once in escapes": b'{"action": "MARK_BLOCKED", "cause": "disk", "c\\u0061use": "disk"}',
    "end twice": raw_body(endTimestamp='"4102444800000", "endTimestamp": "4102444800000"'),
}

BAD_VALUES: dict[str, list[str]] = {
    "action": [
        "null", "1", "true", '""', '"mark_blocked"', '"BLOCKED"', '"MARK_BLOCKED "', '["MARK_BLOCKED"]', "{}", "1.0",
        '"MARK_BLOCKED_AND_STOP"', '"MARK\\u0000BLOCKED"', '"\\ud800"',
    ],
    "cause": [
        "null", "5", "true", '""', '["disk"]', "{}", '"a\\nb"', '"a\\tb"', '"\\u0000"', '"\\r"',
        '"\\u001b[31m"', '"\\u007f"',
        '"\\u0080"', '"\\u0085"', '"\\u009f"', '"\\ud800"', '"\\udfff"', '"a\\ude00\\ud83d"', json.dumps("a" * 1025),
        json.dumps("é" * 1025), json.dumps("a," * 513), json.dumps("a" * 60_000),
    ],
    "allowMerge": [
        "null", "0", "1", '"True"', '"TRUE"', '"yes"', '"1"', '"on"', '""', '" true"', "[]", "{}", "1.0", '"truе"',
    ],
    "endTimestamp": [
        "null", "true", "false", "[]", "{}", '["4102444800000"]', '""', '" "', '"never"', '"permanent"',
        '"+4102444800000"',
        "+4102444800000", '"4102444800000.0"', "4102444800000.0", "4102444800000.5", "4102444800e3", "4.1024448e12",
        '"4102444800e3"', '" 4102444800000"', '"4102444800000 "', '"4102444800000\\n"', '"4_102_444_800_000"',
        '"4,102,444,800,000"', '"0x3bb2cc3d800"', '"٤١٠٢٤٤٤٨٠٠٠٠٠"', '"４１０２４４４８０００００"',
        '"2100-01-01T00:00:00Z"',
        '"4102444800000ms"', '"90d"', "NaN", "Infinity", "-Infinity", '"NaN"', '"Infinity"', "1e400",
        "-1e400", "1E999999",
        "9223372036854775808", '"9223372036854775808"', "-9223372036854775809", '"-9223372036854775809"',
        "18446744073709551615", "1" * 5_000, f'"{"1" * 5_000}"', "-" + "9" * 60_000, f'"{"9" * 60_000}"', "0" * 5_000,
        "0", '"0"', "-1", '"-1"', "-0", "5", '"5"', "-9223372036854775808", '"-9223372036854775808"', "1600000000000",
        '"1600000000000"', "--5", '"--5"', "'5'", '"-"', '"+"', '"\\u0000"', '"5\\u0000"', '"\\ud800"', "undefined",
    ],
}  # fmt: skip

BODIES = NOT_ONE_OBJECT | BAD_FIELDS | {
    f"{field} is {text if len(text) < 40 else text[:20] + '…' + str(len(text))}": raw_body(**{field: text})
    for field, texts in BAD_VALUES.items()
    for text in texts
}  # fmt: skip


@pytest.mark.parametrize("body", [pytest.param(body, id=ascii(name)) for name, body in BODIES.items()])
def test_a_malformed_body_gets_400(client: httpx.Client, node: str, body: bytes) -> None:
    problem_of(client.put(node, content=body), 400)


@pytest.mark.parametrize("body", [pytest.param(body, id=ascii(name)) for name, body in BODIES.items()])
def test_one_malformed_node_among_several_gets_400(client: httpx.Client, body: bytes) -> None:
    several = b'{"bad-1": ' + json.dumps(block()).encode() + b', "bad-2": ' + body + b"}"
    problem_of(client.put("/blocklist/nodes", content=several), 400)


@pytest.mark.parametrize("body", [pytest.param(body, id=ascii(name)) for name, body in NOT_ONE_OBJECT.items()])
def test_several_nodes_are_one_object(client: httpx.Client, body: bytes) -> None:
    problem_of(client.put("/blocklist/nodes", content=body), 400)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"[" * 400_000 + b"]" * 400_000, id="lists"),
        pytest.param(b'{"n":' * 100_000 + b"1" + b"}" * 100_000, id="objects"),
        pytest.param(b'{"n": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", id="a list in an object"),
        pytest.param(b'{"n": {"cause": ' + b"[" * 1_000_000, id="left open"),
        pytest.param(b'{"n": {"endTimestamp": ' + b"9" * 1_000_000 + b"}}", id="a number of a million digits"),
    ],
)
def test_depth_and_length_do_no_harm(client: httpx.Client, body: bytes) -> None:
    problem_of(client.put("/blocklist/nodes", content=body), 400)


@pytest.mark.parametrize("end", [-1000, 0])
@pytest.mark.parametrize("kind", [int, str])
def test_an_end_that_is_not_in_the_future_gets_400(client: httpx.Client, node: str, end: int, kind: type) -> None:
    problem_of(client.put(node, json=block(endTimestamp=kind(now_ms() + end))), 400)


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
        ("/blocklist/nodes/[::1]", 400),
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
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD"])
def test_a_malformed_node_id_is_refused(service: ServiceProcess, method: str, target: str, status: int) -> None:
    body = json.dumps(block()).encode() if method == "PUT" else b""
    response = send_request(service.port, request(target, method=method, body=body), method)
    assert response.status == status
    if method != "HEAD":
        problem_of(response, status)


@pytest.mark.parametrize(
    "key",
    ["", ".", "..", "a/b", "a b", "%61", "é", "x" * 254, "a\u0000", "a\n", "\u0663", "＊", "\ud800", "a+b", "[::1]"],
    ids=ascii,
)
def test_a_malformed_node_id_among_several_gets_400(client: httpx.Client, key: str) -> None:
    body = json.dumps({"bad-1": block(), key: block()}).encode()
    problem_of(client.put("/blocklist/nodes", content=body), 400)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"n": %b, "n": %b}', id="as it is"),
        pytest.param(b'{"n": %b, "\\u006e": %b}', id="in escapes"),
    ],
)
def test_a_repeated_node_id_gets_400(client: httpx.Client, body: bytes) -> None:
    one = json.dumps(block()).encode()
    problem_of(client.put("/blocklist/nodes", content=body % (one, one)), 400)


def test_an_id_is_percent_decoded_once(client: httpx.Client, service: ServiceProcess) -> None:
    problem = problem_of(send_request(service.port, request("/blocklist/nodes/%66%72%65%65-%6e%6F%64%65")), 404)
    assert "free-node" in problem["detail"]


@pytest.mark.parametrize(
    "query",
    [
        "minRevision=x", "minRevision=-1", "minRevision=", "minRevision=1.5", "minRevision=%2B1", "minRevision=1e3",
        "minRevision=1_0", "minRevision=%D9%A3", f"minRevision={'9' * 5_000}", "minRevision=%00",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/blocklist", "/blocklist/nodes/free", "/blocklist/changes"])
def test_a_malformed_min_revision_gets_400(service: ServiceProcess, path: str, query: str) -> None:
    problem_of(send_request(service.port, request(f"{path}?{query}")), 400)


def padded(length: int, body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode().ljust(length)


@pytest.mark.parametrize(
    ("path", "limit", "body"),
    [("/blocklist/nodes/large", KIB_64, block()), ("/blocklist/nodes", MIB_1, {"large": block()})],
)
class TestSize:
    def test_a_body_over_the_limit_gets_413(self, client: httpx.Client, path: str, limit: int, body: Any) -> None:
        problem_of(client.put(path, content=padded(limit + 1, body)), 413)

    def test_a_chunked_body_over_the_limit_gets_413(
        self, service: ServiceProcess, path: str, limit: int, body: Any
    ) -> None:
        data = padded(limit + 1, body)
        head = request(path, "Transfer-Encoding: chunked", method="PUT")
        chunks = [b"%x\r\n%b\r\n" % (len(part), part) for part in (data[:20_000], data[20_000:])]
        problem_of(exchange(service.port, head, *chunks, b"0\r\n\r\n")[0], 413)

    def test_413_is_sent_as_soon_as_the_limit_is_exceeded(
        self, service: ServiceProcess, path: str, limit: int, body: Any
    ) -> None:
        head = request(path, "Content-Length: 99999999999", method="PUT")
        problem_of(exchange(service.port, head, padded(limit + 1, body))[0], 413)

    def test_a_body_at_the_limit_is_read(self, client: httpx.Client, path: str, limit: int, body: Any) -> None:
        problem_of(client.put(path, content=padded(limit - 1, body) + b"x"), 400)


def test_the_body_of_a_delete_has_a_limit_too(client: httpx.Client) -> None:
    problem_of(client.request("DELETE", "/blocklist/nodes/large", content=b" " * (KIB_64 + 1)), 413)


def test_a_client_that_disconnects_in_its_body_changes_nothing(service: ServiceProcess) -> None:
    body = json.dumps(block()).encode()
    whole = request("/blocklist/nodes/gone", method="PUT", body=body)
    exchange(service.port, whole[:-5], methods=())
