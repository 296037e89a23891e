"""Confirmed nodes: those that listeners of two principals name."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocklist.model.confirmed_nodes import ConfirmedNodes
from blocklist.model.host_matching import host_key

NODES = ["n1", "N1.example.com", "n2", "10.0.0.1", "::1", "[0::1]"]


def confirmed(nodes: ConfirmedNodes) -> set[str]:
    return {host_key(name) for name in NODES if nodes.is_confirmed(name)}


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
    assert (len(nodes), confirmed(nodes)) == (2, {"n1", "n2"})


@pytest.mark.parametrize(("one", "other"), [("n1", "N1.example.com"), ("n1.a", "n1.b"), ("::1", "[0::1]")])
def test_spellings_of_a_node_confirm_each_other(one: str, other: str) -> None:
    nodes = ConfirmedNodes(authenticated=True)
    for principal, name in (("a", one), ("b", other)):
        nodes.add_listener(principal, principal)
        nodes.set_nodes(principal, [name])
    assert (len(nodes), nodes.is_confirmed(one), nodes.is_confirmed(other)) == (1, True, True)


def test_addresses_are_not_shortened() -> None:
    assert (host_key("10.0.0.1"), host_key("10.0.0.2")) == ("10.0.0.1", "10.0.0.2")


LISTENERS = st.sampled_from(["x", "y", "z"])
STEPS = st.one_of(
    st.tuples(st.just("add"), LISTENERS, st.sampled_from([None, "p", "q"])),
    st.tuples(st.just("set"), LISTENERS, st.sets(st.sampled_from(NODES))),
    st.tuples(st.just("remove"), LISTENERS, st.none()),
)


@given(st.lists(STEPS), st.booleans())
def test_it_equals_a_count_from_scratch(steps: list[tuple[str, str, object]], authenticated: bool) -> None:
    nodes = ConfirmedNodes(authenticated=authenticated)
    principals: dict[str, object] = {}
    named: dict[str, set[str]] = {}
    for step, listener, value in steps:
        if step == "add":
            assert value is None or isinstance(value, str)
            nodes.add_listener(listener, value)
            principals[listener] = value if authenticated else listener
        elif step == "remove":
            nodes.remove_listener(listener)
            principals.pop(listener, None)
            named.pop(listener, None)
        elif listener in principals:  # A report is from a registered listener.
            assert isinstance(value, set)
            nodes.set_nodes(listener, value)
            named[listener] = {host_key(name) for name in value}
    naming: defaultdict[str, set[object]] = defaultdict(set)
    for listener, keys in named.items():
        for key in keys if principals[listener] is not None else ():
            naming[key].add(principals[listener])
    expected = {key for key, by in naming.items() if len(by) >= (2 if authenticated else 1)}
    assert (len(nodes), confirmed(nodes)) == (len(expected), expected)
    assert set(nodes._naming) == set(naming)
