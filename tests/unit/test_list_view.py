"""The list shows the TaskManagers on each node, whatever it is known under, also after that has changed."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from app.engine.list_view import MAX_SELECTIONS, LastChanges, ListView, SelectedLists
from blocklist.model.changes import Snapshot
from blocklist.model.draft import BlocklistTracker
from blocklist.model.inventory import Inventory
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode
from blocklist.model.reported_node import NodeSource, ReportedNode, SourceKind
from blocklist.model.selector import Selector, parse_selector
from tests.unit.counting import count_calls

MANAGER = NodeSource(kind=SourceKind.MANAGER, name="yarn")
NAMES = ("n1", "n1.a.example", "n1.b.example", "10.0.0.1", "n2")


def list_view(inventory: Inventory, *blocked: str) -> ListView:
    nodes = {
        each: BlockedNode(id=each, action=BlockAction.MARK_BLOCKED, start=0, end=PERMANENT, cause="disk")
        for each in blocked
    }
    tracker = BlocklistTracker(Snapshot(revision=1, history="0000000a", nodes=nodes), inventory.aliases)
    return ListView(tracker, lambda: 0, lambda: None)


def shown(view: ListView) -> dict[str, list[str]]:
    return {node_id: node["taskManagers"] for node_id, node in json.loads(view.current_list().body).items()}


def describe(view: ListView, inventory: Inventory, nodes: list[ReportedNode | str]) -> None:
    inventory.stage_nodes(MANAGER, nodes)
    view.task_managers_moved(inventory.apply_staged())


def test_an_address_that_becomes_ambiguous_shows_no_task_managers_any_more() -> None:
    inventory = Inventory()
    view = list_view(inventory, "n1")
    view.task_managers_moved(view.task_managers.set_for_listener("jm", None, {"tm": "10.0.0.1"}, 0))
    first = ReportedNode(id="n1", addresses=("10.0.0.1",))
    describe(view, inventory, [first])
    assert shown(view) == {"n1": ["tm"]}
    describe(view, inventory, [first, ReportedNode(id="n2", addresses=("10.0.0.1",))])
    assert shown(view) == {"n1": []}
    describe(view, inventory, [first])
    assert shown(view) == {"n1": ["tm"]}


described = st.lists(
    st.builds(ReportedNode, id=st.sampled_from(NAMES[:3] + NAMES[4:]), addresses=st.sampled_from([(), ("10.0.0.1",)])),
    max_size=4,
    unique_by=lambda node: node.id,
)


@given(
    blocked=st.sets(st.sampled_from(NAMES), min_size=1),
    hosts=st.lists(st.sampled_from(NAMES), min_size=1, max_size=3),
    reports=st.lists(described, min_size=1, max_size=4),
)
def test_whatever_is_known_of_machines_the_list_is_the_one_that_is_rendered_anew(
    blocked: set[str], hosts: list[str], reports: list[list[ReportedNode]]
) -> None:
    inventory = Inventory()
    view = list_view(inventory, *blocked)
    running = {f"tm-{number}": host for number, host in enumerate(hosts)}
    view.task_managers_moved(view.task_managers.set_for_listener("jm", None, running, 0))
    shown(view)
    for report in reports:
        describe(view, inventory, list(report))
        assert shown(view) == {node_id: view.task_managers.on_node(node_id) for node_id in blocked}


def test_a_selection_is_rendered_once_for_all_who_ask_for_it() -> None:
    """1,500 requests that wait for the same selection took 5 to 19 s at each change."""
    inventory = Inventory()
    view = list_view(inventory, *(f"node-{number}" for number in range(200)))
    lists = SelectedLists(view, inventory, LastChanges({}))
    for selector, details in ((Selector(), True), (parse_selector("!rack"), False), (parse_selector("!rack"), True)):

        def ask(times: int, selector: Selector = selector, details: bool = details) -> None:
            assert len({id(lists.get(selector, details=details)) for _ in range(times)}) == 1

        assert count_calls(lambda: ask(1)) > 200
        assert count_calls(lambda: ask(100)) < 100 * 20


def test_a_selection_is_rendered_again_when_the_list_or_a_label_changes() -> None:
    inventory = Inventory()
    view = list_view(inventory, "n1", "n2")
    lists = SelectedLists(view, inventory, LastChanges({}))

    def selected() -> list[str]:
        return list(json.loads(lists.get(parse_selector("!rack"), details=True).body))

    assert selected() == ["n1", "n2"]
    inventory.stage_nodes(MANAGER, [ReportedNode(id="n1", labels={"rack": "r1"})])
    inventory.apply_staged()
    assert selected() == ["n2"]
    view.tracker.reset(Snapshot(revision=2, history="0000000a", nodes={}))
    view.reset()
    assert selected() == []


def test_different_selections_are_bounded() -> None:
    view = list_view(inventory := Inventory(), "n1")
    lists = SelectedLists(view, inventory, LastChanges({}))
    for number in range(200):
        lists.get(parse_selector(f"!x{number}"), details=False)
    assert len(lists._lists) <= MAX_SELECTIONS
