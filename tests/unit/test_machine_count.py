"""ReportedMachines: how many machines are reported, by whatever names."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from blocklist.model.names import ReportedMachines, normalize_name
from tests.unit.counting import count_calls

MACHINES = {"10.0.0.1": "n1", "10.0.0.2": "n2", "node-1": "n1"}
names = st.lists(st.sampled_from(["n1", "N1", "10.0.0.1", "node-1", "n2", "10.0.0.2", "n3", "10.0.0.3"]))


def machine_of(name: str) -> str:
    return MACHINES.get(normalize_name(name), normalize_name(name))


@given(names, names, names)
def test_all_names_of_a_machine_count_once(added: list[str], discarded: list[str], asked: list[str]) -> None:
    count, left = ReportedMachines(added, machine_of), list(map(normalize_name, added))
    for name in discarded:
        count.discard(name)
        if normalize_name(name) in left:
            left.remove(normalize_name(name))
    machines = set(map(machine_of, left))
    assert len(count) == len(machines)
    assert count.count_matching(asked) == len(machines & set(map(machine_of, asked)))


@given(names, st.lists(st.tuples(st.sampled_from(sorted(MACHINES)), st.booleans())))
def test_it_is_as_if_the_machines_had_always_been_known(added: list[str], steps: list[tuple[str, bool]]) -> None:
    known: dict[str, str] = {}

    def machine(name: str) -> str:
        return known.get(normalize_name(name), normalize_name(name))

    count = ReportedMachines(added, machine)
    for name, is_known in steps:
        known.pop(name, None)
        known |= {name: MACHINES[name]} if is_known else {}
        count.machines_changed({name})
    assert len(count) == len(ReportedMachines(added, machine))
    for name in added:
        count.discard(name)
    assert len(count) == 0


def test_a_short_and_a_full_name_are_one_machine() -> None:
    count = ReportedMachines(["n1", "n1.example.com"])
    assert (len(count), count.count_matching(["N1", "n2"])) == (1, 1)


def test_a_change_costs_no_more_with_many_names() -> None:
    count = ReportedMachines(f"n{number}" for number in range(10_000))

    def change() -> None:
        count.add("10.0.0.1")
        count.machines_changed({"10.0.0.1"})
        count.discard("10.0.0.1")

    assert count_calls(change) < 200
