"""Selections: which known nodes a selector selects, and what is said about labels that no node has."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocklist.model.errors import InvalidError, NotFoundError, UnknownNodeError
from blocklist.model.inventory import label_hints, select_nodes, selects
from blocklist.model.selector import parse_selector
from tests.unit.labelled_nodes import labelled_nodes

NODES: Final = labelled_nodes(
    {
        "b1": {"rack": "r1", "pool": "gpu"},
        "a1": {"rack": "r1"},
        "a2.example.com": {"rack": "r2"},
        "bare": {},
    }
)


def selected(selector: str) -> list[str]:
    return list(select_nodes(parse_selector(selector), NODES).nodes)


def test_the_selected_nodes_are_sorted() -> None:
    assert selected("rack=r1") == ["a1", "b1"]
    assert selected("rack!=r1") == ["a2.example.com", "bare"]
    assert selected("") == ["a1", "a2.example.com", "b1", "bare"]


def test_the_nodes_are_changed_under_their_ids_as_they_are_spelt() -> None:
    assert select_nodes(parse_selector("rack=r1"), NODES).require_nodes() == ["A1", "B1"]


def test_nothing_selected_is_an_error_that_says_so() -> None:
    with pytest.raises(NotFoundError) as caught:
        select_nodes(parse_selector("rak=r1"), NODES).require_nodes()
    assert caught.value.detail == (
        "The selector rak=r1 selects no node. Nothing was changed. No node has the label rak; did you mean rack?"
    )
    with pytest.raises(NotFoundError, match=r"^The selector rack=r9 selects no node\. Nothing was changed\.$"):
        select_nodes(parse_selector("rack=r9"), NODES).require_nodes()


def test_the_number_of_nodes_that_are_changed_at_once_is_limited() -> None:
    selection = select_nodes(parse_selector("rack"), NODES)
    assert len(selection.require_nodes(3)) == 3
    with pytest.raises(InvalidError, match="The selector rack selects 3 nodes; at most 2 can be changed at once"):
        selection.require_nodes(2)


def test_a_label_that_no_node_has_is_named_with_a_similar_one() -> None:
    assert label_hints(parse_selector("rack,pool!=cpu"), NODES) == []
    assert label_hints(parse_selector("pol!=cpu,colour"), NODES) == [
        "No node has the label pol; did you mean pool?",
        "No node has the label colour.",
    ]
    select_nodes(parse_selector("rack"), NODES).require_known_labels()
    with pytest.raises(UnknownNodeError, match=r"No node has the label pol; did you mean pool\?"):
        select_nodes(parse_selector("pol!=cpu"), NODES).require_known_labels()


def test_an_id_is_selected_by_the_labels_of_the_machine_that_it_means() -> None:
    assert selects(parse_selector("rack=r2"), NODES, "A2")
    assert not selects(parse_selector("rack!=r2"), NODES, "A2")


def test_an_id_that_nobody_knows_has_no_labels() -> None:
    assert selects(parse_selector("!rack,rack!=r1"), NODES, "gone")
    assert not selects(parse_selector("rack"), NODES, "gone")


@given(st.sampled_from(["rack=r1", "rack!=r1", "!pool", "pool in (gpu,cpu)", "rack,pool", "nothing"]))
def test_a_known_node_is_selected_under_its_id_too(text: str) -> None:
    selector = parse_selector(text)
    assert selected(text) == sorted(node for node in NODES if selects(selector, NODES, node))
