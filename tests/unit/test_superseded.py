"""Whether a block is still as a request left it, when the request has waited for the listeners."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from app.api.change import superseded_nodes
from blocklist.model.changes import Change, ChangeType
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode

MARK: Final = BlockedNode(id="n1", action=BlockAction.MARK_BLOCKED, start=0, end=PERMANENT, cause="disk")
EVACUATION: Final = replace(MARK, action=BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS)
CANARY: Final = replace(MARK, canary=True)
STATES: Final = {"free": None, "canary": CANARY, "mark": MARK, "evacuation": EVACUATION}


def change(revision: int, before: BlockedNode | None, after: BlockedNode | None) -> Change:
    made = ChangeType.BLOCKED if before is None else ChangeType.MERGED
    type_ = ChangeType.UNBLOCKED if after is None else made
    return Change(revision=revision, type=type_, node=after or before or MARK, at=revision)


def present(node: BlockedNode | None) -> dict[str, BlockedNode]:
    return {} if node is None else {node.id: node}


@pytest.mark.parametrize("changed", [True, False])
@pytest.mark.parametrize("later", STATES)
@pytest.mark.parametrize("requested", ["canary", "mark", "evacuation"])
def test_a_block_is_superseded_by_a_weaker_one_only(requested: str, later: str, changed: bool) -> None:
    """Also where the request changed nothing, as the block was there already."""
    made, after = STATES[requested], STATES[later]
    assert made is not None
    own = [change(1, None, made)] if changed else []
    is_weaker = list(STATES).index(later) < list(STATES).index(requested)
    assert superseded_nodes([made], own, [], present(after)) == (["n1"] if is_weaker else [])
    # Restored before anybody has looked: the listeners may have seen it otherwise.
    later_changes = [change(2, made, after), change(3, after, made)]
    assert superseded_nodes([made], own, later_changes, present(made)) == (["n1"] if is_weaker else [])


@pytest.mark.parametrize("later", ["canary", "mark", "evacuation"])
def test_a_node_that_was_freed_is_superseded_by_any_block(later: str) -> None:
    own = [change(1, MARK, None)]
    assert superseded_nodes([MARK], own, [], present(STATES[later])) == ["n1"]
    assert superseded_nodes([MARK], own, [], {}) == []


@pytest.mark.parametrize(
    ("later", "superseded"), [("free", True), ("canary", True), ("mark", False), ("evacuation", True)]
)
def test_a_block_that_was_weakened_is_superseded_by_any_other(later: str, superseded: bool) -> None:
    own = [replace(change(1, EVACUATION, MARK), type=ChangeType.NARROWED)]
    assert superseded_nodes([MARK], own, [], present(STATES[later])) == (["n1"] if superseded else [])


def test_changes_of_other_nodes_supersede_nothing() -> None:
    other = replace(MARK, id="n2")
    assert superseded_nodes([MARK], [change(1, None, MARK)], [change(2, other, None)], present(MARK)) == []
