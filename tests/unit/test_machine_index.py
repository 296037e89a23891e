"""MachineSet: which machines a changing set of names means."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from blocklist.model.names import MachineSet, same_machine
from tests.unit.counting import count_calls

names = st.sampled_from(
    ["n1", "N1", "n1.a", "N1.A", "n1.b", "n1.c", "n2", "n2.a", "10.0.0.7", "::ffff:a00:7", "10", "n1."]
)
steps = st.lists(st.tuples(st.booleans(), names))


def changed(steps: list[tuple[bool, str]]) -> tuple[MachineSet, set[str]]:
    """An index after these steps (add or discard), and the names that it must have: in normal form."""
    index, uses = MachineSet(), Counter[str]()
    for adds, name in steps:
        (index.add if adds else index.discard)(name)
        normal = {"n1.": "n1", "::ffff:a00:7": "10.0.0.7"}.get(name, name.lower())
        uses[normal] = max(0, uses[normal] + (1 if adds else -1))
    return index, {name for name, number in uses.items() if number}


def machines(names: set[str]) -> set[str]:
    """All but each short name of which there is a full one."""
    return {name for name in names if "." in name or not any(same_machine(name, other) for other in names - {name})}


@given(steps)
def test_a_name_stays_until_each_source_has_discarded_it_and_a_short_name_is_the_machine_of_a_full_one(
    steps: list[tuple[bool, str]],
) -> None:
    index, expected = changed(steps)
    assert set(index) == expected
    assert len(index) == len(machines(expected))


@given(steps, st.lists(names), names)
def test_each_machine_that_some_of_several_names_mean_counts_once(
    steps: list[tuple[bool, str]], others: list[str], name: str
) -> None:
    index, expected = changed(steps)
    meant = {machine for machine in machines(expected) if any(same_machine(machine, other) for other in others)}
    assert index.count_matching(others) == len(meant)
    assert set(index.matching(name)) == {other for other in expected if same_machine(name, other)}


def test_a_short_name_of_thousands_of_full_ones_costs_no_more_than_another() -> None:
    index = MachineSet(f"n1.x{number}" for number in range(10_000))

    def change() -> None:
        index.add("n1")
        index.discard("n1")
        assert index.count_matching(["n1", "n1.x1", "n2"]) == 10_000

    assert count_calls(change) < 200
