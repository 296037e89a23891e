"""The command: parsing and formatting of nodes, durations and times; tables; when a block satisfies a request."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import typer

from app.settings import Settings
from blocklist.cli import environment, messages, options, output
from blocklist.cli.block import BlockSpec, end_and_tolerance, ensure_blocked, noop_block
from blocklist.cli.drain import Hold, occupancy_of
from blocklist.cli.output import STATUSES, Table
from blocklist.client import transport
from blocklist.client.answers import AppliedCount
from blocklist.model.draft import already_blocked_message
from blocklist.model.errors import ConflictError, InvalidError
from blocklist.model.node import (
    MAX_NODES,
    PERMANENT,
    AppliedBy,
    BlockAction,
    BlockedNode,
    expand_nodes,
    format_duration,
    merge,
    parse_duration,
)
from blocklist.model.text import escape_unprintable
from blocklist.wire.listeners import AppliedBody, NodeStatusBody

MARK, EVACUATE = BlockAction
HOUR = 3_600_000


class TestSettings:
    @pytest.mark.parametrize(
        ("name", "meant"),
        [
            ("URLS", "URL"),
            ("ULR", "URL"),
            ("URI", "URL"),
            ("TOKENFILE", "TOKEN_FILE"),
            ("TIMOUT", "TIMEOUT"),
            ("DEFAULT_DURATIONS", "DEFAULT_DURATION"),
        ],
    )
    def test_a_misspelt_setting_is_named_with_the_setting_that_was_meant(self, name: str, meant: str) -> None:
        with pytest.raises(InvalidError) as error:
            environment.check_names({f"BLOCKLIST_{name}": "x", "BLOCKLIST_URL": "http://a"})
        assert error.value.lines == (f"BLOCKLIST_{name} is not a setting: did you mean BLOCKLIST_{meant}?",)

    def test_the_settings_of_the_service_are_not_taken_for_misspelt_ones(self) -> None:
        environment.check_names({f"BLOCKLIST_{name.upper()}": "x" for name in Settings.model_fields})


class TestConflicts:
    def test_what_programs_send_is_not_what_people_are_told(self) -> None:
        node = BlockedNode(id="n1", action=MARK, start=0, end=PERMANENT, cause="disk")
        error = ConflictError(already_blocked_message(node), {})
        assert messages.error_lines(error) == ["Error: Node n1 is already blocked without end (disk)."]

    def test_that_a_block_leaves_a_canary_is_said(self) -> None:
        node = BlockedNode(id="n1", action=MARK, start=0, end=PERMANENT, cause="slow", canary=True)
        assert already_blocked_message(node).startswith("Node n1 is already blocked without end, with a canary (slow);")


class TestClock:
    @pytest.mark.parametrize(
        ("date", "offset"),
        [
            ("Sat, 21 Nov 2026 18:00:03 GMT", 0),
            ("Sat, 21 Nov 2026 19:00:00 GMT", HOUR),
            ("Sat, 21 Nov 2026 17:00:00 GMT", -HOUR),
            (None, 0),
            ("", 0),
            ("yesterday", 0),
            ("Sat, 99 Nov 2026 18:00:00 GMT", 0),
            ("Sat, 21 Mai 2026 18:00:00 GMT", 0),
            ("Thu, 01 Jan 1970 00:00:00 GMT", -1_795_284_000_000),
        ],
    )
    def test_the_offset_is_that_of_the_date_header(
        self, monkeypatch: pytest.MonkeyPatch, date: str | None, offset: int
    ) -> None:
        now = SimpleNamespace(time_ns=lambda: 1_795_284_000_000 * 1_000_000, monotonic=lambda: 0.0)
        monkeypatch.setattr(transport, "time", now)
        clock = transport.ServiceClock()
        clock.on_date(date)
        assert (clock.ahead(), clock.has_response) == (offset, True)


class TestRanges:
    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            (["worker-17"], ["worker-17"]),
            (["b", "a", "b"], ["b", "a"]),
            (["worker-[08-11]"], ["worker-08", "worker-09", "worker-10", "worker-11"]),
            (["n[8-11]"], ["n8", "n9", "n10", "n11"]),
            (["n[098-101]"], ["n098", "n099", "n100", "n101"]),
            (["n[5-5]"], ["n5"]),
            (["r[1-2]n[1-2]"], ["r1n1", "r1n2", "r2n1", "r2n2"]),
            (["[a,b,07-09].example.com"], [f"{it}.example.com" for it in ("a", "b", "07", "08", "09")]),
            (["a,n[1,2],b"], ["a", "n1", "n2", "b"]),
            (["fe80::1"], ["fe80::1"]),
        ],
    )
    def test_a_range_expands_to_its_nodes_in_order_without_duplicates(
        self, words: list[str], expected: list[str]
    ) -> None:
        assert expand_nodes(words) == expected

    @pytest.mark.parametrize(
        "word",
        ["", "n[", "n]", "n[]", "n[1-]", "n[-1]", "n[a-c]", "n[3-1]", "n[1,]", "n[[1]]", "n[1]]", "a,", "a b", "ä", ".",
         "n[1 - 2]", "n[١-٢]", "n\n", "\udc80"],
    )  # fmt: skip
    def test_a_malformed_range_is_an_error_with_a_sentence(self, word: str) -> None:
        with pytest.raises(ValueError, match=r"\.$"):
            expand_nodes([word])

    @pytest.mark.parametrize("word", ["n[1..3]", "n[1:3]", "r1n[a,1..3]"])
    def test_a_range_of_another_syntax_is_refused_with_the_right_one(self, word: str) -> None:
        with pytest.raises(ValueError, match=r"write the range 1(\.\.|:)3 as 1-3\."):
            expand_nodes([word])

    def test_the_maximum_is_1000_distinct_nodes(self) -> None:
        assert len(expand_nodes([f"n[1-{MAX_NODES}]"])) == MAX_NODES
        with pytest.raises(ValueError, match="1,000"):
            expand_nodes([f"n[1-{MAX_NODES + 1}]"])
        assert len(expand_nodes([f"n[1-{MAX_NODES}]", "n[1-9]"])) == MAX_NODES

    @pytest.mark.timeout(10)
    def test_a_huge_range_is_rejected_without_expanding_it(self) -> None:
        with pytest.raises(ValueError, match="1,000"):
            expand_nodes(["n[1-999999999999999999]m[1-999999999999999999]k[1-999999999]"])

    def test_no_nodes_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="No node"):
            expand_nodes([])


class TestDurations:
    @pytest.mark.parametrize(
        ("text", "millis"),
        [("90s", 90_000), ("2h", 2 * HOUR), ("1d12h", 36 * HOUR), ("7d", 168 * HOUR), ("1.5h", HOUR * 3 // 2),
         ("500ms", 500), ("1m30s", 90_000), ("1w", 168 * HOUR)],
    )  # fmt: skip
    def test_a_duration_is_parsed_to_milliseconds(self, text: str, millis: int) -> None:
        assert parse_duration(text) == millis

    @pytest.mark.parametrize(
        "text", ["", "5", "h", "-1h", "1 h", "1y", "0s", "1h ", "1H", "1e3s", "1..5h", "٣h", "0.4ms"]
    )
    def test_a_malformed_duration_is_an_error_with_a_sentence(self, text: str) -> None:
        with pytest.raises(ValueError, match="is not a duration"):
            parse_duration(text)

    @pytest.mark.parametrize(
        ("millis", "text"),
        [(0, "0s"), (14, "14ms"), (1_499, "1s"), (45_000, "45s"), (90_000, "1m 30s"), (4 * HOUR, "4h"),
         (4 * HOUR - 1_000, "3h 59m"), (36 * HOUR, "1d 12h"), (24 * HOUR + 60_000, "1d"), (14 * 24 * HOUR, "2w")],
    )  # fmt: skip
    def test_a_duration_is_formatted_with_its_two_largest_units(self, millis: int, text: str) -> None:
        assert format_duration(millis) == text


class TestTimes:
    def test_a_timestamp_is_parsed_with_its_zone_and_formatted_in_utc(self) -> None:
        assert (
            options.parse_timestamp("2026-11-21T18:00:00Z")
            == options.parse_timestamp("2026-11-21T19:00:00+01:00")
            == 1795284000000
        )
        assert output.format_timestamp(1795284000999) == "2026-11-21T18:00:00Z"
        assert output.format_timestamp(PERMANENT) == "never"

    @pytest.mark.parametrize(
        "text", ["", "someday", "25:00", "2026-11-21T18:00:00", "2026-13-01T00:00:00Z", "1795284000000"]
    )
    def test_a_malformed_timestamp_or_one_without_a_zone_is_an_error(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"\.$"):
            options.parse_timestamp(text)

    def test_a_time_may_be_relative_to_now(self) -> None:
        now = 1795284000000
        for text in ("15m", "-15m", "15m ago"):
            assert options.parse_timestamp(text, now) == now - 900_000
        assert options.parse_timestamp("now", now) == now
        midnight = options.parse_timestamp("today", now)
        assert midnight <= now
        assert options.parse_timestamp("yesterday 18:00", now) == options.parse_timestamp("yesterday", now) + 18 * HOUR
        assert options.parse_timestamp("yesterday", now) < midnight

    def test_a_time_of_day_that_has_not_come_yet_is_yesterdays(self) -> None:
        now = options.parse_timestamp("today 12:00")
        assert options.parse_timestamp("11:00", now) == now - HOUR
        assert options.parse_timestamp("13:00", now) == options.parse_timestamp("yesterday 13:00", now)

    def test_nothing_has_happened_in_the_future(self) -> None:
        now = options.parse_timestamp("today 12:00")
        assert options.parse_past("now", now) == now
        for text in ("tomorrow", "today 13:00"):
            with pytest.raises(ValueError, match="is in the future"):
                options.parse_past(text, now)

    def test_an_end_is_the_next_time_of_that_name_and_no_duration(self) -> None:
        now = options.parse_timestamp("today 12:00")
        assert options.parse_end("13:00", now) == now + HOUR
        assert options.parse_end("11:00", now) > now
        with pytest.raises(ValueError, match="give it as -d 2h"):
            options.parse_end("2h", now)
        with pytest.raises(ValueError, match="18:00 or tomorrow 08:00"):
            options.parse_end("tomorow 08:00", now)

    def test_an_end_is_formatted_with_the_remaining_time(self) -> None:
        assert messages.format_end(1795284000000, 1795284000000 - 4 * HOUR) == "until 2026-11-21 18:00:00 UTC (in 4h)"
        assert messages.format_end(PERMANENT, 0) == "forever"
        assert messages.format_end(PERMANENT - 1, 0).startswith(f"until {PERMANENT - 1} (in ")


class TestTable:
    ROWS = (("worker-1", "mark", "a b"), ("w", "evacuate", ""))

    def test_columns_are_two_spaces_apart_and_an_empty_cell_is_a_dash(self) -> None:
        assert Table(("NODE", "ACTION", "REASON"), show_header=True, colour=False).lines(self.ROWS) == [
            "NODE      ACTION    REASON",
            "worker-1  mark      a b",
            "w         evacuate  -",
        ]

    def test_cells_are_never_truncated(self) -> None:
        (line,) = Table(("A", "B"), show_header=False, colour=False).lines([("x" * 300, "y" * 3000)])
        assert line == "x" * 300 + "  " + "y" * 3000

    def test_columns_widen_but_never_narrow_as_rows_are_added(self) -> None:
        table = Table(("A", "B"), show_header=True, colour=False)
        assert table.lines([("aaa", "1")]) == ["A    B", "aaa  1"]
        assert table.lines([("a", "2")]) == ["a    2"]

    def test_colours_add_only_escape_sequences(self) -> None:
        plain = Table(("NODE", "ACTION", "REASON"), show_header=True, colour=False).lines(self.ROWS)
        painted = Table(("NODE", "ACTION", "REASON"), show_header=True, colour=True).lines(self.ROWS)
        assert painted != plain
        for code in ("\x1b[0m", "\x1b[1m", "\x1b[31m", "\x1b[33m"):
            painted = [line.replace(code, "") for line in painted]
        assert painted == plain

    def test_wide_characters_take_two_columns(self) -> None:
        assert Table(("A", "B"), show_header=False, colour=False).lines([("機械", "1"), ("abc", "2")]) == [
            "機械  1",
            "abc   2",
        ]

    @pytest.mark.parametrize(
        ("text", "shown"),
        [("a\x1b[31mb", r"a\x1b[31mb"), ("a\nb\tc", r"a\nb\tc"), ("\x9b", r"\x9b"), ("a\u202eb", r"a\u202eb"),
         ("\u2028", r"\u2028"), ("\udc80", r"\udc80"), ("ünïcode 🐢", "ünïcode 🐢")],
    )  # fmt: skip
    def test_control_characters_are_escaped(self, text: str, shown: str) -> None:
        assert escape_unprintable(text) == shown
        assert Table(("A",), show_header=False, colour=True).lines([(text,)]) == [shown]


def existing_block(cause: str = "disk", *, action: BlockAction = MARK, end: int = 10 * HOUR) -> BlockedNode:
    return BlockedNode(id="n", action=action, start=0, end=end, cause=cause)


def block_spec(
    cause: str = "disk", *, action: BlockAction = MARK, end: int = 10 * HOUR, tolerance: int = 0
) -> BlockSpec:
    return BlockSpec(action=action, cause=cause, start=5, end=end, tolerance=tolerance)


class TestBlockSpec:
    @pytest.mark.parametrize(
        ("spec", "existing"),
        [
            (block_spec(), existing_block()),
            (block_spec(end=HOUR), existing_block()),
            (block_spec(), existing_block("memory,disk", action=EVACUATE, end=PERMANENT)),
            (block_spec(end=10 * HOUR + 60_000, tolerance=60_000), existing_block()),
        ],
    )
    def test_an_equal_or_stronger_block_satisfies_it(self, spec: BlockSpec, existing: BlockedNode) -> None:
        assert spec.satisfied_by(existing)

    @pytest.mark.parametrize(
        "spec",
        [
            block_spec("memory"),
            block_spec(action=EVACUATE),
            block_spec(end=10 * HOUR + 1),
            block_spec(end=10 * HOUR + 60_001, tolerance=60_000),
            block_spec("memory", end=10 * HOUR + 1, tolerance=60_000),
        ],
    )
    def test_a_weaker_block_does_not_satisfy_it(self, spec: BlockSpec) -> None:
        assert not spec.satisfied_by(existing_block())

    def test_nodes_that_are_already_blocked_are_left_out_of_the_request(self) -> None:
        sent: list[list[str]] = []

        def send(nodes: list[BlockedNode]) -> str:
            sent.append([node.id for node in nodes])
            if "n" in sent[-1]:
                raise ConflictError("blocked", {"n": existing_block()})
            return "done"

        come = ensure_blocked(block_spec(), ["m", "n", "o"], send)
        assert (come.response, dict(come.already_blocked)) == ("done", {"n": existing_block()})
        assert sent == [["m", "n", "o"], ["m", "o"]]
        assert ensure_blocked(block_spec(), ["n"], send).response is None
        with pytest.raises(ConflictError):
            ensure_blocked(block_spec("memory"), ["m", "n"], send)

    def test_a_merge_leaves_out_the_nodes_that_it_would_not_change(self) -> None:
        other = replace(existing_block("memory"), id="o")

        def send(nodes: list[BlockedNode]) -> list[str]:
            raise ConflictError("blocked", {"n": existing_block(), "o": other})

        def merged(nodes: list[BlockedNode]) -> list[str]:
            return [node.id for node in nodes]

        result = ensure_blocked(block_spec(), ["m", "n", "o"], send, merged)
        assert (result.response, dict(result.already_blocked)) == (["m", "o"], {"n": existing_block()})

    @pytest.mark.parametrize(
        ("spec", "existing"),
        [
            (block_spec(), existing_block()),
            (block_spec(end=10 * HOUR + 60_000, tolerance=60_000), existing_block()),
            (block_spec(end=HOUR), existing_block("memory,disk", action=EVACUATE, end=PERMANENT)),
        ],
    )
    def test_a_noop_block_merges_without_a_change_and_asks_for_no_more_than_was_requested(
        self, spec: BlockSpec, existing: BlockedNode
    ) -> None:
        noop = noop_block(spec, existing)
        assert merge(existing, noop) is existing
        assert (noop.action, noop.cause, noop.end <= spec.end) == (spec.action, spec.cause, True)


def unused() -> int:
    """The default duration, where it must not be asked for."""
    raise AssertionError("an end was given")


class TestAppliedBy:
    @pytest.mark.parametrize(
        ("text", "applied", "total", "met"),
        [
            ("95%", 380, 400, True),
            ("95%", 379, 400, False),
            ("1%", 0, 1, False),
            ("100%", 2, 3, False),
            ("managers", 2, 2, True),
            ("50%", 0, 0, False),
        ],
    )
    def test_a_share_of_the_listeners_is_enough(self, text: str, applied: int, total: int, met: bool) -> None:
        assert AppliedBy.parse(text).is_met(applied, total) is met
        assert str(AppliedBy.parse(text)) == text

    @pytest.mark.parametrize("text", ["95", "0%", "101%", "9.5%", "-5%", "jobs", "", "%", "\u0669%", "9" * 5000 + "%"])
    def test_anything_else_is_an_error_with_a_sentence(self, text: str) -> None:
        with pytest.raises(ValueError, match="such as 95%, nor managers"):
            AppliedBy.parse(text)


class TestEndAndTolerance:
    def test_a_duration_has_a_tolerance_for_its_repeat(self) -> None:
        assert end_and_tolerance(1000, HOUR, None, False, unused) == (1000 + HOUR, 60_000)
        assert end_and_tolerance(1000, None, None, False, lambda: 30_000) == (31_000, 3_000)

    def test_an_end_and_forever_have_no_tolerance(self) -> None:
        assert end_and_tolerance(1000, None, 2000, False, unused) == (2000, 0)
        assert end_and_tolerance(1000, None, None, True, unused) == (PERMANENT, 0)
        assert end_and_tolerance(1000, PERMANENT, None, False, unused) == (PERMANENT, 0)
        assert end_and_tolerance(1000, None, None, False, lambda: PERMANENT) == (PERMANENT, 0)

    @pytest.mark.parametrize(
        ("length", "until", "forever"), [(HOUR, 2000, False), (HOUR, None, True), (None, 999, False)]
    )
    def test_only_one_of_the_options_and_no_end_in_the_past(
        self, length: int | None, until: int | None, forever: bool
    ) -> None:
        with pytest.raises(typer.BadParameter):
            end_and_tolerance(1000, length, until, forever, unused)


@pytest.mark.parametrize(
    ("state", "drained", "stuck"),
    [
        ({"applied": True, "reports_task_managers": True}, True, False),
        ({"applied": True, "reports_task_managers": False}, False, False),
        ({"applied": False, "pending_reason": "1 pod is ending", "reports_task_managers": True}, False, False),
        ({"applied": False, "refused": "a Spark driver stays", "reports_task_managers": True}, False, True),
    ],
)
def test_a_node_that_only_a_manager_has_is_drained_once_it_reports_that_nothing_runs(
    state: dict[str, Any], drained: bool, stuck: bool
) -> None:
    fields = {"applied_at": None, "late_ms": None, "refused": None, "task_managers": []} | state
    listener = AppliedBody(id="slurm", role="RESOURCE_MANAGER", **fields)
    status = NodeStatusBody(
        id="n1", blocked=True, revision=1, at=1, applied=0, of=1, state="pending", listeners=[listener]
    )
    found = occupancy_of(status, [])
    assert (found.drained, found.stuck) == (drained, stuck)
    if "pending_reason" in state:
        assert found.holding["slurm"].hold is Hold.PENDING
        assert "1 pod is ending" in found.holding["slurm"].text


@pytest.mark.parametrize(
    ("role", "reports", "tasks"), [("JOB_MASTER", True, "0"), ("JOB_MASTER", False, "unknown"), (None, True, "unknown")]
)
def test_the_tasks_on_a_node_are_unknown_unless_every_job_reports_them(
    role: Literal["JOB_MASTER"] | None, reports: bool, tasks: str
) -> None:
    fields: dict[str, Any] = {"applied": False, "applied_at": None, "late_ms": None, "refused": None}
    jobs = [AppliedBody(id="etl", role=role, task_managers=[], reports_task_managers=reports, **fields)] if role else []
    status = NodeStatusBody(
        id="n1",
        blocked=True,
        revision=1,
        at=1,
        applied=0,
        of=1,
        state="pending" if role else "unknown",
        listeners=[AppliedBody(id="yarn", role="RESOURCE_MANAGER", task_managers=[], **fields), *jobs],
    )
    assert STATUSES.columns["TASKS"](status) == tasks


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (AppliedCount(2, 2, ()), AppliedCount(2, 2, ()), AppliedCount(2, 2, ())),
        (AppliedCount(1, 2, ("a",)), AppliedCount(1, 2, ("b",)), AppliedCount(0, 2, ("a", "b"))),
        (AppliedCount(1, 3, ("a",), ("b",)), AppliedCount(3, 3, ()), AppliedCount(1, 3, ("a",), ("b",))),
        # Each of two managers has one of the nodes.
        (AppliedCount(2, 2, (), not_here=("k",)), AppliedCount(2, 2, (), not_here=("y",)), AppliedCount(3, 3, ())),
        (
            AppliedCount(2, 2, (), not_here=("k",)),
            AppliedCount(1, 2, ("k",), not_here=("y",)),
            AppliedCount(2, 3, ("k",)),
        ),
        (
            AppliedCount(1, 1, (), not_here=("k",)),
            AppliedCount(0, 1, ("a",), not_here=("k",)),
            AppliedCount(0, 1, ("a",), not_here=("k",)),
        ),
        (AppliedCount(0, 2, (), superseded=("n",)), AppliedCount(2, 2, ()), AppliedCount(0, 2, (), superseded=("n",))),
    ],
)
def test_a_listener_counts_if_it_has_applied_what_is_for_it_of_two_changes(
    one: AppliedCount, other: AppliedCount, both: AppliedCount
) -> None:
    assert one.and_also(other) == both
    assert replace(other.and_also(one), missing=()) == replace(both, missing=())


@pytest.mark.parametrize(
    ("share", "gc_tasks", "drained"),
    [("100%", 0, False), ("66%", 0, True), ("67%", 0, False), ("managers", 0, True), ("managers", 1, False)],
)
def test_a_job_in_garbage_collection_that_runs_nothing_there_may_be_left_out(
    share: str, gc_tasks: int, drained: bool
) -> None:
    def listener(name: str, role: str, *, applied: bool, tasks: int) -> dict[str, Any]:
        on_node = [{"id": f"{name}-1", "runningTasks": tasks}]
        times = {"appliedAt": None, "lateMs": None, "refused": None}
        return {"id": name, "role": role, "applied": applied, "taskManagers": on_node, **times}

    listeners = [
        listener("yarn", "RESOURCE_MANAGER", applied=True, tasks=0),
        listener("etl", "JOB_MASTER", applied=True, tasks=0),
        listener("gc", "JOB_MASTER", applied=False, tasks=gc_tasks),
    ]
    counts = {"revision": 1, "at": "1", "applied": 2, "of": 3, "state": "pending"}
    status = NodeStatusBody.parse({"id": "n1", "blocked": True, **counts, "listeners": listeners})
    assert occupancy_of(status, [], AppliedBy.parse(share)).drained is drained
