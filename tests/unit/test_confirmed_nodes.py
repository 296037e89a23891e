"""Confirmed nodes: those that listeners of two principals name."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocklist.model.names import ConfirmedNodes, MachineSet, first_label, normalize_name, same_machine

NODES = ["n1", "N1.example.com", "n1.b", "n2", "n2.a", "n2.b", "10.0.0.1", "::1", "[0::1]"]


def confirmed(nodes: ConfirmedNodes) -> set[str]:
    return {name for name in NODES if nodes.confirmed_name(name) is not None}


def test_one_principal_confirms_nothing() -> None:
    nodes = ConfirmedNodes(authenticated=True)
    for number in range(5):
        nodes.add_listener(f"job-{number}", "token")
        nodes.set_nodes(f"job-{number}", NODES)
    assert (len(nodes), confirmed(nodes)) == (0, set())


def test_an_unknown_principal_confirms_nothing() -> None:
    nodes = ConfirmedNodes(authenticated=True)
    for number in range(5):
        nodes.add_listener(f"job-{number}", None)
        nodes.set_nodes(f"job-{number}", NODES)
    assert (len(nodes), confirmed(nodes)) == (0, set())


def test_without_authentication_one_listener_is_enough() -> None:
    nodes = ConfirmedNodes(authenticated=False)
    nodes.add_listener("job", None)
    nodes.set_nodes("job", ["n1", "n2"])
    assert (len(nodes), nodes.confirmed_name("N2"), nodes.confirmed_name("n3")) == (2, "n2", None)


def test_a_whole_inventory_is_not_looked_up_while_no_listener_names_anything() -> None:
    asked: list[str] = []

    def aliases(name: str) -> tuple[str, ...]:
        asked.append(name)
        return ()

    nodes = ConfirmedNodes(authenticated=True, aliases=aliases)
    nodes.machines_changed([f"n{number}" for number in range(100)])
    assert not asked


def named_by_two(one: list[str], other: list[str]) -> ConfirmedNodes:
    nodes = ConfirmedNodes(authenticated=True)
    for principal, names in (("a", one), ("b", other)):
        nodes.add_listener(principal, principal)
        nodes.set_nodes(principal, names)
    return nodes


@pytest.mark.parametrize(("one", "other"), [("n1", "N1.example.com"), ("::1", "[0::1]"), ("n1.a.", "N1.a")])
def test_names_of_a_machine_confirm_each_other(one: str, other: str) -> None:
    nodes = named_by_two([one], [other])
    assert len(nodes) == 1
    assert None not in (nodes.confirmed_name(one), nodes.confirmed_name(other))


@pytest.mark.parametrize(("one", "other"), [("n1.a", "n1.b"), ("10.0.0.1", "10.0.0.2"), ("10", "10.0.0.1")])
def test_names_of_two_machines_do_not(one: str, other: str) -> None:
    nodes = named_by_two([one], [other])
    assert (len(nodes), nodes.confirmed_name(one), nodes.confirmed_name(other)) == (0, None, None)


def test_one_token_confirms_no_more_nodes_by_inventing_full_names_of_one() -> None:
    invented = [f"n1.x{number}" for number in range(100)]
    nodes = named_by_two(["n1", "n2"], ["n2", *invented])
    assert len(nodes) == 2
    assert {nodes.confirmed_name(name) for name in invented} == {"n1"}


LISTENERS = st.sampled_from(["x", "y", "z"])
Step = tuple[str, str, object]
STEPS = st.one_of(
    st.tuples(st.just("add"), LISTENERS, st.sampled_from([None, "p", "q"])),
    st.tuples(st.just("set"), LISTENERS, st.sets(st.sampled_from(NODES))),
    st.tuples(st.just("remove"), LISTENERS, st.none()),
)


def _apply(nodes: ConfirmedNodes, step: Step, principals: dict[str, str | None], named: dict[str, set[str]]) -> None:
    """Perform a step, and record what the listeners name."""
    action, listener, value = step
    if action == "add":
        assert value is None or isinstance(value, str)
        nodes.add_listener(listener, value)
        principals[listener] = value
    elif action == "remove":
        nodes.remove_listener(listener)
        principals.pop(listener, None)
        named.pop(listener, None)
    elif listener in principals:  # A report is from a registered listener.
        assert isinstance(value, set)
        nodes.set_nodes(listener, value)
        named[listener] = {normalize_name(name) for name in value}


@given(st.lists(STEPS), st.booleans())
def test_it_equals_a_count_from_scratch(steps: list[Step], authenticated: bool) -> None:
    nodes = ConfirmedNodes(authenticated=authenticated)
    principals: dict[str, str | None] = {}
    named: dict[str, set[str]] = {}
    for step in steps:
        _apply(nodes, step, principals, named)
    if not authenticated:
        principals = {listener: listener for listener in principals}
    naming: defaultdict[str, set[object]] = defaultdict(set)
    for listener, names in named.items():
        for name in names if principals[listener] is not None else ():
            naming[name].add(principals[listener])
    required = 2 if authenticated else 1
    agreed = {name for name, by in naming.items() if len(by) >= required}
    by_short_name = {
        name
        for name, by in naming.items()
        if len(by.union(*(more for other, more in naming.items() if same_machine(name, other)))) >= required
        and "." not in name
    }
    expected = agreed | by_short_name
    assert confirmed(nodes) == {name for name in NODES if any(same_machine(name, other) for other in expected)}
    assert len(nodes) == len(MachineSet(expected))
    assert set(naming) <= set(nodes._naming._by_key) <= {*naming, *(f"{first_label(name)}." for name in naming)}


MACHINES = st.dictionaries(st.sampled_from(list(map(normalize_name, NODES))), st.sampled_from(["n1", "n2", "n9"]))


@given(st.lists(st.one_of(STEPS, MACHINES)))
def test_names_that_mean_another_machine_count_as_if_they_had_always_done_so(
    steps: list[Step | dict[str, str]],
) -> None:
    machines: dict[str, str] = {}

    def machine_of(name: str) -> str:
        return machines.get(normalize_name(name), normalize_name(name))

    nodes = ConfirmedNodes(authenticated=True, machine_of=machine_of)
    principals: dict[str, str | None] = {}
    named: dict[str, set[str]] = {}
    for step in steps:
        if isinstance(step, dict):
            changed = {name for name in {**machines, **step} if machines.get(name) != step.get(name)}
            machines = step
            nodes.machines_changed(changed)
        else:
            _apply(nodes, step, principals, named)
    fresh = ConfirmedNodes(authenticated=True, machine_of=machine_of)
    for listener, names in named.items():
        fresh.add_listener(listener, principals[listener])
        fresh.set_nodes(listener, names)
    assert (confirmed(nodes), len(nodes)) == (confirmed(fresh), len(fresh))
    assert nodes._naming._by_key.keys() == fresh._naming._by_key.keys()
    assert nodes._machines == fresh._machines


def test_all_names_of_a_machine_are_confirmed_by_one_name() -> None:
    machines = dict.fromkeys(["n7", "10.0.0.7", "worker-7.rack2"], "n7")
    nodes = ConfirmedNodes(authenticated=True, machine_of=lambda name: machines.get(name, name))
    for principal, names in (("a", ["10.0.0.7", "n8"]), ("b", ["worker-7.rack2"])):
        nodes.add_listener(principal, principal)
        nodes.set_nodes(principal, names)
    assert len(nodes) == 1
    assert {nodes.confirmed_name(name) for name in machines} == {"n7"}
    del machines["10.0.0.7"]
    nodes.machines_changed(["10.0.0.7"])
    assert (len(nodes), nodes.confirmed_name("n7"), nodes._machines) == (0, None, {"worker-7.rack2": "n7"})


class TestKnown:
    """The nodes that count for limits."""

    def test_what_one_job_invents_does_not_count(self) -> None:
        nodes = ConfirmedNodes(authenticated=True)
        for listener in ("job-1", "job-2"):
            nodes.add_listener(listener, "one token")
            nodes.set_nodes(listener, (f"invented-{number}" for number in range(400)))
        assert len(nodes.known) == 0
        nodes.add_listener("job-3", "another token")
        nodes.set_nodes("job-3", ["invented-1"])
        assert (len(nodes.known), nodes.known.count_matching(["INVENTED-1", "invented-2"])) == (1, 1)
        nodes.remove_listener("job-3")
        assert len(nodes.known) == 0

    def test_a_trusted_source_is_believed_alone(self) -> None:
        nodes = ConfirmedNodes(authenticated=True)
        nodes.set_trusted("yarn", ["n1", "n2"])
        nodes.set_trusted("", ["n2", "n3.example.com"])
        assert len(nodes.known) == 3
        for listener in ("job-1", "job-2"):
            nodes.add_listener(listener, listener)
            nodes.set_nodes(listener, ["n2", "n3", "n4"])
        assert len(nodes.known) == 4
        nodes.set_trusted("yarn", ())
        nodes.set_trusted("", ())
        assert len(nodes.known) == 3
        nodes.remove_listener("job-1")
        assert len(nodes.known) == 0

    def test_without_authentication_only_trusted_sources_count(self) -> None:
        """Everybody is one: where tasks run is no statement about all nodes."""
        nodes = ConfirmedNodes(authenticated=False)
        nodes.add_listener("job", None)
        nodes.set_nodes("job", ["n1"])
        assert len(nodes.known) == 0
