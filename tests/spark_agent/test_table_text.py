"""A driver reads a whole table, or refuses the text: half a table would free hosts that are blocked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blocklist.model.node import MIN_TIMESTAMP, PERMANENT
from tests.length import longer
from tests.spark_agent.decisions import Decisions, table_text
from tests.spark_agent.model import Host, Requirements

LINE = f"n1\t{PERMANENT}\tmark\tN1\tdisk"
WHOLE = table_text(7, [LINE, f"n2\t{PERMANENT}\tevacuate\tn2\tcpu"])
MEGABYTE = 1_000_000


def covered(decisions: Decisions, now: int = 1) -> list[str]:
    return decisions.plan([Host(name=f"n{i}") for i in range(1, 5)], Requirements(), now).covered


def test_a_whole_table_is_in_force(decisions: Decisions) -> None:
    assert decisions.read_table(WHOLE) is None
    assert covered(decisions) == ["n1", "n2"]


def test_a_table_may_have_canaries(decisions: Decisions) -> None:
    lines = [f"n3\t{PERMANENT}\tcanary\tn3\tdisk", LINE, f"n2\t{PERMANENT}\tevacuate\tn2\tcpu"]
    assert decisions.read_table(table_text(7, lines)) is None
    hosts = [Host(name=f"n{i}", executors=(str(i),), usable=(str(i),)) for i in range(1, 5)]
    plan = decisions.plan(hosts, Requirements(), 1)
    assert (plan.covered, plan.canaries, plan.evacuated) == (["n3", "n1", "n2"], {"n3": {"3"}}, {"n2"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Line 1 of the table is not valid: the text ends here, before the end of a line."),
        ("\n", "Line 1 of the table is not valid: this is not the first line of a table."),
        ("<html>\n", "Line 1 of the table is not valid: this is not the first line of a table."),
        ("blocklist-table 3 7 0\n", "Line 1 of the table is not valid: its version is not 1: '3'."),
        ("blocklist-table 12 7 0\n", "Line 1 of the table is not valid: its version is not 1: '12'."),
        ("blocklist-table 1 7 0", "Line 1 of the table is not valid: the text ends here, before the end of a line."),
        ("blocklist-table 1 -7 0\n", "Line 1 of the table is not valid: the revision is not a number: '-7'."),
        ("blocklist-table 1 7 x\n", "Line 1 of the table is not valid: the number of lines is not a number: 'x'."),
        ("blocklist-table 1 7 0 \n", "Line 1 of the table is not valid: this is not the first line of a table."),
        ("blocklist-table 1 7 0\r\n", "Line 1 of the table is not valid: the number of lines is not a number: '0?'."),
        ("blocklist-table 1 7 999999999\n",
         "Line 1 of the table is not valid: the table has 999999999 lines, more than 50000."),
        (WHOLE[:-1], "Line 3 of the table is not valid: the text ends here, before the end of a line."),
        (WHOLE[:-5], "Line 3 of the table is not valid: the text ends here, before the end of a line."),
        (WHOLE + "\n", "The table has more than the 2 lines that its first line says."),
        (WHOLE + LINE + "\n", "The table has more than the 2 lines that its first line says."),
        (WHOLE.replace("7 2", "7 3"),
         "Line 4 of the table is not valid: the text ends here, before the end of a line."),
        (WHOLE.replace("7 2", "7 1"), "The table has more than the 1 lines that its first line says."),
        (table_text(7, [LINE, LINE]), "Line 3 of the table is not valid: the key is there twice: 'n1'."),
        (table_text(7, ["n1\t5\tmark\tN1"]),
         "Line 2 of the table is not valid: it does not have 5 fields, separated by tabs."),
        (table_text(7, ["n1\t5\tmark\tN1\ta\tb"]),
         "Line 2 of the table is not valid: it does not have 5 fields, separated by tabs."),
        (table_text(7, [""]), "Line 2 of the table is not valid: it does not have 5 fields, separated by tabs."),
        (table_text(7, ["n1\t5\tMARK\tN1\ta"]),
         "Line 2 of the table is not valid: the action is not canary, mark or evacuate: 'MARK'."),
        (table_text(7, ["n1\t\tmark\tN1\ta"]), "Line 2 of the table is not valid: the end is not an integer: ''."),
        (table_text(7, ["n1\t+5\tmark\tN1\ta"]), "Line 2 of the table is not valid: the end is not an integer: '+5'."),
        (table_text(7, ["n1\t\u0665\tmark\tN1\ta"]),
         "Line 2 of the table is not valid: the end is not an integer: '?'."),
        (table_text(7, [f"n1\t{PERMANENT + 1}\tmark\tN1\ta"]),
         f"Line 2 of the table is not valid: the end does not fit in 64 bits: {PERMANENT + 1}."),
        (table_text(7, ["n1\t5\tmark\t\ta"]), "Line 2 of the table is not valid: the id is not a node id: ''."),
        (table_text(7, ['n1\t5\tmark\t"\ta']), "Line 2 of the table is not valid: the id is not a node id: '\"'."),
        (table_text(7, ["\t5\tmark\tN1\ta"]),
         "Line 2 of the table is not valid: the key does not have 1 to 255 characters: ''."),
        (table_text(7, ["n1\0\t5\tmark\tN1\ta"]),
         "Line 2 of the table is not valid: the key has a control character: 'n1?'."),
        (table_text(7, ["n1\t5\tmark\tN1\ta\0"]),
         "Line 2 of the table is not valid: the cause has a control character: 'a?'."),
        (table_text(7, ["n1\t5\tmark\tN1\ta\r"]),
         "Line 2 of the table is not valid: the cause has a control character: 'a?'."),
        (table_text(7, ["x" * 256 + "\t5\tmark\tN1\ta"]),
         f"Line 2 of the table is not valid: the key does not have 1 to 255 characters: '{'x' * 64}...'."),
    ],
)  # fmt: skip
def test_any_other_text_is_refused_and_the_table_before_stays(decisions: Decisions, text: str, message: str) -> None:
    assert decisions.read_table(WHOLE) is None
    assert decisions.read_table(text) == message
    assert covered(decisions) == ["n1", "n2"]


@settings(max_examples=longer(300))
@given(st.integers(0, len(WHOLE) - 1), st.characters(codec="utf-8"))
def test_a_table_with_a_character_too_many_or_cut_short_is_never_half_in_force(
    decisions: Decisions, place: int, extra: str
) -> None:
    assert decisions.read_table(WHOLE[:place]) is not None
    if decisions.read_table(WHOLE[:place] + extra + WHOLE[place:]) is None:
        plan = decisions.plan([Host(name="n3")], Requirements(), 1)
        assert not plan.matched


@settings(max_examples=longer(300))
@given(st.binary(max_size=200))
def test_no_bytes_stop_the_reader(decisions: Decisions, noise: bytes) -> None:
    assert decisions.read_table(noise) is not None
    assert decisions.read_table(b"blocklist-table 1 7 2\n" + noise) is not None


@pytest.mark.parametrize(
    ("end", "now", "expected"),
    [
        (PERMANENT, PERMANENT - 1, ["n1"]),
        (PERMANENT, PERMANENT, []),
        (5, 4, ["n1"]),
        (5, 5, []),
        (0, 0, []),
        (-1, 0, []),
        (-1, -2, ["n1"]),
        (MIN_TIMESTAMP, MIN_TIMESTAMP, []),
    ],
)
def test_a_block_is_over_at_its_end(decisions: Decisions, end: int, now: int, expected: list[str]) -> None:
    assert decisions.read_table(table_text(1, [f"n1\t{end}\tmark\tn1\tx"])) is None
    assert covered(decisions, now) == expected


def test_ids_without_a_name_and_addresses_with_a_zone_do_not_stop_the_others(decisions: Decisions) -> None:
    lines = ["...\t9\tmark\t...\tx", "fe80::1%ETH0\t9\tmark\tn2\tx", "n1\t9\tmark\tn1\tx"]
    assert decisions.read_table(table_text(1, lines)) is None
    assert covered(decisions) == ["n1"]


@pytest.fixture(scope="module")
def small(decision_classes: str) -> Iterator[Decisions]:
    with Decisions(decision_classes, heap_megabytes=48) as started:
        yield started


@pytest.mark.parametrize("kind", ["one line", "NULs", "head", "no end", "many lines", "long causes"])
def test_a_large_text_is_refused_within_48_megabytes(small: Decisions, kind: str) -> None:
    head = b"blocklist-table 1 7 50000\n"
    texts = {
        "one line": head + b"x" * (50 * MEGABYTE),
        "NULs": b"\0" * (50 * MEGABYTE),
        "head": b"blocklist-table 1 7 " + b"1" * (50 * MEGABYTE),
        "no end": head + b"a\t1\tmark\tn\t" + b"x" * (50 * MEGABYTE),
        "many lines": head + b"".join(b"%d\t1\tmark\tn%d\tx\n" % (i, i) for i in range(2 * MEGABYTE)),
        "long causes": head + b"".join(b"%d\t1\tmark\tn\t%s\n" % (i, b"x" * 39000) for i in range(1300)),
    }
    assert small.read_table(WHOLE) is None
    assert small.read_table(texts[kind]) is not None
    assert covered(small) == ["n1", "n2"]


def test_the_largest_table_replaces_another_within_48_megabytes(small: Decisions) -> None:
    lines = [f"{i:030}\t{PERMANENT}\tmark\t{i}\t{i:015}" for i in range(50_000)]
    for revision in (1, 2, 3):
        assert small.read_table(table_text(revision, lines)) is None


@settings(max_examples=longer(200))
@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=300))
def test_a_cause_is_text_of_any_kind(decisions: Decisions, cause: str) -> None:
    """It is shortened without half a character, which no report may have."""
    assert decisions.read_table(table_text(1, [f"n1\t9\tmark\tn1\t{cause}"])) is None
    plan = decisions.plan([Host(name="n1")], Requirements(), 1)
    shown = plan.matched["n1"][3]
    assert shown == cause or (shown[-1] == "…" and cause.startswith(shown[:-1]))
    assert all(len(reason) <= 300 and reason.encode() for reason in plan.refused.values())
