"""When the drivers' table is rendered, and with which revision."""

from __future__ import annotations

from app.engine.list_view import MAX_HELD_BACK_MS, TableView
from blocklist.model.changes import Change, ChangeType, Snapshot
from blocklist.model.draft import BlocklistTracker
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode


class Scene:
    """A list at revision 1 with its table."""

    def __init__(self) -> None:
        self.now = 0
        self.pending = False
        self.tracker = BlocklistTracker(Snapshot(revision=1, history="00c0ffee", nodes={"n1": self.node("n1")}))
        self.view = TableView(self.tracker, lambda: self.now, names_pending=lambda: self.pending)

    def node(self, node_id: str, end: int = PERMANENT) -> BlockedNode:
        return BlockedNode(id=node_id, action=BlockAction.MARK_BLOCKED, start=0, end=end, cause="disk")

    def block(self, node: BlockedNode) -> None:
        self.tracker.apply(Change(revision=self.tracker.revision + 1, type=ChangeType.BLOCKED, at=0, node=node))
        self.view.apply([node.id])

    def head(self) -> str:
        return self.view.current().body.decode().partition("\n")[0]


def test_the_revision_is_held_back_while_names_are_applied() -> None:
    scene = Scene()
    assert scene.head() == "blocklist-table 1 1 2"
    scene.pending = True
    scene.block(scene.node("n2"))
    assert scene.head() == "blocklist-table 1 1 4"
    scene.now += MAX_HELD_BACK_MS
    assert scene.head() == "blocklist-table 1 1 4"
    scene.pending = False
    scene.view.names_changed(["n9"])
    assert scene.head() == "blocklist-table 1 2 4"


def test_it_is_rendered_once_for_each_state() -> None:
    scene = Scene()
    scene.block(scene.node("n2", end=50))
    table = scene.view.current()
    assert scene.view.current() is table
    scene.now = 50
    assert scene.head() == "blocklist-table 1 2 2"
    assert scene.view.current().etags != table.etags
