"""Malformed bodies, as bytes: each parser of a request refuses them with a short sentence, and raises nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final

import pytest
from pydantic import TypeAdapter, ValidationError

from app.alertmanager import parse_post
from app.api.nodes import block_command, parse_nodes
from app.api.parameters import Revision
from app.requests import ClaimRequest, HeartbeatBody, RegistrationBody, SessionBody, TokenRequest
from app.settings import Settings
from blocklist.model.errors import InvalidError
from blocklist.wire.body import parse_json
from tests.integration.bodies import block
from tests.integration.listeners import registration_body
from tests.integration.problems import check_problem

NOW: Final = 1_800_000_000_000
ONE: Final = json.dumps(block()).encode()
Parser = Callable[[bytes], object]


def check_refused(parse: Parser, body: bytes) -> None:
    """The parser raises InvalidError, and what it says makes a good problem."""
    with pytest.raises(InvalidError) as refused:
        parse(body)
    said = {"status": 400, "type": "about:blank", "title": "Bad Request", "instance": "/"}
    check_problem({**said, "detail": refused.value.detail, "errors": list(refused.value.lines)}, 400)


def put_one_of_several(body: bytes) -> object:
    return parse_nodes(b'{"bad-1": ' + ONE + b', "bad-2": ' + body + b"}", NOW)


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

BLOCKS: Final[dict[str, Parser]] = {
    "a node": lambda body: block_command("n", body, NOW),
    "one of several nodes": put_one_of_several,
    "a claim": lambda body: ClaimRequest.parse(parse_json(body)).node("n", NOW),
}
OBJECTS: Final[dict[str, Parser]] = {
    "several nodes": lambda body: parse_nodes(body, NOW),
    "a registration": lambda body: RegistrationBody.parse(parse_json(body)),
    "a heartbeat": lambda body: HeartbeatBody.parse(parse_json(body)),
    "a session": lambda body: SessionBody.parse(parse_json(body)),
    "a token": lambda body: TokenRequest.parse(parse_json(body)),
    "a post of Alertmanager": parse_post,
}


def test_a_heartbeat_may_name_10_000_nodes_that_get_no_work() -> None:
    body = {"sessionId": "s1", "unschedulable": {f"n{number}": "DRAIN" for number in range(10_000)}}
    OBJECTS["a heartbeat"](json.dumps(body).encode())


def each(bodies: dict[str, bytes]) -> list[Any]:
    return [pytest.param(body, id=ascii(name)) for name, body in bodies.items()]


def test_the_bodies_that_these_cases_spoil_are_accepted() -> None:
    for parse in BLOCKS.values():
        parse(raw_body())
    session = {"sessionId": "s1"}
    good = [{"n": block()}, registration_body(), session, session, {"name": "anna", "role": "reader"}, {"alerts": []}]
    for parse, body in zip(OBJECTS.values(), good, strict=True):
        parse(json.dumps(body).encode())


@pytest.mark.parametrize("what", BLOCKS)
@pytest.mark.parametrize("body", each(BODIES))
def test_a_malformed_block_is_refused(what: str, body: bytes) -> None:
    check_refused(BLOCKS[what], body)


@pytest.mark.parametrize(
    ("what", "fields"),
    [
        ("a claim", {"allowMerge": "true"}),
        ("a claim", {"owner": '"b"'}),
        ("a claim", {"canary": "1"}),
        ("a claim", {"canary": '"yes"'}),
        ("a claim", {"canary": "null"}),
        ("a node", {"canary": "true"}),
        ("one of several nodes", {"canary": "true"}),
    ],
)
def test_only_a_claim_may_be_a_canary_and_its_owner_is_in_the_path(what: str, fields: dict[str, str]) -> None:
    check_refused(BLOCKS[what], raw_body(**fields))


@pytest.mark.parametrize("what", OBJECTS)
@pytest.mark.parametrize("body", each(NOT_ONE_OBJECT))
def test_a_body_that_is_not_one_object_is_refused(what: str, body: bytes) -> None:
    check_refused(OBJECTS[what], body)


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
def test_depth_and_length_do_no_harm(body: bytes) -> None:
    check_refused(OBJECTS["several nodes"], body)


@pytest.mark.parametrize("what", BLOCKS)
@pytest.mark.parametrize("form", ["%d", '"%d"'])
def test_an_end_that_is_not_in_the_future_is_refused(what: str, form: str) -> None:
    for end in (NOW - 1, NOW):
        check_refused(BLOCKS[what], raw_body(endTimestamp=form % end))
    BLOCKS[what](raw_body(endTimestamp=form % (NOW + 1)))


@pytest.mark.parametrize(
    "key",
    [
        "",
        ".",
        "..",
        "a/b",
        "a b",
        "%61",
        "é",
        "x" * 254,
        "a\u0000",
        "a\n",
        "\u0663",
        "＊",
        "\ud800",
        "a+b",
        "[::1",
        "[n1]",
    ],
    ids=ascii,
)
def test_a_malformed_node_id_among_several_is_refused(key: str) -> None:
    check_refused(OBJECTS["several nodes"], json.dumps({"bad-1": block(), key: block()}).encode())


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("several nodes", b'{"n": %b, "n": %b}' % (ONE, ONE)),
        ("several nodes", b'{"n": %b, "\\u006e": %b}' % (ONE, ONE)),
        ("a registration", b'{"sessionId": "s1", "sessionId": "s1", "role": "JOB_MASTER"}'),
        ("a heartbeat", b'{"sessionId": "s1", "sessionId": "s1"}'),
        ("a heartbeat", b'{"sessionId": "s1", "taskManagers": {"tm": "a", "tm": "b"}}'),
    ],
)
def test_a_repeated_name_is_refused(what: str, body: bytes) -> None:
    check_refused(OBJECTS[what], body)


@pytest.mark.parametrize(
    "text", ["x", "-1", "", "1.5", "+1", "1e3", "1_0", "\u0663", "9" * 5_000, "\x00", str(2**53 + 1)], ids=ascii
)
def test_a_malformed_revision_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Revision).validate_python(text)


BAD_IDS = ["", "a b", "a/b", "ä", "a" * 254, ".", "..", "a\n", "\u0000", "a,b", "[::1", "[n1]", "a@b", "%41"]
NO_IDS: list[object] = [*BAD_IDS, 5, True, [], {}]

BAD_REGISTRATION: dict[str, list[object]] = {
    "minNodes": [-1, 1.0, "1", True, None, 2**63],
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

EXCLUDED: Final = {"kind": "excluded", "reason": "Spark excluded the host."}
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
    "nodes": [
        "a", {"a": "b"}, [1], [None], [""], ["a b"], ["a", ".."], 5, [f"n-{number}" for number in range(10_001)],
    ],
    "unschedulable": [{"n 1": "DRAIN"}, {"n1": "x" * 301}, {"n1": "a\nb"}, ["n1"]],
    "evidence": [
        [], "a", 5, True, {"": EXCLUDED}, {"a b": EXCLUDED}, {"a": None}, {"a": "slow"}, {"a": []}, {"a": {}},
        {"a": {"kind": "slow"}}, {"a": {"reason": "why"}}, {"a": {**EXCLUDED, "kind": "SLOW"}},
        {"a": {**EXCLUDED, "kind": 1}}, {"a": {**EXCLUDED, "reason": ""}}, {"a": {**EXCLUDED, "reason": "x" * 301}},
        {"a": {**EXCLUDED, "reason": "two\nlines"}}, {"a": {**EXCLUDED, "reason": 5}},
        {"a": {**EXCLUDED, "reason": None}}, {"a": {**EXCLUDED, "firstSeen": "1"}}, {"a": EXCLUDED, "b": {}},
        {f"n-{number}": EXCLUDED for number in range(10_001)},
    ],
    "ackedRevision": [-1, 1.5, "x", "", "+1", True, [], {}, 2**53 + 1, 2**63, -(2**63), 10**400],
    "sessionId": [*NO_IDS, None],
    "unknown": [1],
}  # fmt: skip


def named(values: dict[str, list[object]]) -> list[Any]:
    return [
        pytest.param(field, value, id=ascii(f"{field}={value!r}"[:60])) for field in values for value in values[field]
    ]


def sent(body: dict[str, Any]) -> bytes:
    """JSON with escapes, so that a lone surrogate goes through."""
    return json.dumps(body).encode()


@pytest.mark.parametrize(("field", "value"), named(BAD_REGISTRATION))
def test_a_registration_with_a_bad_field_is_refused(field: str, value: object) -> None:
    check_refused(OBJECTS["a registration"], sent({**registration_body(), field: value}))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"role": "JOB_MASTER"}, id="no session"),
        pytest.param({"sessionId": "s1"}, id="no role"),
        pytest.param(registration_body(id="new"), id="the id"),
        pytest.param(registration_body(secret="whsec_AAAA"), id="the secret"),
        pytest.param(registration_body(ackedRevision=0), id="a cursor"),
        pytest.param(registration_body(lease_seconds=5), id="snake case"),
        pytest.param(registration_body(taskManagers={}), id="taskManagers"),
    ],
)
def test_a_registration_with_missing_or_unknown_fields_is_refused(body: dict[str, Any]) -> None:
    check_refused(OBJECTS["a registration"], sent(body))


@pytest.mark.parametrize(
    "body",
    [
        {"name": "a"},
        {"role": "reader"},
        {"name": "", "role": "reader"},
        {"name": "a b", "role": "reader"},
        {"name": "a\r\nb", "role": "reader"},
        {"name": "a", "role": "root"},
        {"name": "a", "role": "Reader"},
        {"name": "a", "role": None},
        {"name": "a", "role": "reader", "endTimestamp": None},
        {"name": "a", "role": "reader", "token": "blocklist_00000000_" + "A" * 43},
        {"name": "a", "role": "operator", "owners": []},
        {"name": "a", "role": "operator", "owners": ["a//b"]},
        {"name": "a", "role": "operator", "owners": ["*a"]},
        {"name": "a", "role": "operator", "owners": "a"},
        {"name": "a", "role": "admin", "owners": ["a"]},
        {"name": "a", "role": "reader", "owners": ["a"]},
        {"name": "a", "role": "operator", "owners": ["a"] * 33},
    ],
)
def test_a_token_with_a_bad_field_is_refused(body: dict[str, Any]) -> None:
    check_refused(OBJECTS["a token"], sent(body))


@pytest.mark.parametrize("url", ELSEWHERE)
def test_a_callback_to_a_forbidden_host_is_refused(url: str) -> None:
    def register(body: bytes) -> object:
        given = RegistrationBody.parse(parse_json(body)).callback_url
        assert given is not None
        return asyncio.run(Settings().callback_policy.resolve(given))

    check_refused(register, sent(registration_body(callbackUrl=url)))


@pytest.mark.parametrize(("field", "value"), named(BAD_MAPS))
def test_a_heartbeat_with_a_bad_field_is_refused(field: str, value: object) -> None:
    check_refused(OBJECTS["a heartbeat"], sent({"sessionId": "s1", field: value}))
