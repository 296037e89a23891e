"""The list shows the TaskManagers on each node, whatever it is known under, also after that has changed."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from app.engine.list_view import ListView
from blocklist.model.changes import Snapshot
from blocklist.model.inventory import Inventory
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode
from blocklist.model.reported_node import NodeSource, ReportedNode, SourceKind
from blocklist.model.tracker import BlocklistTracker

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
