"""The command's own rules: how nodes, durations and times are read and written, tables, and when a wish is met."""

from __future__ import annotations

import pytest
import typer

from blocklist.cli import times
from blocklist.cli.block_request import Wish, as_it_is, fulfil, span
from blocklist.cli.durations import duration, written
from blocklist.cli.ranges import MAX_NODES, nodes
from blocklist.cli.table import Table, visible
from blocklist.model.errors import ConflictError
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode, merge

MARK, EVACUATE = BlockAction
HOUR = 3_600_000


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
    def test_a_word_stands_for_its_nodes_in_order_each_once(self, words: list[str], expected: list[str]) -> None:
        assert nodes(words) == expected

    @pytest.mark.parametrize(
        "word",
        ["", "n[", "n]", "n[]", "n[1-]", "n[-1]", "n[a-c]", "n[3-1]", "n[1,]", "n[[1]]", "n[1]]", "a,", "a b", "ä", ".",
         "n[1 - 2]", "n[١-٢]", "n\n", "\udc80"],
    )  # fmt: skip
    def test_what_cannot_be_read_is_a_sentence(self, word: str) -> None:
        with pytest.raises(ValueError, match=r"\.$"):
            nodes([word])

    def test_at_most_a_thousand(self) -> None:
        assert len(nodes([f"n[1-{MAX_NODES}]"])) == MAX_NODES
        with pytest.raises(ValueError, match="1,000"):
            nodes([f"n[1-{MAX_NODES + 1}]"])
        assert len(nodes([f"n[1-{MAX_NODES}]", "n[1-9]"])) == MAX_NODES

    @pytest.mark.timeout(10)
    def test_a_huge_range_is_refused_at_once(self) -> None:
        with pytest.raises(ValueError, match="1,000"):
            nodes(["n[1-999999999999999999]m[1-999999999999999999]k[1-999999999]"])

    def test_none_is_refused(self) -> None:
        with pytest.raises(ValueError, match="No node"):
            nodes([])


class TestDurations:
    @pytest.mark.parametrize(
        ("text", "millis"),
        [("90s", 90_000), ("2h", 2 * HOUR), ("1d12h", 36 * HOUR), ("7d", 168 * HOUR), ("1.5h", HOUR * 3 // 2),
         ("500ms", 500), ("1m30s", 90_000), ("1w", 168 * HOUR)],
    )  # fmt: skip
    def test_read(self, text: str, millis: int) -> None:
        assert duration(text) == millis

    @pytest.mark.parametrize(
        "text", ["", "5", "h", "-1h", "1 h", "1y", "0s", "1h ", "1H", "1e3s", "1..5h", "٣h", "0.4ms"]
    )
    def test_what_is_none_is_a_sentence(self, text: str) -> None:
        with pytest.raises(ValueError, match="is not a duration"):
            duration(text)

    @pytest.mark.parametrize(
        ("millis", "text"),
        [(0, "0s"), (14, "14ms"), (1_499, "1s"), (45_000, "45s"), (90_000, "1m 30s"), (4 * HOUR, "4h"),
         (4 * HOUR - 1_000, "3h 59m"), (36 * HOUR, "1d 12h"), (24 * HOUR + 60_000, "1d"), (14 * 24 * HOUR, "2w")],
    )  # fmt: skip
    def test_written_with_the_two_largest_units(self, millis: int, text: str) -> None:
        assert written(millis) == text


class TestTimes:
    def test_a_time_is_read_with_its_zone_and_written_in_utc(self) -> None:
        assert times.moment("2026-11-21T18:00:00Z") == times.moment("2026-11-21T19:00:00+01:00") == 1795284000000
        assert times.stamp(1795284000999) == "2026-11-21T18:00:00Z"
        assert times.stamp(PERMANENT) == "never"

    @pytest.mark.parametrize("text", ["", "tomorrow", "2026-11-21T18:00:00", "2026-13-01T00:00:00Z", "1795284000000"])
    def test_what_is_none_or_has_no_zone_is_a_sentence(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"\.$"):
            times.moment(text)

    def test_until(self) -> None:
        assert times.until(1795284000000, 1795284000000 - 4 * HOUR) == "until 2026-11-21 18:00:00 UTC (in 4h)"
        assert times.until(PERMANENT, 0) == "forever"
        assert times.until(PERMANENT - 1, 0).startswith(f"until {PERMANENT - 1} (in ")


class TestTable:
    ROWS = (("worker-1", "mark", "a b"), ("w", "evacuate", ""))

    def test_two_spaces_between_columns_and_a_dash_for_nothing(self) -> None:
        assert Table(("NODE", "ACTION", "REASON"), head=True, colour=False).lines(self.ROWS) == [
            "NODE      ACTION    REASON",
            "worker-1  mark      a b",
            "w         evacuate  -",
        ]

    def test_without_its_head(self) -> None:
        assert Table(("A", "B", "C"), head=False, colour=False).lines(self.ROWS[:1]) == ["worker-1  mark  a b"]

    def test_nothing_is_cut_off(self) -> None:
        (line,) = Table(("A", "B"), head=False, colour=False).lines([("x" * 300, "y" * 3000)])
        assert line == "x" * 300 + "  " + "y" * 3000

    def test_it_grows_and_never_becomes_narrower(self) -> None:
        table = Table(("A", "B"), head=True, colour=False)
        assert table.lines([("aaa", "1")]) == ["A    B", "aaa  1"]
        assert table.lines([("a", "2")]) == ["a    2"]

    def test_colours_change_nothing_but_colours(self) -> None:
        plain = Table(("NODE", "ACTION", "REASON"), head=True, colour=False).lines(self.ROWS)
        painted = Table(("NODE", "ACTION", "REASON"), head=True, colour=True).lines(self.ROWS)
        assert painted != plain
        for code in ("\x1b[0m", "\x1b[1m", "\x1b[31m", "\x1b[33m"):
            painted = [line.replace(code, "") for line in painted]
        assert painted == plain

    def test_wide_characters_take_two_columns(self) -> None:
        assert Table(("A", "B"), head=False, colour=False).lines([("機械", "1"), ("abc", "2")]) == [
            "機械  1",
            "abc   2",
        ]

    @pytest.mark.parametrize(
        ("text", "shown"),
        [("a\x1b[31mb", r"a\x1b[31mb"), ("a\nb\tc", r"a\nb\tc"), ("\x9b", r"\x9b"), ("a\u202eb", r"a\u202eb"),
         ("\u2028", r"\u2028"), ("\udc80", r"\udc80"), ("ünïcode 🐢", "ünïcode 🐢")],
    )  # fmt: skip
    def test_what_a_terminal_would_obey_is_shown_escaped(self, text: str, shown: str) -> None:
        assert visible(text) == shown
        assert Table(("A",), head=False, colour=True).lines([(text,)]) == [shown]


def present(cause: str = "disk", *, action: BlockAction = MARK, end: int = 10 * HOUR) -> BlockedNode:
    return BlockedNode(id="n", action=action, start=0, end=end, cause=cause)


def wish(cause: str = "disk", *, action: BlockAction = MARK, end: int = 10 * HOUR, slack: int = 0) -> Wish:
    return Wish(action=action, cause=cause, start=5, end=end, slack=slack)


class TestWish:
    @pytest.mark.parametrize(
        ("wanted", "there"),
        [
            (wish(), present()),
            (wish(end=HOUR), present()),
            (wish(), present("memory,disk", action=EVACUATE, end=PERMANENT)),
            (wish(end=10 * HOUR + 60_000, slack=60_000), present()),
        ],
    )
    def test_it_is_met_by_as_much_or_more(self, wanted: Wish, there: BlockedNode) -> None:
        assert wanted.met_by(there)

    @pytest.mark.parametrize(
        "wanted",
        [wish("memory"), wish(action=EVACUATE), wish(end=10 * HOUR + 1), wish(end=10 * HOUR + 60_001, slack=60_000),
         wish("memory", end=10 * HOUR + 1, slack=60_000)],
    )  # fmt: skip
    def test_it_is_not_met_by_less(self, wanted: Wish) -> None:
        assert not wanted.met_by(present())

    def test_those_that_are_so_already_are_not_asked_for_again(self) -> None:
        sent: list[list[str]] = []

        def send(nodes: list[BlockedNode]) -> str:
            sent.append([node.id for node in nodes])
            if "n" in sent[-1]:
                raise ConflictError("blocked", {"n": present()})
            return "done"

        come = fulfil(wish(), ["m", "n", "o"], send)
        assert (come.answer, dict(come.already)) == ("done", {"n": present()})
        assert sent == [["m", "n", "o"], ["m", "o"]]
        assert fulfil(wish(), ["n"], send).answer is None
        with pytest.raises(ConflictError):
            fulfil(wish("memory"), ["m", "n"], send)

    @pytest.mark.parametrize("cause", ["disk", "disk,memory", ",disk", ",", "x" * 1024 + ",y"])
    def test_as_it_is_merges_without_a_change(self, cause: str) -> None:
        there = present(cause)
        assert merge(there, as_it_is(there)) is there
        assert len(as_it_is(there).cause) <= 1024


class TestSpan:
    def test_a_length_has_slack_for_its_repeat(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("BLOCKLIST_DEFAULT_DURATION", "30s")
        assert span(1000, HOUR, None, False) == (1000 + HOUR, 60_000)
        assert span(1000, None, None, False) == (31_000, 3_000)

    def test_an_end_and_forever_have_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("BLOCKLIST_DEFAULT_DURATION", "forever")
        assert span(1000, None, 2000, False) == (2000, 0)
        assert span(1000, None, None, True) == span(1000, PERMANENT, None, False) == (PERMANENT, 0)
        assert span(1000, None, None, False) == (PERMANENT, 0)

    @pytest.mark.parametrize(
        ("length", "until", "forever"), [(HOUR, 2000, False), (HOUR, None, True), (None, 999, False)]
    )
    def test_one_of_them_and_not_in_the_past(self, length: int | None, until: int | None, forever: bool) -> None:
        with pytest.raises(typer.BadParameter):
            span(1000, length, until, forever)
