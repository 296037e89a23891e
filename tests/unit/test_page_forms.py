"""Formats of times and numbers on the page, and parsing of its forms."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.page.forms import FormError, form_owner, initial_form, parse_block_form
from app.page.shared import ago, count, duration, left, rfc3339, short, utc
from blocklist.model.errors import InvalidError
from blocklist.model.node import MIN_TIMESTAMP, PERMANENT, BlockAction, BlockedNode

NOW = 1_795_276_800_000
HOUR = 3_600_000
EMPTY = initial_form("2h")
PRESENT = BlockedNode(id="n1", action=BlockAction.MARK_BLOCKED, start=NOW - 1, end=NOW + 60_000, cause=",a, b")


@pytest.mark.parametrize(
    ("millis", "text"),
    [
        (-5, "0 s"),
        (499, "0 s"),
        (59_400, "59 s"),
        (59_500, "1 min"),
        (61_000, "1 min 1 s"),
        (3_600_000, "1 h"),
        (7_199_000, "1 h 59 min"),
        (7_199_999, "2 h"),
        (90_000_000, "1 d 1 h"),
        (86_400_000_000, "1,000 d"),
    ],
)
def test_a_duration_has_its_two_largest_units(millis: int, text: str) -> None:
    assert duration(millis) == text


def test_times_are_in_utc_and_may_be_out_of_range() -> None:
    assert utc(NOW) == "2026-11-21 16:00:00"
    assert rfc3339(NOW) == "2026-11-21T16:00:00Z"
    assert short(NOW) == "21 Nov 16:00"
    assert (utc(PERMANENT), rfc3339(PERMANENT)) == ("permanent", "")
    assert {utc(PERMANENT - 1), utc(MIN_TIMESTAMP)} == {"out of range"}
    assert (left(NOW + 1000, NOW), left(PERMANENT, NOW), ago(NOW - 60_000, NOW)) == (
        "1 s left",
        "permanent",
        "1 min ago",
    )
    assert (count(1, "node"), count(0, "node"), count(2000, "node")) == ("1 node", "0 nodes", "2,000 nodes")


def test_a_form_that_does_not_say_whose_claims_to_remove_frees_no_node() -> None:
    assert form_owner({}, "anna") is None
    assert form_owner({"only": "own"}, "anna") == "anna"
    for unknown in ("", "Own", "bob"):
        with pytest.raises(InvalidError, match="Nothing was changed"):
            form_owner({"only": unknown}, "anna")


def test_a_form_is_read() -> None:
    form = {**EMPTY, "nodes": " n1,n2;\r\nn1 ", "cause": "  Fan\r\nbroken ", "for": "1h 30m", "action": "evacuate"}
    parsed = parse_block_form(form, NOW)
    assert parsed.nodes == ("n1", "n2")
    assert parsed.cause == "Fan broken"
    assert parsed.end == NOW + 5_400_000
    assert parsed.action is BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS


@pytest.mark.parametrize(
    ("typed", "nodes"),
    [
        ("a", ["a"]),
        ("a, b ,c,\n,d;a", ["a", "b", "c", "d"]),
        ("w-[09-11] r[1-2]n[a,b]", ["w-09", "w-10", "w-11", "r1na", "r1nb", "r2na", "r2nb"]),
        ("::1 10.0.0.1", ["::1", "10.0.0.1"]),
        (" , ", None),
        ("a b/c", None),
        ("w-[1-2000]", None),
    ],
)
def test_nodes_are_written_as_for_the_command(typed: str, nodes: list[str] | None) -> None:
    form = {**EMPTY, "nodes": typed, "cause": "x"}
    if nodes is not None:
        assert list(parse_block_form(form, NOW).nodes) == nodes
        return
    with pytest.raises(FormError) as caught:
        parse_block_form(form, NOW)
    assert list(caught.value.errors) == ["nodes"]


@pytest.mark.parametrize(
    ("ends", "end"),
    [
        ({"ends": "for", "for": "7d"}, NOW + 7 * 86_400_000),
        ({"ends": "until", "until": "2026-11-21T18:00"}, NOW + 7_200_000),
        ({"ends": "until", "until": "2026-11-21 18:00:30"}, NOW + 7_230_000),
        ({"ends": "until", "until": "2026-11-21T18:00:00+02:00"}, None),
        ({"ends": "until", "until": "tomorrow"}, None),
        ({"ends": "never"}, PERMANENT),
        ({"ends": "for", "for": "2h", "until": "2026-11-21T18:00"}, None),
        ({"ends": "never", "until": "2026-11-21T18:00"}, None),
        ({"ends": "same"}, None),
        ({"ends": "for", "for": ""}, None),
        ({"ends": "for", "for": "-2h"}, None),
        ({"ends": "for", "for": "9" * 400 + "h"}, None),
        ({"ends": "for", "for": "99999999h"}, NOW + 99_999_999 * 3_600_000),
        ({"ends": ""}, None),
    ],
)
def test_when_it_ends(ends: dict[str, str], end: int | None) -> None:
    """A duration, a time in UTC, or never; anything else is an error, also a second end that is not chosen."""
    form = {**EMPTY, "nodes": "n1", "cause": "x", **ends}
    if end is not None:
        assert parse_block_form(form, NOW).end == end
        return
    with pytest.raises(FormError) as caught:
        parse_block_form(form, NOW)
    assert list(caught.value.errors) == ["ends"]


def test_two_names_of_one_machine_are_an_error_of_the_field() -> None:
    with pytest.raises(FormError) as caught:
        parse_block_form({**EMPTY, "nodes": "n1 N1.example.com", "cause": "x"}, NOW)
    assert list(caught.value.errors) == ["nodes"]


def test_all_errors_are_reported_at_once() -> None:
    with pytest.raises(FormError) as caught:
        parse_block_form({"nodes": "a/b", "cause": "\x00", "ends": "x"}, NOW)
    assert list(caught.value.errors) == ["nodes", "action", "cause", "ends"]


def end_of(current: BlockedNode, **form: str) -> int:
    return parse_block_form({"nodes": "n1", "action": "mark", **form}, NOW, current).end


class TestExtending:
    def test_fields_left_out_keep_the_values_of_the_current_block(self) -> None:
        """Only a part of the cause is sent again, so that the merge does not change it."""
        parsed = parse_block_form({"nodes": "n1", "action": "evacuate", "cause": " ", "ends": "same"}, NOW, PRESENT)
        assert (parsed.cause, parsed.end) == ("a", PRESENT.end)

    def test_a_block_is_extended_from_its_end(self) -> None:
        assert end_of(PRESENT, ends="by", by="1h") == PRESENT.end + HOUR
        assert end_of(PRESENT, ends="until", until="2026-11-21T18:00") == NOW + 2 * HOUR
        assert end_of(PRESENT, ends="never") == PERMANENT

    @pytest.mark.parametrize(
        "form",
        [
            {"ends": "until", "until": "2026-11-21T16:00:30"},
            {"ends": "same"},
            {"ends": "same", "cause": "a"},
            {"ends": "for", "for": "9h"},
            {"ends": "by", "by": "-1h"},
        ],
    )
    def test_it_never_ends_earlier_and_something_changes(self, form: dict[str, str]) -> None:
        with pytest.raises(FormError) as caught:
            end_of(PRESENT, **form)
        assert list(caught.value.errors) == ["ends"]

    def test_a_permanent_block_can_only_change_its_action_or_cause(self) -> None:
        permanent = replace(PRESENT, end=PERMANENT)
        assert end_of(permanent, ends="same", cause="c") == PERMANENT
        for form in ({"ends": "by", "by": "1h"}, {"ends": "until", "until": "2026-11-21T18:00"}, {"ends": "never"}):
            with pytest.raises(FormError):
                end_of(permanent, **form)

    def test_confirming_twice_extends_once(self) -> None:
        """The confirmation carries the end that the preview showed."""
        form = {"ends": "by", "by": "1h", "end": str(PRESENT.end + HOUR), "confirmed": "yes"}
        extended = replace(PRESENT, end=end_of(PRESENT, **form))
        assert extended.end == PRESENT.end + HOUR
        assert end_of(extended, **form) == extended.end
        with pytest.raises(FormError):
            end_of(replace(extended, end=extended.end + 1), **form)


@pytest.mark.parametrize(
    ("default", "current", "ends", "duration"),
    [
        ("4h", None, "for", "4h"),
        ("forever", None, "never", "4h"),
        ("90m", PRESENT, "by", "90m"),
        ("forever", PRESENT, "never", "4h"),
        ("4h", replace(PRESENT, end=PERMANENT), "same", "4h"),
    ],
)
def test_a_form_begins_with_the_default_duration(
    default: str, current: BlockedNode | None, ends: str, duration: str
) -> None:
    form = initial_form(default, current)
    assert (form["ends"], form["for"], form["by"]) == (ends, duration, duration)
