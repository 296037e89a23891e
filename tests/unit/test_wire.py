"""JSON and bodies: round trips, and what is rejected."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.requests import BlockRequest
from blocklist.model.changes import Change, ChangeType, Snapshot
from blocklist.model.errors import InvalidError
from blocklist.model.node import MAX_CAUSE_LENGTH, MIN_TIMESTAMP, PERMANENT, BlockAction, BlockedNode
from blocklist.wire.body import dump_json, parse_json
from blocklist.wire.changes import ChangeBody, SnapshotBody, change_body, dump_snapshot
from blocklist.wire.listeners import NodeStatusBody
from blocklist.wire.nodes import ListedNode, NodeBody, dump_list_entry, dump_node, node_body

MILLIS = st.integers(MIN_TIMESTAMP, PERMANENT)
TEXT = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1)
NODES = st.builds(
    BlockedNode,
    id=st.from_regex(r"[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,20}", fullmatch=True),
    action=st.sampled_from(BlockAction),
    start=MILLIS,
    end=MILLIS,
    cause=TEXT,
)
CHANGES = st.builds(
    Change,
    revision=st.integers(1, 2**53),
    type=st.sampled_from(ChangeType),
    at=MILLIS,
    node=NODES,
    created_by=st.none() | TEXT,
)
SNAPSHOTS = st.builds(
    Snapshot,
    revision=st.integers(0, 2**53),
    history=st.from_regex(r"[0-9a-f]{8}", fullmatch=True),
    nodes=st.lists(NODES, max_size=5).map(lambda nodes: {node.id: node for node in nodes}),
)


class TestRoundTrip:
    """Through bytes."""

    @given(NODES, st.lists(TEXT))
    def test_a_node(self, node: BlockedNode, task_managers: list[str]) -> None:
        body = parse_json(dump_json(node_body(node, task_managers)))
        assert NodeBody.parse(body).value() == node
        assert body["taskManagers"] == task_managers

    @given(NODES, st.lists(TEXT))
    def test_a_node_rendered_directly(self, node: BlockedNode, task_managers: list[str]) -> None:
        body = node_body(node, task_managers)
        assert dump_node(node, task_managers) == dump_json(body)
        listed = parse_json(b"{%b}" % dump_list_entry(node, task_managers))
        assert listed == {body.pop("id"): body}

    @given(CHANGES)
    def test_a_change(self, change: Change) -> None:
        assert ChangeBody.parse(parse_json(dump_json(change_body(change)))).value() == change

    @given(SNAPSHOTS)
    def test_a_snapshot(self, snapshot: Snapshot) -> None:
        body = parse_json(b"".join(dump_snapshot(snapshot)))
        assert SnapshotBody.parse(body).value() == snapshot
        assert list(body["nodes"]) == sorted(snapshot.nodes)

    @given(NODES)
    def test_times_are_strings(self, node: BlockedNode) -> None:
        body = node_body(node, [])
        assert (body["startTimestamp"], body["endTimestamp"]) == (str(node.start), str(node.end))

    @given(NODES)
    def test_a_node_is_one_line_whatever_the_cause(self, node: BlockedNode) -> None:
        """An event of the watch is one line; no cause may break it."""
        assert b"\n" not in dump_json(node_body(node, []))

    def test_the_json_of_a_node(self) -> None:
        node = BlockedNode(id="worker-17", action=BlockAction.MARK_BLOCKED, start=5, end=PERMANENT, cause='heiß, "q"')
        assert dump_json(node_body(node, ["tm-1"])).decode() == (
            '{"id":"worker-17","action":"MARK_BLOCKED","startTimestamp":"5","endTimestamp":"9223372036854775807",'
            '"cause":"heiß, \\"q\\"","taskManagers":["tm-1"]}'
        )

    @pytest.mark.parametrize("extra", [{"colour": "red"}, {"taskManagers": None}, {"status": 201}])
    def test_unknown_fields_of_a_newer_service_are_ignored(self, extra: dict[str, Any]) -> None:
        node = BlockedNode(id="a", action=BlockAction.MARK_BLOCKED, start=5, end=6, cause="disk")
        assert NodeBody.parse(node_body(node, []) | extra).value() == node


def request(**fields: object) -> dict[str, object]:
    return {"action": "MARK_BLOCKED", "cause": "disk", **fields}


def each(field: str, *values: object) -> list[tuple[str, object]]:
    return [(field, value) for value in values]


class TestBlockRequest:
    def test_the_defaults_are_permanent_and_no_merge(self) -> None:
        block = BlockRequest.parse(request())
        assert (block.end_timestamp, block.allow_merge) == (PERMANENT, False)

    @given(MILLIS)
    def test_an_end_is_a_number_or_its_string(self, end: int) -> None:
        assert BlockRequest.parse(request(endTimestamp=end)).end_timestamp == end
        assert BlockRequest.parse(request(endTimestamp=str(end))).end_timestamp == end

    @pytest.mark.parametrize(("value", "expected"), [(True, True), (False, False), ("true", True), ("false", False)])
    def test_allow_merge(self, value: object, expected: bool) -> None:
        assert BlockRequest.parse(request(allowMerge=value)).allow_merge is expected

    @pytest.mark.parametrize("cause", ["c" * MAX_CAUSE_LENGTH, "🐢" * MAX_CAUSE_LENGTH, " ", "a,b", "\u2028", "\xa0"])
    def test_a_cause_is_any_printable_text_up_to_its_length(self, cause: str) -> None:
        assert BlockRequest.parse(request(cause=cause)).cause == cause

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            *each("action", None, "", "mark_blocked", "MARK_BLOCKED ", 1, 1.0, True, ["MARK_BLOCKED"], {}),
            *each("cause", None, "", 5, True, ["disk"], {}, "a\nb", "\x00", "\x7f", "\x85", "\ud800"),
            *each("cause", "c" * (MAX_CAUSE_LENGTH + 1)),
            *each("endTimestamp", None, "", "x", "+5", "5 ", " 5", "05", "-0", "5.0", "1_0", "5\n", "٥"),
            *each("endTimestamp", 5.0, True, [], {}, float("inf"), "0x5", "1e3", "9" * 5000),
            *each("endTimestamp", PERMANENT + 1, str(PERMANENT + 1), MIN_TIMESTAMP - 1, str(MIN_TIMESTAMP - 1)),
            *each("allowMerge", None, 0, 1, 1.0, "True", "FALSE", "yes", "1", "", " true", [], {}),
            *((unknown, "x") for unknown in ["id", "startTimestamp", "allow_merge", "end_timestamp", "ACTION", ""]),
        ],
        ids=ascii,
    )  # fmt: skip
    def test_any_other_value_is_rejected_and_its_field_named(self, field: str, value: object) -> None:
        with pytest.raises(InvalidError) as error:
            BlockRequest.parse(request(**{field: value}))
        (line,) = error.value.lines
        assert re.fullmatch(r"[^:]*: [a-z].*\.", line), line
        assert line.startswith((field or "the body") + ": ")

    @pytest.mark.parametrize("value", [None, True, 5, 5.0, "MARK_BLOCKED", [], [request()]])
    def test_a_value_that_is_no_object_is_rejected(self, value: object) -> None:
        with pytest.raises(InvalidError, match=r"the body: give an object\."):
            BlockRequest.parse(value)

    def test_a_line_for_each_fault(self) -> None:
        with pytest.raises(InvalidError) as error:
            BlockRequest.parse({"cause": "", "endTimestamp": "+5", "colour": "red", "allowMerge": 1})
        assert [line.partition(":")[0] for line in error.value.lines] == [
            "action", "cause", "endTimestamp", "allowMerge", "colour",
        ]  # fmt: skip
        assert error.value.detail == " ".join(error.value.lines)

    @pytest.mark.parametrize("name", ["x" * 60_000, "\ud800", "a\nb", "\x1b[31m"])
    def test_a_line_is_short_and_printable_whatever_the_field_is_called(self, name: str) -> None:
        with pytest.raises(InvalidError) as error:
            BlockRequest.parse(request(**{name: 1}))
        (line,) = error.value.lines
        assert len(line) < 120
        assert line.isprintable()
        assert line.isascii()

    @pytest.mark.parametrize(("end", "now"), [(100, 100), (99, 100), (MIN_TIMESTAMP, 0)])
    def test_the_end_must_be_in_the_future(self, end: int, now: int) -> None:
        with pytest.raises(InvalidError, match=f"endTimestamp: {end} is not in the future; the current time is {now}"):
            BlockRequest.parse(request(endTimestamp=end)).node("a", now)

    def test_the_node_is_blocked_from_now_on(self) -> None:
        block = BlockRequest.parse(request(action="MARK_BLOCKED_AND_EVACUATE_TASKS", endTimestamp=101))
        assert block.node("a", 100) == BlockedNode(
            id="a", action=BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS, start=100, end=101, cause="disk"
        )


LISTED: dict[str, Any] = {
    "action": "MARK_BLOCKED",
    "startTimestamp": "1",
    "endTimestamp": str(PERMANENT),
    "cause": "disk",
    "taskManagers": [],
    "createdBy": None,
    "revision": 7,
    "owners": ["anna"],
}
CASES = [case for field in LISTED for case in each(field, None, 5, "", ["x"], [5], "9223372036854775808")]
ALLOWED = [
    *each("startTimestamp", 5),
    *each("endTimestamp", 5),
    *each("cause", "9223372036854775808"),
    *each("taskManagers", ["x"]),
    *each("createdBy", None, "", "9223372036854775808"),
    *each("revision", 5),
    *each("owners", None, ["x"]),
]


class TestInvalidBodies:
    """A client rejects bodies that no blocklist service sends."""

    @pytest.mark.parametrize(
        "fields",
        [
            {"revision": 0}, {"revision": "1"}, {"revision": 1.0}, {"revision": True}, {"revision": 2**53 + 1},
            {"type": 5}, {"type": None}, {"at": "later"}, {"at": None}, {"createdBy": 5}, {"node": None},
            {"node": {"id": "a"}},
        ],
        ids=str,
    )  # fmt: skip
    def test_a_change(self, fields: dict[str, Any]) -> None:
        node = BlockedNode(id="a", action=BlockAction.MARK_BLOCKED, start=5, end=6, cause="disk")
        good = change_body(Change(revision=1, type=ChangeType.BLOCKED, at=5, node=node))
        with pytest.raises(InvalidError):
            ChangeBody.parse(good | fields).value()

    @pytest.mark.parametrize(
        "fields",
        [
            {"id": "a b"}, {"id": ""}, {"id": 7}, {"action": "HARK"}, {"action": 1}, {"startTimestamp": "x"},
            {"endTimestamp": PERMANENT + 1}, {"cause": ""}, {"cause": "a\nb"}, {"cause": "\ud800"}, {"cause": None},
        ],
        ids=ascii,
    )  # fmt: skip
    def test_a_node(self, fields: dict[str, Any]) -> None:
        node = BlockedNode(id="a", action=BlockAction.MARK_BLOCKED, start=5, end=6, cause="disk")
        with pytest.raises(InvalidError):
            NodeBody.parse(node_body(node, []) | fields).value()

    @pytest.mark.parametrize(("field", "value"), [case for case in CASES if case not in ALLOWED], ids=str)
    def test_a_listed_node(self, field: str, value: object) -> None:
        with pytest.raises(InvalidError):
            ListedNode.parse(LISTED | {field: value}).value("n1")

    @pytest.mark.parametrize(("field", "value"), ALLOWED, ids=str)
    def test_a_listed_node_that_is_valid(self, field: str, value: object) -> None:
        ListedNode.parse(LISTED | {field: value}).value("n1")

    def test_the_place_of_a_fault_is_named(self) -> None:
        listener = {"id": "app", "role": "JOB_MASTER", "applied": False, "appliedAt": None, "lateMs": None}
        listener |= {"refused": None, "taskManagers": [{"id": "tm-1", "runningTasks": True}]}
        status = {"id": "n1", "blocked": True, "revision": 1, "at": "5", "applied": 0, "of": 1, "state": "pending"}
        status["listeners"] = [listener]
        with pytest.raises(InvalidError, match=r"^listeners\.0\.taskManagers\.0\.runningTasks: give an integer\.$"):
            NodeStatusBody.parse(status)

    @pytest.mark.parametrize(
        "fields",
        [{"revision": -1}, {"history": "00C0FFEE"}, {"history": "0"}, {"nodes": []}, {"nodes": {"a": 7}}],
        ids=str,
    )
    def test_a_snapshot(self, fields: dict[str, Any]) -> None:
        with pytest.raises(InvalidError):
            SnapshotBody.parse({"revision": 7, "history": "00c0ffee", "nodes": {}, **fields}).value()


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner))


class TestParseJson:
    @given(JSON)
    def test_json_is_parsed_to_the_same_value(self, value: object) -> None:
        assert parse_json(json.dumps(value).encode()) == value
        assert parse_json(dump_json(value)) == value

    @given(st.binary())
    def test_anything_else_is_invalid(self, body: bytes) -> None:
        with contextlib.suppress(InvalidError):  # and nothing else is raised
            assert parse_json(body) == json.loads(body)

    @pytest.mark.parametrize(
        ("body", "sentence"),
        [
            (b"", "not JSON"), (b" ", "not JSON"), (b"{", "not JSON"), (b"{} {}", "not JSON"),
            (b"{'a': 1}", "not JSON"),
            (b'"a\nb"', "not JSON"), (b"01", "not JSON"), (b"{},", "not JSON"),
            (b"\xff", "not UTF-8"), (b'"\xed\xa0\x80"', "not UTF-8"), ("{}".encode("utf-16"), "not UTF-8"),
            (b"NaN", "NaN is not JSON"), (b"[-Infinity]", "-Infinity is not JSON"), (b'{"a": Infinity}', "is not JSON"),
            (b"[" * 100_000, "nested too deeply"), (b'{"a":' * 100_000, "nested too deeply"),
            (b"9" * 5000, "number in the body is too long"), (b'{"a": -%s}' % (b"9" * 5000), "number in the body"),
            (b'{"a": 1, "a": 1}', "'a' is given more than once"), (b'{"a": 1, "\\u0061": 2}', "'a' is given more"),
            (b'[{"b": {"c": 1, "d": 2, "c": 3}}]', "'c' is given more"),
            (b'{"\\ud800": 1, "\\ud800": 1}', r"'\\ud800' is given more"),
        ],
        ids=lambda value: ascii(value[:20]),
    )  # fmt: skip
    def test_parsing_is_strict_and_names_the_cause(self, body: bytes, sentence: str) -> None:
        with pytest.raises(InvalidError, match=sentence) as error:
            parse_json(body)
        assert len(error.value.detail) < 120
        assert error.value.detail.isascii()
