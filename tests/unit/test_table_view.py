"""The versions of the drivers' table are of one state of the list."""

from __future__ import annotations

from app.engine.table_view import MAX_HELD_BACK_MS, TableView
from blocklist.model.changes import Change, ChangeType, Snapshot
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode
from blocklist.model.tracker import BlocklistTracker


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

    def head(self, version: int) -> str:
        return self.view.current(version).body.decode().partition("\n")[0]


def test_versions_that_are_rendered_one_after_the_other_have_the_same_revision() -> None:
    """The revision is held back while names are applied: a version that is rendered later must not end that."""
    scene = Scene()
    assert scene.head(1) == "blocklist-table 1 1 2"
    scene.pending = True
    scene.block(scene.node("n2"))
    assert scene.head(1) == "blocklist-table 1 1 4"
    scene.now += MAX_HELD_BACK_MS
    assert scene.head(2) == "blocklist-table 2 1 4"
    scene.pending = False
    scene.view.names_changed(["n9"])
    assert (scene.head(1), scene.head(2)) == ("blocklist-table 1 2 4", "blocklist-table 2 2 4")


def test_each_version_is_rendered_once_for_each_state() -> None:
    scene = Scene()
    scene.block(scene.node("n2", end=50))
    one, two = scene.view.current(1), scene.view.current(2)
    assert scene.view.current(1) is one
    assert scene.view.current(2) is two
    assert one.etags != two.etags
    scene.now = 50
    assert (scene.head(2), scene.head(1)) == ("blocklist-table 2 2 2", "blocklist-table 1 2 2")
